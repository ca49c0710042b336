"""The optimizers that are compared with their rules: the real class where an index has it, otherwise a stand-in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tests.optimizers import stand_ins
from tests.optimizers.white_noise import LR, WEIGHT_DECAY

RATES = {"lr": LR, "weight_decay": WEIGHT_DECAY}
# Gradients below this make L2 a part of the update like the loss's.
SMALL = 0.01


@dataclass(frozen=True)
class Case:
    """An optimizer with options, and what it is.

    package, name: the key of its record. options: besides `RATES`.
    module: where the real class is, and `distribution` the name of its package in an index. Empty for a stand-in.
    make: returns it for a list of parameters, if that takes more than the class and the options.
    """

    package: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    module: str = ""
    distribution: str = ""
    stand_in: Any = None
    make: Callable[[Any, Any, dict[str, Any]], Any] = lambda cls, params, options: cls(params, **options)
    gradient_rms: float = 1.0
    steps: int | None = None

    @property
    def label(self) -> str:
        """The class with its options."""
        shown = ", ".join(f"{name}={value}" for name, value in self.options.items() if name not in HIDDEN)
        return f"{self.name}({shown})" if shown else self.name

    @property
    def id(self) -> str:
        """Its name in tests and in the file of results."""
        return f"{self.package}.{self.label}"

    @property
    def tested_with(self) -> str | None:
        """The version of the real class, "a stand-in", or None if the package is not installed."""
        if self.stand_in is not None:
            return "a stand-in"
        try:
            return f"{self.distribution} {version(self.distribution).partition('+')[0]}"
        except PackageNotFoundError:
            return None

    def optimizer(self, params: Any) -> Any:
        """Return the optimizer of these parameters."""
        if self.stand_in is not None:
            cls = stand_ins.of_package(self.stand_in, self.name, self.package)
        else:
            cls = getattr(import_module(self.module), self.name)
        return self.make(cls, params, {**RATES, **self.options})


# Options that are only for the test.
HIDDEN = ("lr", "weight_decay", "d0", "compile_step", "hyperball_radius", "algorithm")


def on_sphere(cls: Any, params: Any, options: dict[str, Any]) -> Any:
    """MuonHyperball asks for weights of its radius."""
    params[0].data.mul_(options["hyperball_radius"] / params[0].norm())
    return cls(params, **options)


def one_group(cls: Any, params: Any, options: dict[str, Any]) -> Any:
    """Optimizers that take all their options from groups."""
    return cls([{"params": params, **options}])


def group_and_options(cls: Any, params: Any, options: dict[str, Any]) -> Any:
    """Optimizers that choose by an entry of the group."""
    chosen = {name: value for name, value in options.items() if name in ("use_muon", "use_fallback", *RATES)}
    return cls([{"params": params, **chosen}], **{name: options[name] for name in options if name not in chosen})


def several(case: Case, *options: dict[str, Any]) -> list[Case]:
    """Return the case with each of the options."""
    return [Case(**{**vars(case), "options": {**case.options, **each}}) for each in options]


def real(package: str, names: str, module: str = "", distribution: str = "", **fields: Any) -> list[Case]:
    """Return cases of real classes."""
    return [
        Case(package, name, module=module or package, distribution=distribution or package, **fields)
        for name in names.split()
    ]


EAGER = {"compile_step": False}
MUON_NAMES = {"momentum": 0.95, "use_muon": True}
AUX = {"use_muon": False, "betas": (0.9, 0.95), "eps": 1e-10}
NANOCHAT = {"kind": "muon", "momentum": 0.95, "ns_steps": 5, "beta2": 0.9}
DION = ({}, {"nesterov": True}, {"use_polar_express": False}, {"adjust_lr": "rms_norm"}, {"cautious_wd": True})
# SGD with L2 is stable at lr·λ/(1-β) well below 1.
L2 = {"momentum": 0.9, "weight_decay": 0.05}

STAND_INS = [
    *(Case(package, "FusedAdam", stand_in=stand_ins.FusedAdam) for package in ("transformer_engine", "apex")),
    Case("apex", "FusedAdam", {"adam_w_mode": False}, stand_in=stand_ins.FusedAdam, gradient_rms=SMALL),
    Case("deepspeed", "FusedAdam", stand_in=stand_ins.FusedAdam),
    Case("apex", "FusedSGD", L2, stand_in=stand_ins.FusedSGD),
    *several(
        Case("torchtitan", "DistMuon", stand_in=stand_ins.DistMuon),
        {},
        {"adjust_lr_fn": "match_rms_adamw"},
        {"adjust_lr_fn": "spectral_unclamped"},
    ),
    *several(
        Case("emerging_optimizers", "Muon", stand_in=stand_ins.EmergingMuon),
        {},
        {"nesterov": True},
        {"coefficient_type": "simple"},
        {"coefficient_type": "polar_express"},
        {"scale_mode": "unit_rms_norm", "extra_scale_factor": 0.2},
    ),
    Case(
        "emerging_optimizers",
        "MuonHyperball",
        {"lr": 0.018, "weight_decay": 0.01, "hyperball_radius": 3.0},
        stand_in=stand_ins.EmergingMuon,
        make=on_sphere,
    ),
    *several(Case("dion", "Muon", stand_in=stand_ins.Dion), *DION),
    *several(Case("dion", "NorMuon", {"algorithm": "normuon"}, stand_in=stand_ins.Dion), *DION),
    Case("nanochat", "MuonAdamW", NANOCHAT, stand_in=stand_ins.MuonAdamW, make=one_group),
    Case(
        "nanochat",
        "MuonAdamW",
        {"kind": "adamw", "betas": (0.9, 0.95), "eps": 1e-8},
        stand_in=stand_ins.MuonAdamW,
        make=one_group,
    ),
]
REAL = [
    *real("torch", "AdamW Muon", "torch.optim"),
    *real("torch", "Adam", "torch.optim", gradient_rms=SMALL),
    *real("torch", "Muon", "torch.optim", options={"ns_steps": 6}),
    *real("torch", "Muon", "torch.optim", options={"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    *real("olmo_core", "SkipStepAdamW SkipStepLion Lion", "olmo_core.optim", "ai2-olmo-core"),
    *real(
        "olmo_core",
        "SkipStepAdamW",
        "olmo_core.optim",
        "ai2-olmo-core",
        options={"step_increment_bugfix": False, "betas": (0.9, 0.95)},
    ),
    *real("deepspeed", "DeepSpeedCPUAdam", "deepspeed.ops.adam"),
    *real("muon", "SingleDeviceMuon", distribution="muon-optimizer"),
    *real("heavyball", "SGD AdamW AdamC LaProp ADOPT SOAP Muon", options=EAGER),
    *real("heavyball", "HyperBallAdamW", options={**EAGER, "weight_decay": 0.0}),
    *real("heavyball", "AdamW", options={**EAGER, "cautious_weight_decay": True}),
    *real("heavyball", "Muon", options={**EAGER, "nesterov": False}),
    *real(
        "heavyball",
        "NAdam",
        options={**EAGER, "momentum_decay": 10.0, "decoupled_weight_decay": True},
    ),
    *real("heavyball", "NAdam", options={**EAGER, "momentum_decay": 10.0}, gradient_rms=SMALL),
    *real("bitsandbytes", "AdamW AdamW8bit PagedAdamW Adam Lion Lion8bit", "bitsandbytes.optim"),
    *real("bitsandbytes", "SGD SGD8bit", "bitsandbytes.optim", options=L2),
    *real("torchao", "_AdamW AdamW8bit AdamW4bit AdamWFp8", "torchao.optim.adam"),
    *real("torchao", "Adam8bit", "torchao.optim.adam", gradient_rms=SMALL),
    *real("lion_pytorch", "Lion", distribution="lion-pytorch"),
    *real(
        "lion_pytorch",
        "Lion",
        distribution="lion-pytorch",
        options={"decoupled_weight_decay": True, "weight_decay": LR * WEIGHT_DECAY},
    ),
    *real("prodigyopt", "Prodigy", options={"lr": 1.0, "d0": LR}, steps=4000),
    *real("optimi", "AdamW StableAdamW Lion", distribution="torch-optimi"),
    *real("optimi", "SGD", distribution="torch-optimi", options=L2),
    *real("optimi", "SGD", distribution="torch-optimi", options={**L2, "dampening": True}),
    *real("optimi", "SGD", distribution="torch-optimi", options={"momentum": 0.9, "decouple_wd": True}),
    *real("optimi", "Adam RAdam", distribution="torch-optimi", options={"decouple_wd": True}),
    *real("optimi", "Adam RAdam", distribution="torch-optimi", gradient_rms=SMALL),
    *real(
        "pytorch_optimizer",
        "Lion StableAdamW Tiger SignSGD AdaBelief AdaNorm LaProp Yogi SOAP",
        distribution="pytorch-optimizer",
    ),
    *real(
        "pytorch_optimizer", "ADOPT PAdam QHAdam", distribution="pytorch-optimizer", options={"weight_decouple": True}
    ),
    # Its steps are shorter for some 1/(1-β2) steps.
    *real("pytorch_optimizer", "RAdam", distribution="pytorch-optimizer", options={"betas": (0.9, 0.9)}),
    *real(
        "pytorch_optimizer",
        "Prodigy",
        distribution="pytorch-optimizer",
        options={"lr": 1.0, "d0": LR},
        steps=4000,
    ),
    *real("pytorch_optimizer", "SGDW", distribution="pytorch-optimizer", options={"momentum": 0.9}),
    *real("pytorch_optimizer", "SGDW", distribution="pytorch-optimizer", options={"momentum": 0.9, "nesterov": True}),
    *several(
        Case(
            "pytorch_optimizer",
            "Muon",
            module="pytorch_optimizer",
            distribution="pytorch-optimizer",
            make=group_and_options,
            options={"use_muon": True},
        ),
        {},
        {"use_adjusted_lr": True},
        {"nesterov": False},
        {"ns_coeffs": "polar_express"},
        {"use_muon": False},
    ),
    # Last, because some imports of others fail once timm has been imported without torchvision.
    *real("timm", "AdamWLegacy NAdamW Lion LaProp", "timm.optim"),
    *real("timm", "SGDW", "timm.optim", options={"momentum": 0.9}),
    *real("timm", "SGDW", "timm.optim", options={"momentum": 0.9, "nesterov": True}),
    *several(
        Case("timm", "Muon", module="timm.optim", distribution="timm", make=group_and_options),
        {},
        {"nesterov": True, "adjust_lr_fn": "rms_to_rms"},
        {"ns_coefficients": "original", "adjust_lr_fn": "original"},
        {"ns_coefficients": "polar_express", "adjust_lr_fn": None},
        {"use_fallback": True, "fallback_lr_scale": 0.5},
        {"use_muon": False, "nesterov": True},
    ),
]
CASES = [*STAND_INS, *REAL]
