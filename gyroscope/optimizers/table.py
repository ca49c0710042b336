"""The table of optimizers. A new optimizer is one record here, beside its class, its rule and its formulas."""

from dataclasses import replace
from typing import Any

from gyroscope.optimizers import group_rules
from gyroscope.optimizers.group_rules import with_betas
from gyroscope.optimizers.spec import INNER, FileSigns, OptimizerSpec, PlanChoice
from gyroscope.theory import (
    SGDM,
    SGDMRT,
    Adafactor,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    Hyperball,
    KAdam,
    Lion,
    Muon,
    NAdam,
    NAdamL2,
)

BETAS = ("betas",)
MOMENTUM = ("momentum",)
ADAM_STATE = ("exp_avg", "exp_avg_sq")
MUON_OPTIONS = ("ns_steps", "ns_coefficients")
# An option of torch's Adams sets whether decay is decoupled. Adams of other libraries lack it.
TORCH_DECAY = "decoupled_weight_decay"

ADAMW = OptimizerSpec(
    "torch.optim.AdamW",
    with_betas(AdamW),
    "adam",
    momentum=("exp_avg",),
    second_moment=("max_exp_avg_sq", "exp_avg_sq"),
    decay="decoupled",
    scales_with_lr=True,
    known=("betas", "amsgrad", TORCH_DECAY),
    needed=BETAS,
    signs=(FileSigns(state=ADAM_STATE, without=(TORCH_DECAY, "mu_product")),),
    command="adamw",
    plans=(PlanChoice("adamw", AdamW, {"lr": 1e-3, "weight_decay": 0.1}),),
    typical={"lr": 1e-3, "weight_decay": 0.1},
)
SGD = OptimizerSpec(
    "torch.optim.SGD",
    group_rules.sgd,
    "sgd",
    momentum=("momentum_buffer",),
    is_linear=True,
    scales_with_lr=True,
    known=("momentum", "dampening", "nesterov"),
    signs=(
        FileSigns(state=("momentum_buffer",), without=(*ADAM_STATE, "square_avg", *MUON_OPTIONS)),
        FileSigns(options=("dampening",), without=(*ADAM_STATE, "square_avg", *MUON_OPTIONS)),
    ),
    command="sgd",
    plans=(PlanChoice("sgdm", SGDM, {"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9}),),
    typical={"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9},
)
LION = OptimizerSpec(
    "gyroscope.optim.lion.Lion",
    with_betas(Lion),
    "lion",
    momentum=("exp_avg",),
    decay="decoupled",
    scales_with_lr=True,
    needed=BETAS,
    signs=(
        FileSigns(
            options=BETAS,
            state=("exp_avg",),
            without=("exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "dampening", *MUON_OPTIONS),
        ),
    ),
    command="lion",
    plans=(PlanChoice("lion", Lion, {"lr": 1e-4, "weight_decay": 1.0}),),
    typical={"lr": 1e-4, "weight_decay": 1.0},
)
ADAM = replace(
    ADAMW,
    path="torch.optim.Adam",
    rule=group_rules.adam,
    decay="coupled",
    decay_switch=TORCH_DECAY,
    signs=(
        FileSigns(options=(TORCH_DECAY, "amsgrad"), state=ADAM_STATE, without=("mu_product",)),
        FileSigns(state=ADAM_STATE, without=(TORCH_DECAY, "mu_product")),
    ),
    command="adam",
    plans=(PlanChoice("adam_l2", AdamL2, {"lr": 1e-3, "weight_decay": 1e-4}),),
    typical={"lr": 1e-3, "weight_decay": 1e-4},
)
NADAM = replace(
    ADAM,
    path="torch.optim.NAdam",
    rule=group_rules.nadam,
    formula="nadam",
    second_moment=("exp_avg_sq",),
    known=("betas", "momentum_decay", TORCH_DECAY),
    signs=(FileSigns(state=(*ADAM_STATE, "mu_product")),),
    command="nadam",
    plans=(
        PlanChoice("nadam", NAdam, {"lr": 1e-3, "weight_decay": 0.1, "momentum_decay": 4e-3}),
        PlanChoice("nadam_l2", NAdamL2, {"lr": 1e-3, "weight_decay": 1e-4, "momentum_decay": 4e-3}),
    ),
)
RADAM = replace(
    NADAM,
    path="torch.optim.RAdam",
    rule=group_rules.adam,  # its first steps are shorter (docs/theory.md, "RAdam")
    formula="radam",
    known=("betas", TORCH_DECAY),
    signs=(FileSigns(options=(TORCH_DECAY,), state=ADAM_STATE, without=("amsgrad", "mu_product")),),
    command="",
    plans=(),
    typical={},
)
MUON = OptimizerSpec(
    "torch.optim.Muon",
    group_rules.torch_muon,
    "muon",
    momentum=("momentum_buffer",),
    decay="decoupled",
    scales_with_lr=True,
    whole_matrix=True,
    known=("momentum", "nesterov", "adjust_lr_fn", *MUON_OPTIONS),
    needed=MOMENTUM,
    signs=tuple(FileSigns(options=(option,), without=("exp_avg_sq", "square_avg")) for option in MUON_OPTIONS),
    command="muon",
    plans=(PlanChoice("muon", Muon, {"lr": 0.02, "weight_decay": 0.01}),),
    typical={"lr": 0.02, "weight_decay": 0.01},
)
ADAFACTOR = OptimizerSpec(
    "torch.optim.Adafactor",
    group_rules.torch_adafactor,
    "adafactor",
    decay="decoupled",
    known=("beta2_decay", "d"),
    plans=(PlanChoice("adafactor", Adafactor, {"lr": 0.01, "weight_decay": 0.0}),),
    typical={"lr": 0.01, "weight_decay": 0.0},
)
ADAMAX = OptimizerSpec(
    "torch.optim.Adamax",
    None,
    "adamax",
    momentum=("exp_avg",),
    scales_with_lr=True,
    signs=(FileSigns(state=("exp_inf",), without=("exp_avg_sq",)),),
)
RMSPROP = OptimizerSpec(
    "torch.optim.RMSprop",
    None,
    "rmsprop",
    momentum=("momentum_buffer",),
    second_moment=("square_avg",),
    scales_with_lr=True,
    signs=(FileSigns(options=("alpha",), state=("square_avg",)),),
)
ADAGRAD = OptimizerSpec("torch.optim.Adagrad", None, "adagrad", scales_with_lr=True)
ADADELTA = OptimizerSpec("torch.optim.Adadelta", None, "adadelta", second_moment=("square_avg",), scales_with_lr=True)
ASGD = OptimizerSpec("torch.optim.ASGD", None, "asgd", is_linear=True)


def rotational(base: OptimizerSpec, path: str, **signs: Any) -> OptimizerSpec:
    """Return the record of a rotational variant. The base's rule sets the angle."""
    return replace(
        base,
        path=path,
        scales_with_lr=False,
        keeps_norms=True,
        base=base.name,
        signs=(FileSigns(**signs, distinctive=True),),
        command=f"rotational-{base.command}",
        plans=(),
    )


ROTATIONALS = (
    rotational(ADAMW, "gyroscope.optim.adamw.RotationalAdamW", options=("centre", "eps"), without=("mode", "momentum")),
    rotational(SGD, "gyroscope.optim.sgd.RotationalSGD", options=("centre", "momentum"), without=("mode",)),
    rotational(LION, "gyroscope.optim.lion.RotationalLion", options=("centre",), without=("mode", "momentum", "eps")),
)
ROTATIONAL = OptimizerSpec(
    "gyroscope.optim.rotational.Rotational",
    None,  # its inner optimizer's, or hyperball's
    "rotational",
    keeps_norms=True,
    base=INNER,
    signs=(FileSigns(options=("centre", "mode"), distinctive=True),),
    plans=(PlanChoice("hyperball", Hyperball, {"lr": 0.01}),),
)

ADAM_S = OptimizerSpec(
    "gyroscope.optim.adam_s.AdamS",
    with_betas(AdamS),
    "adam_s",
    momentum=("exp_avg",),
    second_moment=("exp_avg_sq",),
    needed=BETAS,
    signs=(FileSigns(options=("compile", "betas"), without=("centre", "v0", "strategy"), distinctive=True),),
    command="adam-s",
    plans=(PlanChoice("adam_s", AdamS, {"lr": 1e-3, "weight_decay": 1e-4}),),
    typical={"lr": 1e-3, "weight_decay": 1e-4},
)
ADAM_SRT = replace(
    ADAM_S,
    path="gyroscope.optim.adam_s.AdamSRT",
    rule=with_betas(AdamSRT),
    formula="adam_srt",
    command="adam-srt",
    plans=(PlanChoice("adam_srt", AdamSRT, {"lr": 1e-3, "weight_decay": 1e-3}),),
    typical={"lr": 1e-3, "weight_decay": 1e-3},
)
SGD_MRT = OptimizerSpec(
    "gyroscope.optim.sgd_mrt.SGDMRT",
    lambda group: SGDMRT(*group_rules.rates(group), group_rules.number(group, "momentum")),
    "sgd_mrt",
    momentum=("momentum_buffer",),
    is_linear=True,
    needed=MOMENTUM,
    signs=(FileSigns(options=("compile", "momentum"), without=("centre",), distinctive=True),),
    command="sgd-mrt",
    plans=(PlanChoice("sgd_mrt", SGDMRT, {"lr": 0.1, "weight_decay": 5e-3}),),
    typical={"lr": 0.1, "weight_decay": 5e-3},
)
SPHERICAL_ADAM = OptimizerSpec(
    "gyroscope.optim.spherical_adam.SphericalAdam",
    group_rules.spherical_adam,
    "spherical_adam",
    momentum=("exp_avg",),
    second_moment=("exp_avg_sq",),
    decay="none",
    signs=(FileSigns(options=("v0",), distinctive=True),),
    command="spherical-adam",
    typical={"lr": 1e-2, "weight_decay": 0.0},
)
K_ADAM = OptimizerSpec(
    "gyroscope.optim.k_adam.KAdam",
    group_rules.k_adam,
    "k_adam",
    momentum=("exp_avg",),
    second_moment=("exp_avg_sq",),
    decay="decoupled",
    decay_switch="coupled",
    needed=BETAS,
    signs=(FileSigns(options=("strategy", "k"), distinctive=True),),
    command="k-adam",
    plans=(PlanChoice("k_adam", KAdam, {"lr": 1e-3, "weight_decay": 0.1}),),
    typical={"lr": 1e-3, "weight_decay": 0.1},
)

TORCH = (ADAMW, SGD, ADAM, NADAM, RADAM, MUON, ADAFACTOR, ADAMAX, RMSPROP, ADAGRAD, ADADELTA, ASGD)
# Lists in messages and help have this order.
SPECS = (*TORCH, *ROTATIONALS, ROTATIONAL, LION, ADAM_S, ADAM_SRT, SGD_MRT, SPHERICAL_ADAM, K_ADAM)
# By name on the command line: optimizers, and the rules that a plan offers.
COMMANDS = {spec.command: spec for spec in SPECS if spec.command}
PLANS = {choice.name: choice for spec in SPECS for choice in spec.plans}
# State keys of all optimizers, also for those without a record. The first one that a state has counts.
MOMENTUM_KEYS = tuple(dict.fromkeys(key for spec in SPECS for key in spec.momentum))
SECOND_MOMENT_KEYS = tuple(dict.fromkeys(key for spec in SPECS for key in spec.second_moment))
_BY_NAME = {spec.name: spec for spec in SPECS}


def spec_by_name(name: str | None) -> OptimizerSpec | None:
    """Return the record of the class with exactly this name, or None.

    >>> spec_by_name("AdamW").command
    'adamw'
    """
    return None if name is None else _BY_NAME.get(name)
