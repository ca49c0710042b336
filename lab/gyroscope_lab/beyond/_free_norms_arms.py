"""The networks, the optimizers and the order of the trial of free norms. All were fixed before the first training."""

from typing import Any, NamedTuple

Settings = dict[str, Any]


class Point(NamedTuple):
    """Settings of an optimizer."""

    lr: float
    weight_decay: float
    others: float = 1.0
    """Learning rate of embeddings, gains and biases over that of the matrices."""
    warmup: float = 0.05
    """Share of the run."""


# Average of squared update lengths of every rotational arm, so that the arms differ in their norms alone.
ROTATIONAL = "update_average=noise"
FORMS = ("fixed", "free", "settling")
# The form that is tried where only one new form is.
CANDIDATE = "settling"


def _forms(base: str) -> dict[str, Settings]:
    return {form: {"optimizer": f"rotational-{base}:norms={form},{ROTATIONAL}"} for form in FORMS}


ADAMW: Settings = {"optimizer": "adamw:fused=true"}
MAIN: dict[str, Settings] = {"AdamW": ADAMW, **_forms("adamw")}
FEW: dict[str, Settings] = {name: MAIN[name] for name in ("AdamW", "fixed", CANDIDATE)}
CONTROLS: dict[str, Settings] = {
    "AdamW": ADAMW,
    "fixed": MAIN["fixed"],
    "settling": MAIN["settling"],
    "fixed, gain": {**MAIN["fixed"], "gain": True},
    "fixed, gain, equilibrium start": {**MAIN["fixed"], "gain": True, "start": "equilibrium"},
    "settling, gain": {**MAIN["settling"], "gain": True},
    "AdamW, gain": {**ADAMW, "gain": True},
    "AdamW, equilibrium start": {**ADAMW, "start": "equilibrium"},
    "AdamW, tuned warmup": {**ADAMW, "tuned_warmup": True},
    "Muon": {"optimizer": "muon"},
    "MuonH": {"optimizer": "muonh"},
}
SGD: dict[str, Settings] = {
    "SGDM": {"optimizer": "sgd", "momentum": 0.9},
    **{name: {**arm, "momentum": 0.9} for name, arm in _forms("sgd").items()},
}
LION: dict[str, Settings] = {"Lion": {"optimizer": "lion"}, **_forms("lion")}

_GPT: Settings = {"task": "text:tinyshakespeare.txt", "batch_size": 8, "steps": 600}
_IMAGES: Settings = {"task": "cifar10", "shrink": 2, "batch_size": 32, "steps": 600}
_RESNET: Settings = {**_IMAGES, "model": "resnet20:blocks=1,width=8", "steps": 500}


def gpt(width: int, options: str = "") -> Settings:
    """Return a GPT of two blocks on characters, with an output layer of its own."""
    return {**_GPT, "model": f"gpt:layers=2,width={width},context=32,heads=2,tied=false{options}"}


FAN_IN = ",fan_in_init=true"
_VIT = "vit:patch=4,width=48,layers=2,heads=3"
NETWORKS: dict[str, Settings] = {
    "gpt": gpt(48),
    "gpt_fan_in": gpt(48, FAN_IN),
    "vit": {**_IMAGES, "model": _VIT},
    "vit_fan_in": {**_IMAGES, "model": _VIT + FAN_IN},
    "resnet": _RESNET,
    "mlp": {**_IMAGES, "shrink": 4, "model": "mlp:width=64", "norm": "none", "steps": 800},
    "wide_gpt": gpt(96),
    "wide_gpt_fan_in": gpt(96, FAN_IN),
    "resnet_layer_norm": {**_RESNET, "norm": "layer"},
    # nanoGPT's: the output layer is the embedding.
    "gpt_byte_pairs": {
        **_GPT,
        "task": "bpe:tinyshakespeare.txt",
        "model": "gpt:layers=2,width=48,context=32,heads=2",
        "steps": 2000,
    },
    "gpt_long": {**gpt(48), "steps": 6000},
}
TITLES = {
    "gpt": "GPT from std 0.02",
    "gpt_fan_in": "GPT from 1/√fan_in",
    "vit": "ViT from std 0.02",
    "vit_fan_in": "ViT from 1/√fan_in",
    "resnet": "ResNet-8 with batch norm",
    "mlp": "MLP without norms",
    "wide_gpt": "GPT of width 96 from std 0.02",
    "wide_gpt_fan_in": "GPT of width 96 from 1/√fan_in",
    "resnet_layer_norm": "ResNet-8 with layer norm",
    "gpt_byte_pairs": "GPT on byte pairs",
    "gpt_long": "GPT, ten times as long",
}
# The networks by which the default is decided.
DECIDING = tuple(NETWORKS)[:9]
