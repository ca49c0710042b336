"""The optimizers of other libraries: one line per class, found by its top package and name.

The rotation of every optimizer with a rule is compared with it on noise (docs/support.md). Nothing is imported.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gyroscope.optimizers import other_rules as rules
from gyroscope.optimizers.group_rules import GroupRuleFunction, torch_muon
from gyroscope.optimizers.other_rules import adam_l2, adamw, by_law, lion, switched
from gyroscope.theory import AdamL2, AdamW


class Row(NamedTuple):
    """A class of another library.

    about: its rule in words, or the reason why it has none.
    rule: from its settings to the theory's rule. Settings are the options of the group and `attributes`.
    required: options without which there is no rule. Libraries have different defaults, so none is guessed.
    attributes: those of the optimizer that the rule reads.
    """

    name: str
    about: str
    rule: GroupRuleFunction | None = None
    required: str = ""
    attributes: str = ""
    whole_matrix: bool = False


class OtherOptimizer(NamedTuple):
    """A row with its library. `known` are options that do not change the rule, or that it covers."""

    package: str
    row: Row
    known: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.row.name

    @property
    def rule(self) -> GroupRuleFunction | None:
        """From the settings to the theory's rule, None if there is none."""
        return self.row.rule

    @property
    def required(self) -> tuple[str, ...]:
        """Settings without which there is no rule."""
        return tuple(self.row.required.split())

    @property
    def attributes(self) -> tuple[str, ...]:
        """Settings that are attributes of the optimizer."""
        return tuple(self.row.attributes.split())


def library(package: str, known: str, *rows: Row) -> Iterator[OtherOptimizer]:
    """Yield the records of a library, with the options that all its classes may have."""
    return (OtherOptimizer(package, row, tuple(known.split())) for row in rows)


DECAY = "lr weight_decay"
ADAM = f"{DECAY} betas"
SWITCHED = f"{ADAM} weight_decouple"
AS_ADAMW = "AdamW"
AS_MUON = "Muon"
ONE_BETA = "Lion with one β"
BY_LAW = "rotation of AdamW, norm unknown"
SGD_LAW = "decoupled SGD: rotation by the one law, norm unknown"
EITHER = "AdamW, or Adam with L2, by its switch"
NOT_AVERAGED = "the model holds y, a mean of the iterate z (in the optimizer's state) and of its average"
FUSED = Row("FusedAdam", EITHER, switched("adam_w_mode", adamw, adam_l2), ADAM, "adam_w_mode")
EMERGING = (
    "nesterov weight_decay_method coefficient_type num_ns_steps scale_mode extra_scale_factor _weight_update_hook"
)

