"""k-Adam for each k and strategy at the best of the same learning rates, as compared in Figures 6, 15 and 16."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import train_and_read
from gyroscope_lab.framework.choices import best_part, choose, of_chosen
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, HEIGHT, Figure, Panels

STRATEGIES = ("inverse_exp", "exp", "scaled", "naive")
# A gain below which a strategy fails: accuracy, or loss in nats.
FAILS = -0.05
# The range of panels that show scores near AdamW's: accuracy, or loss in nats, minus AdamW's.
NEAR = {"accuracy": (-0.1, 0.035), "loss": (-0.25, 0.4)}


class Variant(NamedTuple):
    """A k-Adam without its learning rate. With k = 1 (Adam or AdamW) all strategies are the same."""

    decay: str
    strategy: str
    k: int


ADAMW = Variant("decoupled", "inverse_exp", 1)
TWO_ADAM = Variant("decoupled", "inverse_exp", 2)


@dataclass(frozen=True)
class KAdamConfig:
    """Training settings that all runs share, and those that vary. `decays` has the weight decay of each kind."""

    base: dict[str, Any]
    lrs: tuple[float, ...]
    decays: dict[str, float]
    ks: tuple[int, ...] = (1, 2, 3, 4, 5)
    quantity: str = "loss"
    seeds: int = 3
    choosing_seeds: int = 0

    @property
    def variants(self) -> list[Variant]:
        """Every k-Adam once."""
        return [
            Variant(decay, strategy, k)
            for decay in self.decays
            for strategy in STRATEGIES
            for k in self.ks
            if k > 1 or strategy == ADAMW.strategy
        ]

    @property
    def parts(self) -> list[tuple[Variant, float]]:
        """Every k-Adam at every learning rate."""
        return self.parts_of(self.variants)

    def parts_of(self, variants: Sequence[Variant]) -> list[tuple[Variant, float]]:
        """Return these variants at every learning rate."""
        return [(variant, lr) for variant in variants for lr in self.lrs]

    def judged_parts(self, choosing: Mapping[str, Array]) -> list[tuple[Variant, float]]:
        """Return every k-Adam at its best learning rate."""
        return [best_part(self, choosing, self.quantity, self.parts_of([variant])) for variant in self.variants]


def measure(trial: Trial[KAdamConfig]) -> Measurements:
    """Train one k-Adam at one learning rate, and return its scores on data held out at the end."""
    config = trial.config
    variant, lr = trial.part
    coupled = str(variant.decay == "coupled").lower()
    settings = {
        **config.base,
        "optimizer": f"k-adam:k={variant.k},strategy={variant.strategy},coupled={coupled}",
        "lr": lr,
        "weight_decay": config.decays[variant.decay],
        "seed": trial.seed,
        "evaluations": 1,
        "track": False,
    }
    measured = train_and_read(trial, settings, lambda run: {})
    return {config.quantity: measured[config.quantity]}


def score(result: Result[KAdamConfig], *variants: Variant) -> Array:
    """Return accuracy, or loss with its sign changed, of the best variant at its best learning rate, for each seed."""
    config = result.config
    sign = -1.0 if config.quantity == "loss" else 1.0
    chosen = choose(result, config.quantity, config.parts_of(variants))
    return sign * of_chosen(result, config.quantity, chosen)


def plot(result: Result[KAdamConfig]) -> Figure:
    """Draw the best score of each strategy over k, with seeds as dots, in a range near AdamW's and in full."""
    config = result.config
    sign = -1.0 if config.quantity == "loss" else 1.0
    titles = [f"{decay} weight decay{what}" for what in (", near AdamW", "") for decay in config.decays]
    rows = min(len(config.decays), 2)
    panels = Panels(*titles, rows=rows, horizontal_spacing=0.08, vertical_spacing=0.16)
    for i, decay in enumerate(config.decays):
        adam = float(sign * score(result, Variant(decay, ADAMW.strategy, 1)).mean())
        for panel in (i, len(config.decays) + i):
            for strategy, colour in zip(STRATEGIES, COLOURS, strict=False):
                variants = [Variant(decay, strategy if k > 1 else ADAMW.strategy, k) for k in config.ks]
                scores = [sign * score(result, variant) for variant in variants]
                panels.line(panel, config.ks, [values.mean() for values in scores], strategy, colour)
                for k, values in zip(config.ks, scores, strict=True):
                    panels.dots(panel, [k] * len(values), values, colour=colour, size=5)
            panels.level(panel, float(sign * score(result, ADAMW).mean()), dash="dot")
        panels.figure.update_yaxes(range=[adam + change for change in NEAR[config.quantity]], **panels.place(i))
    panels.figure.update_xaxes(dtick=1)
    panels.figure.update_xaxes(title_text="k", row=rows)
    panels.figure.update_yaxes(title_text=f"{config.quantity} on data held out", col=1)
    return panels.titled("k-Adam at the best of the same learning rates (dotted: AdamW)").update_layout(
        height=HEIGHT * (1 + rows) / 2
    )


def claims(result: Result[KAdamConfig]) -> list[Claim]:
    """Judge whether 2-Adam with inverse exp is the best, and whether the naive strategy fails for large k."""
    config = result.config
    adamw = score(result, ADAMW)
    two_adam = score(result, TWO_ADAM)
    unit = "nats of loss" if config.quantity == "loss" else config.quantity
    others = [variant for variant in config.variants if variant not in (ADAMW, TWO_ADAM)]
    second = score(result, *others)
    judged = [
        at_least(f"2-Adam, inverse exp: gain over AdamW, {unit}", 0.0, two_adam - adamw),
        at_least(f"2-Adam, inverse exp: gain over the best other k-Adam, {unit}", 0.0, two_adam - second),
    ]
    for strategy in STRATEGIES[:-1]:
        several = [variant for variant in config.variants if variant.strategy == strategy and variant.k > 1]
        gain = score(result, *several) - adamw
        judged.append(at_least(f"{strategy} at its best k > 1 and kind of decay: gain over AdamW, {unit}", 0.0, gain))
    naive = score(result, Variant("decoupled", "naive", max(config.ks))) - adamw
    return [*judged, at_most(f"naive at k = {max(config.ks)}: gain over AdamW, {unit}", FAILS, naive)]
