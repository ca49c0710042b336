"""Rotational variants train as well as their base: AdamW (RE Table 2), SGDM and Lion (RE Table 3).

Zero-shot is the base's learning rate and weight decay. Best shot is the best of that, a quarter of the learning rate
and four times it, which is half and twice the rotation, for base and variant alike. Seeds that are not judged choose
it. A variant matches its base if the loss differs by at most 0.5 %, and the accuracy by at most 0.01. The special
variant has the direction of Adam with L2 and the angle of AdamW. Beside the paper's: variants that turn as their base
is forecast to (`gyro.optim.follow`), initial norms of equilibrium for both, and a GPT without the gains that the paper
gives it. Changed against the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels, a vision transformer of two narrow
layers for DeiT, a GPT of two narrow layers on characters, an encoder–decoder of two narrow layers on German and English
number words for Transformer-S on IWSLT'14, hundreds of steps; no ImageNet, no batches of 2048. The loss is that on data
held out, per character for the GPT and Transformer-S, where the paper has perplexity and BLEU. The paper's
Transformer-S has a weight decay of 1e-4, at which its variant hardly turns (zero-shot BLEU 19.9 of AdamW's 34.6); here
all arms have one at which norms settle, at the paper's size that of its best shot, 0.2.
"""

from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.choices import choose, of_chosen
from gyroscope_lab.framework.claims import Claim, agrees, near
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._drawing import draw_scores
from gyroscope_lab.re._networks import GPT, RESNET, TRANSFORMER, VIT

CLAIMS = {
    "table2": "Rotational AdamW, and the special variant, match AdamW (RE Table 2)",
    "table3": "Rotational SGDM and Lion match theirs (RE Table 3)",
}
COST = {
    "table2": {"quick": "7 min", "paper": "weeks of a GPU"},
    "table3": {"quick": "3 min", "paper": "a week of a GPU"},
}
VARIANTS = {"AdamW": "rotational-adamw", "SGDM": "rotational-sgd", "Lion": "rotational-lion"}
# Of the learning rate; best shot is the best of these and of the base's own.
FACTORS = {", lr ÷ 4": 0.25, ", lr × 4": 4.0}
# A variant that differs by at most so much matches its base: accuracy, and loss as a share.
ACCURACY_MARGIN = 0.01
LOSS_MARGIN = 0.005
TRANSFORMER_S = "Transformer-S"
SPECIAL = "special variant"
NO_GAIN = "rotational AdamW without gains"
STARTED = " from equilibrium norms"
FOLLOWING = ", follow"


@dataclass(frozen=True)
class Config(Arms):
    """Base optimizers and their variants on several networks; an arm is called by its network and its method."""

    rows: tuple[tuple[str, str], ...] = ()
    """(network, base optimizer)."""

    def methods(self, network: str) -> list[str]:
        """What was tried on a network."""
        return [arm.removeprefix(f"{network}: ") for arm in self.parts if arm.startswith(f"{network}: ")]

    def shots(self, network: str, method: str) -> list[str]:
        """Return the arms of a method: at each of its learning rates."""
        wanted = [f"{network}: {method}{words}" for words in ("", *FACTORS)]
        return [arm for arm in wanted if arm in self.parts]

    @property
    def candidates(self) -> list[str]:
        """The arms between which is chosen."""
        pairs = [(network, method) for network, base in self.rows for method in (base, f"rotational {base}")]
        return [arm for pair in pairs for arm in self.shots(*pair)]


def score_of(network: str) -> str:
    """Return what is drawn and chosen by."""
    return "loss" if network in ("GPT", TRANSFORMER_S) else "accuracy"


def _arms(
    network: str,
    base: str,
    settings: dict[str, Any],
    gain: bool = False,
    more: bool = False,
    special_beta: float = 0.9,
) -> dict[str, Any]:
    """Base and variant, each at three learning rates; with `more` the arms beyond zero-shot and best shot."""
    variant = {**settings, "optimizer": VARIANTS[base], "gain": gain}
    methods = {base: settings, f"rotational {base}": variant}
    methods |= {
        name + words: {**own, "lr": factor * own["lr"]}
        for name, own in methods.items()
        for words, factor in FACTORS.items()
    }
    # A vision transformer costs as much as both others.
    if base == "AdamW" and network != "vision transformer":
        # Table 4 has this β: updates of Adam with L2 shrink at first, and β = 0.99 remembers that for a short run.
        methods[SPECIAL] = {**variant, "optimizer": f"rotational-adam-l2:beta={special_beta}"}
    methods[f"rotational {base}{FOLLOWING}"] = {**variant, "follow": True}
    if more:
        methods[NO_GAIN] = {**variant, "gain": False}
        methods["AdamW" + STARTED] = {**settings, "start": "equilibrium"}
        methods["rotational AdamW" + STARTED] = {**variant, "start": "equilibrium"}
    return {f"{network}: {method}": own for method, own in methods.items()}