OTHERS = (
    *library(
        "torchtitan",
        "momentum nesterov ns_coefficients ns_steps adjust_lr_fn",
        Row("DistMuon", AS_MUON, rules.torchtitan_muon, f"{DECAY} momentum nesterov adjust_lr_fn", whole_matrix=True),
    ),
    *library(
        "olmo_core",
        "",
        Row("SkipStepAdamW", AS_ADAMW, rules.olmo_adamw, ADAM, "stepfix"),
        Row("SkipStepLion", "Lion", lion, ADAM),
        Row("Lion", "Lion", lion, ADAM),
    ),
    *library("transformer_engine", "bias_correction", FUSED),
    *library(
        "apex",
        "bias_correction momentum dampening nesterov",
        FUSED,
        Row("FusedSGD", "SGDM", rules.apex_sgd, f"{DECAY} momentum dampening nesterov", "wd_after_momentum"),
    ),
    *library("deepspeed", "bias_correction", FUSED, FUSED._replace(name="DeepSpeedCPUAdam")),
    *library(
        "emerging_optimizers",
        "momentum",
        Row("Muon", AS_MUON, rules.emerging_muon, f"{DECAY} momentum", EMERGING, True),
        Row("MuonHyperball", "Hyperball", rules.emerging_hyperball, f"{DECAY} momentum", EMERGING, True),
        Row("Muown", "the update is divided by a learned norm of each row", whole_matrix=True),
        Row("AdaptiveMuon", "its coefficients are only in a closure", whole_matrix=True),
    ),
    *library("megatron", "", Row("TensorParallelMuon", "its scale is only in a closure", whole_matrix=True)),
    *library(
        "dion",
        "algorithm mu muon_beta2 beta1 beta2 epsilon nesterov flatten adjust_lr cautious_wd num_heads",
        Row("Muon", AS_MUON, rules.dion, f"{DECAY} algorithm", "_newton_schulz_func", True),
        Row("NorMuon", AS_MUON, rules.dion, f"{DECAY} algorithm", "_newton_schulz_func", True),
        Row("Dion", "its updates have a low rank and an error feedback", whole_matrix=True),
        Row("Dion2", "it orthogonalises a part of the rows or columns in each step", whole_matrix=True),
    ),
    *library(
        "nanochat",
        "betas momentum ns_steps beta2",
        Row("MuonAdamW", "Muon with cautious decay, and AdamW", rules.nanochat, f"{DECAY} kind", whole_matrix=True),
    ),
    *library(
        "muon",  # KellerJordan's
        "momentum betas",
        Row("Muon", AS_MUON, torch_muon, f"{DECAY} momentum", whole_matrix=True),
        Row("SingleDeviceMuon", AS_MUON, torch_muon, f"{DECAY} momentum", whole_matrix=True),
        Row("MuonWithAuxAdam", "Muon and AdamW", rules.aux_muon, f"{DECAY} use_muon", whole_matrix=True),
        Row("SingleDeviceMuonWithAuxAdam", "Muon and AdamW", rules.aux_muon, f"{DECAY} use_muon", whole_matrix=True),
    ),
    *library(
        "heavyball",
        "storage_dtype multi_tensor mars_gamma beta2_scale __class__ momentum_decay max_precond_dim merge_dims "
        "shampoo_beta precond_grad_accum cautious_weight_decay nesterov",
        Row("SGD", SGD_LAW, rules.law("beta"), f"{DECAY} beta"),
        Row("AdamW", AS_ADAMW, adamw, ADAM),
        Row("AdamC", "AdamW with corrected decay", rules.heavyball_adamc, f"{ADAM} max_lr"),
        Row("NAdam", "NAdam", rules.heavyball_nadam, f"{ADAM} momentum_decay decoupled_weight_decay"),
        Row("LaProp", BY_LAW, by_law, ADAM),
        Row("ADOPT", BY_LAW, by_law, ADAM),
        Row("SOAP", BY_LAW, by_law, ADAM),
        Row("Muon", AS_MUON, rules.heavyball_muon, f"{ADAM} nesterov heavyball_momentum", whole_matrix=True),
        Row("HyperBallAdamW", "Hyperball", rules.heavyball_hyperball, DECAY + " betas", whole_matrix=True),
    ),
    *library(
        "bitsandbytes",
        "alpha t_alpha t_beta3",
        *(Row(name, AS_ADAMW, adamw, ADAM) for name in ("AdamW", "AdamW8bit", "AdamW32bit", "PagedAdamW")),
        *(Row(name, AS_ADAMW, adamw, ADAM) for name in ("PagedAdamW8bit", "PagedAdamW32bit", "Adam", "Adam8bit")),
        *(Row(name, AS_ADAMW, adamw, ADAM) for name in ("Adam32bit", "PagedAdam", "PagedAdam8bit", "PagedAdam32bit")),
        *(Row(name, "Lion", lion, ADAM) for name in ("Lion", "Lion8bit", "Lion32bit", "PagedLion", "PagedLion8bit")),
        *(Row(name, "SGDM", rules.bitsandbytes_sgd, ADAM) for name in ("SGD", "SGD8bit", "SGD32bit")),
    ),
    *library(
        "torchao",
        "",
        *(Row(name, AS_ADAMW, switched("is_adamw", adamw), ADAM, "is_adamw") for name in ("_AdamW", "AdamW8bit")),
        *(
            Row(name, "Adam with L2", switched("is_adamw", adamw, adam_l2), ADAM, "is_adamw")
            for name in ("_Adam", "Adam8bit")
        ),
        *(Row(name, BY_LAW, switched("is_adamw", by_law), ADAM, "is_adamw") for name in ("AdamW4bit", "AdamWFp8")),
    ),
    *library("lion_pytorch", "", Row("Lion", "Lion", rules.lion_pytorch, ADAM, "decoupled_wd _init_lr")),
    *library(
        "prodigyopt",
        "beta3 d d0 d_max d_numerator d_coef k growth_rate use_bias_correction slice_p",
        Row(
            "Prodigy",
            "AdamW at lr·d, or Adam with L2, with the current d",
            switched("decouple", rules.times_d(AdamW), rules.times_d(AdamL2)),
            f"{ADAM} d decouple",
        ),
    ),
    *library(
        "optimi",
        "beta1 beta2 max_lr kahan_sum triton torch_init setup momentum dampening decouple_wd",
        Row("SGD", "SGDM, or decoupled SGD", rules.optimi_sgd, f"{DECAY} momentum dampening decouple_wd"),
        Row("Adam", EITHER, switched("decouple_wd", adamw, adam_l2), f"{DECAY} beta1 beta2 decouple_wd"),
        Row("AdamW", AS_ADAMW, adamw, f"{DECAY} beta1 beta2"),
        Row("RAdam", EITHER, switched("decouple_wd", adamw, adam_l2), f"{DECAY} beta1 beta2 decouple_wd"),
        Row("StableAdamW", AS_ADAMW, adamw, f"{DECAY} beta1 beta2"),
        Row("Lion", "Lion", lion, f"{DECAY} beta1 beta2"),
    ),
    *library(
        "timm",
        "betas momentum nesterov dampening max_lr_snapshot adjust_lr_fn ns_coefficients ns_steps conv_mode algo "
        "fallback_lr_scale safety_factor normalize_spatial scale_eps verbose use_fallback use_muon lr_scale "
        "decay_rate clip_threshold beta1 relative_step scale_parameter warmup_init",
        Row("AdamWLegacy", AS_ADAMW, adamw, ADAM),
        Row("NAdamW", "NAdam without a ramp", rules.nadam_without_ramp, ADAM),
        Row("Lion", "Lion", lion, ADAM),
        Row("LaProp", BY_LAW, by_law, ADAM),
        Row("SGDW", SGD_LAW, rules.nesterov_law, f"{DECAY} momentum nesterov"),
        Row("Adafactor", "Adafactor", rules.adafactor, f"{DECAY} scale_parameter"),
        Row(
            "Muon",
            "Muon, and AdamW",
            rules.timm_muon,
            f"{ADAM} momentum nesterov adjust_lr_fn ns_coefficients ns_steps conv_mode algo fallback_lr_scale",
            whole_matrix=True,
        ),
    ),
    *library(
        "transformers",
        "decay_rate clip_threshold beta1 relative_step scale_parameter warmup_init",
        Row("Adafactor", "Adafactor", rules.adafactor, f"{DECAY} scale_parameter"),
    ),
    *library(
        "pytorch_optimizer",
        "initial_accumulator partial r d d0 d_max d_coef growth_rate bias_correction beta3 kahan_sum max_lr betas "
        "precondition_frequency max_precondition_dim merge_dims correct_bias shampoo_beta momentum nesterov ns_steps "
        "ns_coeffs ns_method ns_reset_steps use_adjusted_lr use_muon",
        Row("Lion", "Lion", switched("weight_decouple", lion), SWITCHED),
        Row("RAdam", AS_ADAMW, switched("weight_decouple", adamw), SWITCHED),
        Row("StableAdamW", AS_ADAMW, switched("weight_decouple", adamw), SWITCHED),
        Row(
            "Prodigy",
            "AdamW at lr·d, with the current d",
            switched("weight_decouple", rules.times_d(AdamW)),
            f"{SWITCHED} d",
        ),
        Row("Tiger", ONE_BETA, switched("weight_decouple", rules.sign("beta")), f"{DECAY} weight_decouple beta"),
        Row(
            "SignSGD",
            ONE_BETA,
            switched("weight_decouple", rules.sign("momentum")),
            f"{DECAY} weight_decouple momentum",
        ),
        *(
            Row(name, BY_LAW, switched("weight_decouple", by_law), SWITCHED)
            for name in ("AdaBelief", "AdaNorm", "ADOPT")
        ),
        *(Row(name, BY_LAW, switched("weight_decouple", by_law), SWITCHED) for name in ("LaProp", "PAdam", "Yogi")),
        Row("SOAP", BY_LAW, by_law, ADAM),
        Row(
            "QHAdam",
            "one law, τ of g and momentum mixed",
            switched("weight_decouple", rules.quasi_hyperbolic),
            f"{SWITCHED} nus",
        ),
        Row(
            "SGDW",
            SGD_LAW,
            switched("weight_decouple", rules.nesterov_law),
            f"{DECAY} weight_decouple momentum nesterov",
        ),
        Row(
            "Muon",
            "Muon, and AdamW",
            switched("weight_decouple", rules.pytorch_optimizer_muon),
            f"{DECAY} weight_decouple use_muon",
            whole_matrix=True,
        ),
        Row("AdaGO", "the step has the size of an accumulated gradient", whole_matrix=True),
    ),
    *library(
        "schedulefree",
        "",
        *(Row(name, NOT_AVERAGED) for name in ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree")),
    ),
    *(
        OtherOptimizer(module, Row(name, "updates that disagree with the gradient are left out (C-Optim)"), ())
        for module, name in (("c_adamw", "AdamW"), ("c_lion", "Lion"), ("c_muon", "Muon"))
    ),
    *library("mars", "", Row("MARS", "it extrapolates differences of gradients")),
)
