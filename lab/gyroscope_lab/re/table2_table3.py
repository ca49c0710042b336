"""Rotational variants train as well as their base: AdamW (RE Table 2), SGDM and Lion (RE Table 3).

The base has the best of three learning rates. They are a factor of 4 apart, which is a factor of 2 in rotation. Seeds
that are not judged choose it. "Zero-shot" is the variant at the base's learning rate, and "best shot" the variant at
the best of its own three. A variant is as good as its base if its loss is at most 0.5 % higher, and its accuracy at
most 0.01 lower: a better variant holds too. If seeds choose one learning rate for both shots, they are one row. The
special variant has the direction of Adam with L2 and the angle of AdamW, at the variant's best shot. We added variants
that rotate as their base is forecast to (`gyro.optim.follow`), equilibrium norms at the start for both, and a GPT
without the paper's gains. Differences from the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels, a vision
transformer of two narrow layers instead of DeiT, and a GPT of two narrow layers on Shakespeare. An encoder–decoder of
two narrow layers on German and English number words replaces Transformer-S on IWSLT'14. There is no ImageNet. Quick
runs have hundreds of steps. Medium runs have 2,000 steps (ResNet) and 1,500 (others), 7 to 10 times 1/(lr·wd), the time
in which a norm adapts (paper: 12 to 39). They leave out Transformer-S, which learns number words suddenly, at a
different step for each seed. Scores have a spread of 0.2 before that step and none after it. The score is the loss on
held-out data. The paper reports perplexity, which is its exponential, and BLEU. The loss is per character in quick runs
and per byte pair in medium ones. The paper's Transformer-S has a weight decay of 1e-4, at which its variant hardly
rotates (zero-shot BLEU is 19.9, AdamW's is 34.6). Here all arms have a weight decay at which norms settle. At the
paper's size it is that of the paper's best shot, 0.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.choices import best_part, choose, of_chosen
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._drawing import draw_scores
from gyroscope_lab.re._networks import BYTE_PAIR_GPT, GPT, RESNET, TRANSFORMER, VIT

CLAIMS = {
    "table2": "Rotational AdamW, and the special variant, match AdamW (RE Table 2)",
    "table3": "Rotational SGDM and Lion match theirs (RE Table 3)",
}
COST = {
    "table2": {"quick": "7 min", "medium": "25 min", "paper": "weeks of a GPU"},
    "table3": {"quick": "3 min", "medium": "15 min", "paper": "a week of a GPU"},
}
VARIANTS = {"AdamW": "rotational-adamw", "SGDM": "rotational-sgd", "Lion": "rotational-lion"}
# Factors of the learning rate.
FACTORS = {", lr ÷ 4": 0.25, ", lr × 4": 4.0}
# A variant that is worse by at most so much is as good as its base: accuracy, and loss as a share.
ACCURACY_MARGIN = 0.01
LOSS_MARGIN = 0.005
TRANSFORMER_S = "Transformer-S"
VIT_NAME = "vision transformer"
LARGE_BATCH = "ResNet, batch 2048"
SPECIAL = "special variant"
NO_GAIN = "rotational AdamW without gains"
STARTED = " from equilibrium norms"
FOLLOWING = ", follow"


@dataclass(frozen=True)
class Config(Arms):
    """Base optimizers and their variants on several networks. An arm is named by its network and its method."""

    rows: tuple[tuple[str, str], ...] = ()
    """(network, base optimizer)."""

    def methods(self, network: str) -> list[str]:
        """Return the methods that were tried on a network."""
        return [arm.removeprefix(f"{network}: ") for arm in self.parts if arm.startswith(f"{network}: ")]

    def shots(self, network: str, method: str) -> list[str]:
        """Return the arms of a method: at each of its learning rates."""
        wanted = [f"{network}: {method}{words}" for words in ("", *FACTORS)]
        return [arm for arm in wanted if arm in self.parts]

    @property
    def families(self) -> list[tuple[str, list[str]]]:
        """The arms to choose from, and the score that decides."""
        pairs = [(network, method) for network, base in self.rows for method in (base, f"rotational {base}")]
        return [(score_of(network), self.shots(network, method)) for network, method in pairs]

    @property
    def candidates(self) -> list[str]:
        """All arms to choose from."""
        return [arm for _, shots in self.families for arm in shots]

    def judged_parts(self, choosing: Mapping[str, Array]) -> list[str]:
        """Return the base at its best, the variant zero-shot and at its best, the special variant, and our own arms."""
        best = [best_part(self, choosing, score, shots) for score, shots in self.families]
        judged = {arm for each in best for arm in (each, variant_of(each), special_of(each))}
        to_choose = {*self.candidates, *map(special_of, self.candidates)}
        ours = any(arm.endswith(FOLLOWING) for arm in self.parts)
        plain = {f"{network}: {base}" for network, base in self.rows if ours}  # which arms of ours are compared with
        return [arm for arm in self.parts if arm not in to_choose or arm in judged | plain]


def variant_of(arm: str) -> str:
    """Return the rotational variant at the learning rate of a base, or the arm itself if it is one.

    >>> variant_of("GPT: AdamW, lr × 4"), variant_of("GPT: rotational AdamW")
    ('GPT: rotational AdamW, lr × 4', 'GPT: rotational AdamW')
    """
    return arm if ": rotational " in arm else arm.replace(": ", ": rotational ")


def special_of(arm: str) -> str:
    """Return the special variant at the learning rate of a rotational arm, or the arm itself if it is not rotational.

    >>> special_of("GPT: rotational AdamW, lr × 4")
    'GPT: special variant, lr × 4'
    """
    return arm.replace("rotational AdamW", SPECIAL)


def score_of(network: str) -> str:
    """Return the score that is drawn and that chooses."""
    return "loss" if network in ("GPT", TRANSFORMER_S) else "accuracy"


def _arms(
    network: str,
    base: str,
    settings: dict[str, Any],
    *,
    gain: bool = False,
    special_beta: float = 0.9,
    ours: bool = True,
    more: bool = False,
) -> dict[str, Any]:
    """Return base, variant and special variant, each at three learning rates.

    Arguments:
        network, base: names of the network and of the base optimizer.
        settings: of the base's training.
        gain: whether the variants have a gain for each weight vector, as the paper gives them to transformers.
        special_beta: the special variant's average of updates. Table 4 has one for each network: updates of Adam with
            L2 shrink at first, and a long average remembers that for the whole of a short run.
        ours: also a variant that follows the forecast of its base.
        more: also variants without gains, and both from norms of equilibrium.
    """
    variant = {**settings, "optimizer": VARIANTS[base], "gain": gain}
    methods = {base: settings, f"rotational {base}": variant}
    if base == "AdamW":
        methods[SPECIAL] = {**variant, "optimizer": f"rotational-adam-l2:beta={special_beta}"}
    methods |= {
        name + words: {**own, "lr": factor * own["lr"]}
        for name, own in methods.items()
        for words, factor in FACTORS.items()
    }
    if ours:
        methods[f"rotational {base}{FOLLOWING}"] = {**variant, "follow": True}
    if more:
        methods[NO_GAIN] = {**variant, "gain": False}
        methods["AdamW" + STARTED] = {**settings, "start": "equilibrium"}
        methods["rotational AdamW" + STARTED] = {**variant, "start": "equilibrium"}
    return {f"{network}: {method}": own for method, own in methods.items()}


def _config(rows: dict[tuple[str, str], dict[str, Any]], **more: Any) -> Config:
    """Return the config of these rows, by network and base optimizer."""
    arms = {arm: own for arms in rows.values() for arm, own in arms.items()}
    return Config({"track": False}, arms, choosing_seeds=2, rows=tuple(rows), **more)


def _row(network: str, base: str, settings: dict[str, Any], **options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(network, base): _arms(network, base, settings, **options)}


_ADAMW = {"optimizer": "adamw"}
QUICK = {
    "table2": _config(
        _row("ResNet", "AdamW", {**RESNET, **_ADAMW, "lr": 1e-2, "weight_decay": 1.0, "steps": 300})
        | _row(VIT_NAME, "AdamW", {**VIT, **_ADAMW, "lr": 2e-3, "weight_decay": 1.0, "steps": 200, "warmup": 20})
        | _row(
            "GPT",
            "AdamW",
            {**GPT, **_ADAMW, "lr": 4e-3, "weight_decay": 1.25, "steps": 300, "warmup": 15},
            gain=True,
            more=True,
        )
        | _row(
            TRANSFORMER_S,
            "AdamW",
            {**TRANSFORMER, **_ADAMW, "lr": 4e-3, "weight_decay": 1.25, "steps": 500, "warmup": 20}
            | {"betas": (0.9, 0.98)},
            gain=True,
        )
    ),
    "table3": _config(
        _row("ResNet", "SGDM", {**RESNET, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-3, "steps": 300})
        | _row("ResNet", "Lion", {**RESNET, "optimizer": "lion", "lr": 1e-3, "weight_decay": 5.0, "steps": 300})
    ),
}
_LONG = {**RESNET, "steps": 2000, "warmup": 50, "augment": True}
_TRANSFORMERS = {**_ADAMW, "lr": 4e-3, "weight_decay": 1.25, "steps": 1500, "warmup": 75}
MEDIUM = {
    "table2": _config(
        _row("ResNet", "AdamW", {**_LONG, **_ADAMW, "lr": 1e-2, "weight_decay": 0.5}, ours=False)
        | _row(VIT_NAME, "AdamW", {**VIT, **_TRANSFORMERS, "augment": True}, ours=False)
        | _row("GPT", "AdamW", {**BYTE_PAIR_GPT, **_TRANSFORMERS}, gain=True, ours=False),
        seeds=8,
    ),
    "table3": _config(
        _row("ResNet", "SGDM", {**_LONG, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-3}, ours=False)
        | _row("ResNet", "Lion", {**_LONG, "optimizer": "lion", "lr": 1e-3, "weight_decay": 5.0}, ours=False),
        seeds=10,
    ),
}
PAPER = {
    "table2": _config(
        _row("ResNet", "AdamW", preset("re/resnet20-adamw"))
        | _row(LARGE_BATCH, "AdamW", preset("re/resnet20-adamw-2048"), special_beta=0.0)
        | _row(VIT_NAME, "AdamW", preset("re/deit-tiny"), special_beta=0.99)
        | _row("GPT", "AdamW", preset("re/gpt"), gain=True, more=True)
        | _row(TRANSFORMER_S, "AdamW", preset("re/transformer-s-best"), gain=True, special_beta=0.99)
    ),
    "table3": _config(
        _row("ResNet", "SGDM", preset("re/resnet20-sgd"))
        | _row(LARGE_BATCH, "SGDM", preset("re/resnet20-sgd-2048"))
        | _row("ResNet", "Lion", preset("re/resnet20-lion"))
        | _row(LARGE_BATCH, "Lion", preset("re/resnet20-lion-2048"))
    ),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Return the loss on data held out, and the accuracy if there is one."""
    return {"accuracy": nan, **train_arm(trial)}