def _table2(
    resnet: dict[str, Any],
    vit: dict[str, Any],
    gpt: dict[str, Any],
    transformer: dict[str, Any],
    transformer_beta: float,
) -> Config:
    arms = {
        **_arms("ResNet", "AdamW", resnet),
        **_arms("vision transformer", "AdamW", vit),
        **_arms("GPT", "AdamW", gpt, gain=True, more=True),
        **_arms(TRANSFORMER_S, "AdamW", transformer, gain=True, special_beta=transformer_beta),
    }
    networks = ("ResNet", "vision transformer", "GPT", TRANSFORMER_S)
    return Config({"track": False}, arms, choosing_seeds=2, rows=tuple((name, "AdamW") for name in networks))


def _table3(sgd: dict[str, Any], lion: dict[str, Any]) -> Config:
    arms = {**_arms("ResNet", "SGDM", sgd), **_arms("ResNet", "Lion", lion)}
    return Config({"track": False}, arms, choosing_seeds=2, rows=(("ResNet", "SGDM"), ("ResNet", "Lion")))


_ADAMW = {"optimizer": "adamw"}
QUICK = {
    "table2": _table2(
        {**RESNET, **_ADAMW, "lr": 1e-2, "weight_decay": 1.0, "steps": 300},
        {**VIT, **_ADAMW, "lr": 2e-3, "weight_decay": 1.0, "steps": 200, "warmup": 20},
        {**GPT, **_ADAMW, "lr": 4e-3, "weight_decay": 1.25, "steps": 300, "warmup": 15},
        {**TRANSFORMER, **_ADAMW, "lr": 4e-3, "weight_decay": 1.25, "steps": 500, "warmup": 20, "betas": (0.9, 0.98)},
        transformer_beta=0.9,
    ),
    "table3": _table3(
        {**RESNET, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-3, "steps": 300},
        {**RESNET, "optimizer": "lion", "lr": 1e-3, "weight_decay": 5.0, "steps": 300},
    ),
}
PAPER = {
    "table2": _table2(
        preset("re/resnet20-adamw"),
        preset("re/deit-tiny"),
        preset("re/gpt"),
        preset("re/transformer-s-best"),
        transformer_beta=0.99,  # Table 4, for 22,021 steps
    ),
    "table3": _table3(preset("re/resnet20-sgd"), preset("re/resnet20-lion")),
}


def measure(trial: Trial[Config]) -> Measurements:
    """The loss on data held out, and the accuracy where there is one."""
    return {"accuracy": nan, **train_arm(trial)}


def _scores(result: Result[Config], network: str, method: str) -> Array:
    return of_arm(result, score_of(network), f"{network}: {method}")


def plot(result: Result[Config]) -> Figure:
    """Scores by network: seeds as dots, means with their intervals."""
    networks = list(dict.fromkeys(network for network, _ in result.config.rows))
    titles = (f"{network}: {score_of(network)}" for network in networks)
    rows = max(len(networks) // 2, 1)
    # Names of methods are long, and stand below each row.
    panels = Panels(*titles, rows=rows, horizontal_spacing=0.12, vertical_spacing=0.2)
    for panel, network in enumerate(networks):
        for method in result.config.methods(network):
            colour = COLOURS[1 if "rotational" in method else 2 if method == SPECIAL else 0]
            draw_scores(panels, panel, method, _scores(result, network, method), colour)
    panels.figure.update_xaxes(tickangle=40, tickfont={"size": 10})
    figure = panels.titled("Base optimizers and their rotational variants")
    return figure.update_layout(height=200 + 440 * rows, margin={"b": 190})


def claims(result: Result[Config]) -> list[Claim]:
    """Each variant matches its base, zero-shot and at its best."""
    config = result.config

    def one(network: str, method: str) -> list[str]:
        return [f"{network}: {method}"] * len(result["loss"])

    judged = []
    for network, base in config.rows:
        variant = f"rotational {base}"
        plain = one(network, base)
        best, best_variant = (
            choose(result, score_of(network), config.shots(network, name)) for name in (base, variant)
        )
        pairs = {
            f"{variant}, zero-shot": (plain, one(network, variant)),
            f"{variant}, best shot": (best, best_variant),
            f"{variant} that follows its base (ours)": (plain, one(network, variant + FOLLOWING)),
        }
        if SPECIAL in config.methods(network):
            pairs[SPECIAL] = (plain, one(network, SPECIAL))
        if base + STARTED in config.methods(network):
            pairs[f"{variant}, both{STARTED} (ours)"] = (one(network, base + STARTED), one(network, variant + STARTED))
        judged += [claim for name, arms in pairs.items() for claim in _matches(result, network, name, *arms)]
    return judged


def _matches(result: Result[Config], network: str, method: str, base: list[str], arms: list[str]) -> list[Claim]:
    """Return the claims that loss, and accuracy where there is one, are those of the base; arms for each seed."""
    ratio = of_chosen(result, "loss", arms) / of_chosen(result, "loss", base)
    judged = [agrees(f"{network}: loss of {method}, over its base's", 1.0, ratio, within=LOSS_MARGIN)]
    difference = of_chosen(result, "accuracy", arms) - of_chosen(result, "accuracy", base)
    if not np.isnan(difference).all():
        sentence = f"{network}: accuracy of {method}, less its base's"
        judged.append(near(sentence, 0.0, difference, margin=ACCURACY_MARGIN))
    return judged
