"""Situations of the bench: networks × settings, and beside each the change that would be right, written before any run.

Networks of the choosing half chose thresholds, and those of the judging half judge them. Trimmed for one core: at most
30 thousand weights and 200 steps, with a warmup of 20.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

Settings = dict[str, Any]

STEPS = 200
WARMUP = 20
# Rotation is measured at the same steps on every machine.
SHARED: Settings = {"steps": STEPS, "warmup": WARMUP, "evaluations": 1, "sample_every": 10}
_GPT: Settings = {"batch_size": 8}
_GPT_SHAPE = "gpt:layers=2,width=32,context=32,heads=2"
_IMAGES: Settings = {"task": "cifar10", "shrink": 4, "batch_size": 32}

NETWORKS: dict[str, dict[str, Settings]] = {
    "choosing": {
        "GPT": {**_GPT, "task": "text:tinyshakespeare.txt", "model": _GPT_SHAPE},
        "ResNet-8, batch norm": {**_IMAGES, "model": "resnet20:blocks=1,width=8"},
        "MLP, layer norm": {**_IMAGES, "batch_size": 64, "model": "mlp:width=64", "norm": "layer"},
    },
    "judging": {
        "GPT, byte pairs": {**_GPT, "task": "bpe:tinyshakespeare.txt", "model": f"{_GPT_SHAPE},fan_in_init=true"},
        "ViT": {**_IMAGES, "model": "vit:patch=2,width=32,layers=2,heads=2"},
        "CNN, group norm": {**_IMAGES, "model": "cnn:width=8", "norm": "group"},
    },
}


@final
@dataclass(frozen=True)
class Base:
    """An optimizer with its fixed settings, and the learning rate at which its tuning begins."""

    settings: Mapping[str, Any]
    lr: float


OPTIMIZERS: dict[str, Base] = {
    "AdamW": Base({"optimizer": "adamw", "weight_decay": 0.1}, 3e-3),
    "Adam": Base({"optimizer": "adam", "weight_decay": 0.01}, 3e-3),
    "SGDM": Base({"optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-4}, 0.1),
    "Lion": Base({"optimizer": "lion", "weight_decay": 1.0}, 3e-4),
    "Muon": Base({"optimizer": "muon", "weight_decay": 0.1}, 3e-3),
}

Change = Callable[[Settings], Settings]


@final
@dataclass(frozen=True)
class Situation:
    """A training that may be bad.

    optimizer  whose tuned settings are changed
    change     from the tuned settings to those of the situation
    expected   the change that would be right if the run is bad
    planted    what is done to the network before the first step, of `_training.PLANTS`
    reference  optimizer whose tuned run the loss is compared with
    """

    optimizer: str = "AdamW"
    change: Change = dict
    expected: str = "no change"
    planted: str = ""
    reference: str = field(default="", kw_only=True)

    @property
    def compared_with(self) -> str:
        """The optimizer whose tuned run decides whether this one is bad."""
        return self.reference or self.optimizer


def _times(name: str, factor: float) -> Change:
    return lambda settings: {**settings, name: settings[name] * factor}


def _with(**changes: Any) -> Change:
    return lambda settings: {**settings, **changes}


def _too_early(settings: Settings) -> Settings:
    return {**settings, "warmup": 0, "lr": 3 * settings["lr"]}


SITUATIONS: dict[str, Situation] = {
    "AdamW": Situation(),
    "lr × 10": Situation(change=_times("lr", 10), expected="a lower learning rate"),
    "lr × 30": Situation(change=_times("lr", 30), expected="a lower learning rate"),
    "lr ÷ 10": Situation(change=_times("lr", 1 / 10), expected="a higher learning rate"),
    "lr ÷ 30": Situation(change=_times("lr", 1 / 30), expected="a higher learning rate"),
    "no warmup": Situation(change=_with(warmup=0), expected="a warmup"),
    "no warmup, lr × 3": Situation(change=_too_early, expected="a warmup, then a lower learning rate"),
    "weight decay × 10": Situation(change=_times("weight_decay", 10), expected="a lower weight decay"),
    "weight decay × 30": Situation(change=_times("weight_decay", 30), expected="a lower weight decay"),
    "Adam with L2": Situation("Adam", expected="AdamW with a weight decay of its own", reference="AdamW"),
    "β2 = 0.3": Situation(change=_with(betas=(0.9, 0.3)), expected="stable betas"),
    "pure bfloat16": Situation(change=_with(precision="pure-bf16"), expected="float32 weights"),
    "weights × 0.1": Situation(change=_with(init_scale=0.1), expected="a start at equilibrium, or a warmup"),
    "weights × 10": Situation(change=_with(init_scale=10.0), expected="no setting: the sentence is judged"),
    "RotationalAdamW, fixed norms": Situation(
        change=_with(optimizer="rotational-adamw:update_average=noise,norms=fixed"),
        expected="norms that move, or gains and a start at equilibrium",
    ),
    "SGDM": Situation("SGDM"),
    "SGDM, lr × 10": Situation("SGDM", _times("lr", 10), "a lower learning rate"),
    "Lion": Situation("Lion"),
    "Lion, lr × 10": Situation("Lion", _times("lr", 10), "a lower learning rate"),
    "Muon": Situation("Muon"),
    "Muon, lr × 10": Situation("Muon", _times("lr", 10), "a lower learning rate"),
    "a frozen layer": Situation(expected="no setting: the sentence is judged", planted="frozen layer"),
    "dead ReLUs": Situation(expected="no setting: the sentence is judged", planted="dead ReLUs"),
}
# Networks with ReLU after a norm with a bias. GPTs and ViTs have GELU.
WITH_RELU = ("ResNet-8, batch norm", "MLP, layer norm", "CNN, group norm")


def situations_of(network: str) -> tuple[str, ...]:
    """Return the situations that a network can be in."""
    return tuple(name for name, each in SITUATIONS.items() if each.planted != "dead ReLUs" or network in WITH_RELU)


def applied(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings after the changes of a remedy, followed to the letter. "×0.3" multiplies a number.

    >>> applied({"lr": 1.0, "steps": 200}, {"lr": "×0.3", "betas": (0.9, 0.99)})
    {'lr': 0.3, 'steps': 200, 'betas': (0.9, 0.99)}
    """
    new = dict(settings)
    for name, value in changes.items():
        is_factor = isinstance(value, str) and value.startswith("×")
        new[name] = settings[name] * float(value[1:]) if is_factor else value
    return new