def plot(result: Result[Config]) -> Figure:
    """Draw scores by network: seeds as dots, means with their intervals."""
    networks = list(dict.fromkeys(network for network, _ in result.config.rows))
    titles = (f"{network}: {score_of(network)}" for network in networks)
    columns = 2 if len(networks) % 2 == 0 else min(len(networks), 3)
    rows = len(networks) // columns
    # Names of methods are long, and stand below each row.
    panels = Panels(*titles, rows=rows, horizontal_spacing=0.12 if columns < 3 else 0.06, vertical_spacing=0.2)
    for panel, network in enumerate(networks):
        for method in result.config.methods(network):
            scores = of_arm(result, score_of(network), f"{network}: {method}")
            if np.isnan(scores).all():  # a learning rate that was not chosen
                continue
            colour = COLOURS[1 if "rotational" in method else 2 if SPECIAL in method else 0]
            draw_scores(panels, panel, method, scores, colour)
    panels.figure.update_xaxes(tickangle=40, tickfont={"size": 10})
    figure = panels.titled("Base optimizers and their rotational variants")
    return figure.update_layout(height=200 + 440 * rows, margin={"b": 190, "r": 90})


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether each variant is as good as its base, zero-shot and at its best."""
    config = result.config

    def same(network: str, method: str) -> list[str]:
        return [f"{network}: {method}"] * len(result["loss"])

    judged = []
    for network, base in config.rows:
        variant = f"rotational {base}"
        best, best_variant = (
            choose(result, score_of(network), config.shots(network, name)) for name in (base, variant)
        )
        zero_shot = [variant_of(arm) for arm in best]
        pairs = {f"{variant}, zero-shot": (best, zero_shot)}
        if best_variant == zero_shot:
            pairs = {f"{variant}, zero-shot and best shot": (best, zero_shot)}
        else:
            pairs[f"{variant}, best shot"] = (best, best_variant)
        if SPECIAL in config.methods(network):
            specials = [special_of(arm) for arm in best_variant]
            # Records of before had the special variant at one learning rate.
            known = [arm if arm in config.parts else f"{network}: {SPECIAL}" for arm in specials]
            pairs[f"{SPECIAL}, best shot"] = (best, known)
        if variant + FOLLOWING in config.methods(network):
            follower = same(network, variant + FOLLOWING)
            pairs[f"{variant} that follows its base (ours)"] = (same(network, base), follower)
        if base + STARTED in config.methods(network):
            pairs[f"{variant}, both{STARTED} (ours)"] = (
                same(network, base + STARTED),
                same(network, variant + STARTED),
            )
        judged += [claim for name, arms in pairs.items() for claim in _matches(result, network, name, *arms)]
    return judged


def _matches(result: Result[Config], network: str, method: str, base: list[str], arms: list[str]) -> list[Claim]:
    """Return the claims that loss and accuracy, if there is one, are no worse. Each seed may have other arms."""
    ratio = of_chosen(result, "loss", arms) / of_chosen(result, "loss", base)
    judged = [at_most(f"{network}: loss of {method}, over its base's", 1 + LOSS_MARGIN, ratio)]
    difference = of_chosen(result, "accuracy", arms) - of_chosen(result, "accuracy", base)
    if not np.isnan(difference).all():
        sentence = f"{network}: accuracy of {method}, less its base's"
        judged.append(at_least(sentence, -ACCURACY_MARGIN, difference))
    return judged
