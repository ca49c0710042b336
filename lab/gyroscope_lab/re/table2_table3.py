"""Rotational variants train as well as their base: AdamW (RE Table 2), SGDM and Lion (RE Table 3).

Zero-shot is the base's learning rate and weight decay; best shot the better of that and four times the learning rate,
which is twice the rotation, for base and variant alike. The special variant has the direction of Adam with L2 and the
angle of AdamW. Beside the paper's: variants that turn as their base is forecast to (`gyro.optim.follow`), initial norms
of equilibrium for both, and a GPT without the gains that the paper gives it. Changed against the paper: ResNet-8 on a
part of CIFAR-10 of 8 × 8 pixels, a vision transformer of two narrow layers for DeiT, a GPT of two narrow layers on
characters, an encoder–decoder of two narrow layers on German and English number words for Transformer-S on IWSLT'14,
hundreds of steps; no ImageNet, no batches of 2048. Scores are accuracy, and loss per character on data held out for the
GPT and Transformer-S, where the paper has perplexity and BLEU. The paper's Transformer-S has a weight decay of 1e-4, at
which its variant hardly turns (zero-shot BLEU 19.9 of AdamW's 34.6); here all arms have one at which norms settle, at
the paper's size that of its best shot, 0.2.
"""

from dataclasses import dataclass
from math import nan
from typing import Any

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, best_arm, of_arm, train_arm
from gyroscope_lab.framework.claims import Claim, at_least, at_most, confidence_interval
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
TUNED = ", lr × 4"
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


def score_of(network: str) -> str:
    """What is compared."""
    return "loss" if network in ("GPT", TRANSFORMER_S) else "accuracy"


def _arms(
    network: str,
    base: str,
    settings: dict[str, Any],
    gain: bool = False,
    more: bool = False,
    special_beta: float = 0.9,
) -> dict[str, Any]:
    """Base and variant, each at two learning rates; with `more` the arms beyond zero-shot and best shot."""
    variant = {**settings, "optimizer": VARIANTS[base], "gain": gain}
    methods = {base: settings, f"rotational {base}": variant}
    methods |= {name + TUNED: {**own, "lr": 4 * own["lr"]} for name, own in methods.items()}
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
    return Config({"track": False}, arms, rows=tuple((name, "AdamW") for name in networks))


def _table3(sgd: dict[str, Any], lion: dict[str, Any]) -> Config:
    arms = {**_arms("ResNet", "SGDM", sgd), **_arms("ResNet", "Lion", lion)}
    return Config({"track": False}, arms, rows=(("ResNet", "SGDM"), ("ResNet", "Lion")))


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


def _best(result: Result[Config], network: str, method: str) -> Array:
    """Scores at the better of the two learning rates."""
    arms = [f"{network}: {method}", f"{network}: {method}{TUNED}"]
    return of_arm(result, score_of(network), best_arm(result, score_of(network), arms))


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
    """Each variant is within the interval of its base or better, zero-shot and at its best."""
    judged = []
    for network, base in result.config.rows:
        plain = _scores(result, network, base)
        best = _best(result, network, base)
        variant = f"rotational {base}"
        judged += [
            _not_worse(f"{variant}, zero-shot", network, plain, _scores(result, network, variant)),
            _not_worse(f"{variant}, best shot", network, best, _best(result, network, variant)),
        ]
        following = _scores(result, network, variant + FOLLOWING)
        judged.append(_not_worse(f"{variant} that follows its base", network, plain, following))
        if SPECIAL in result.config.methods(network):
            judged.append(_not_worse(SPECIAL, network, plain, _scores(result, network, SPECIAL)))
        if base + STARTED in result.config.methods(network):
            started = _scores(result, network, base + STARTED)
            rotating = _scores(result, network, variant + STARTED)
            judged.append(_not_worse(f"{variant}, both{STARTED}", network, started, rotating))
    return judged


def _not_worse(method: str, network: str, base: Array, scores: Array) -> Claim:
    """The claim that scores lie within the interval of the base's, or on its better side."""
    interval = confidence_interval(base)
    score = score_of(network)
    sentence = f"{network}: {score} of {method} against the interval of its base"
    return at_most(sentence, interval.high, scores) if score == "loss" else at_least(sentence, interval.low, scores)
