"""Optimizers of the sphere family against AdamW at equal tuning, on GPTs of two widths and on a CNN (ours).

AdamW, Muon, AdamH, MuonH and RotationalAdamW without and with gains train the same networks. Every optimizer has as
many learning rates as AdamW, each without warmup and with a warmup of a tenth of the run. The learning rates of AdamH
and MuonH are AdamW's, converted by the law of Hyperball to the same memory at the peak of the schedule. "Tuned" is the
best setting and "converted" is the setting at which AdamW is best, both chosen by seeds that are not judged. The
schedule has the same shape for all. torch's Muon takes no convolutions, so the CNN has neither Muon nor MuonH.

In the quick size all best learning rates are inside the grid, except for AdamW's on the wide GPT, which is at the lower
end. In four of the other fifteen cases the interval does not decide whether the ends are worse. `sphere_family_adamw`
has one lower learning rate for AdamW, which is worse.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.theory import AdamW, Hyperball, match
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.arms import train_arm as measure
from gyroscope_lab.framework.choices import choose, of_chosen, scores_at_best
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

__all__ = ["measure"]

CLAIMS = {
    "sphere_family_gpt": "GPT: the sphere family ends as low as AdamW, tuned and at converted learning rates (ours).",
    "sphere_family_wide_gpt": "Wide GPT: the sphere family ends as low as AdamW, tuned and at converted lrs (ours).",
    "sphere_family_adamw": "Wide GPT: AdamW's best learning rate is below that of the sphere family, at 3e-3 (ours).",
    "sphere_family_cnn": "CNN: the sphere family ends as low as AdamW, tuned and at converted learning rates (ours).",
}
COST = {
    "sphere_family_gpt": {"quick": "20 min", "paper": "2 h"},
    "sphere_family_wide_gpt": {"quick": "30 min", "paper": "8 h"},
    "sphere_family_adamw": {"quick": "3 min", "paper": "1 h"},
    "sphere_family_cnn": {"quick": "10 min", "paper": "2 h"},
}
MUONS = ("Muon", "MuonH")
# Muon's correlation time at momentum 0.95 (docs/theory.md, "Hyperball").
MUON = {"momentum": 0.95, "correlation_time": 23.3}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw"},
    "Muon": {"optimizer": "muon"},
    "AdamH": {"optimizer": "adamh"},
    "MuonH": {"optimizer": "muonh"},
    "RotationalAdamW": {"optimizer": "rotational-adamw"},
    "RotationalAdamW with gains": {"optimizer": "rotational-adamw", "gain": True},
}
# A setting is as good as another if its loss is at most 1 % higher.
AS_GOOD = 1.01


@dataclass(frozen=True)
class Config(Arms):
    """Arms are an optimizer, one of AdamW's learning rates `lrs`, and a warmup as a share of the run."""

    lrs: tuple[float, ...] = ()
    warmups: tuple[float, ...] = (0.0, 0.1)

    @property
    def optimizers(self) -> list[str]:
        """The optimizers that train this network."""
        return [name for name in OPTIMIZERS if self.settings(name)[0] in self.arms]

    def settings(
        self, optimizer: str, lrs: tuple[float, ...] | None = None, warmups: tuple[float, ...] | None = None
    ) -> list[str]:
        """Return the arms of an optimizer: all, or those with these learning rates or warmups."""
        chosen_lrs = self.lrs if lrs is None else lrs
        chosen_warmups = self.warmups if warmups is None else warmups
        return [_name(optimizer, lr, warmup) for lr in chosen_lrs for warmup in chosen_warmups]


def _name(optimizer: str, lr: float, warmup: float) -> str:
    return f"{optimizer}, AdamW's lr {lr:g}, warmup {warmup:g}"


def converted(optimizer: str, lr: float, weight_decay: float) -> dict[str, Any]:
    """Return the settings that give hidden weights the same memory as AdamW at this lr."""
    settings = dict(OPTIMIZERS[optimizer])
    if not optimizer.endswith("H"):
        # Muon's lr is adjusted to AdamW's updates, and RotationalAdamW has AdamW's angle.
        return {**settings, "lr": lr}
    momentum: dict[str, Any] = MUON if optimizer == "MuonH" else {"betas": (0.9, 0.999)}
    matched = match(AdamW(lr, weight_decay), Hyperball, **momentum).rule.lr
    return {"optimizer": f"{settings['optimizer']}:plain_lr={lr}", "lr": matched}


def family(
    network: dict[str, Any],
    lrs: tuple[float, ...],
    seeds: int,
    choosing_seeds: int,
    optimizers: Iterable[str] = OPTIMIZERS,
) -> Config:
    """Return a config with these optimizers at every learning rate and warmup."""
    is_cnn = network["model"].startswith("cnn")
    arms = {
        _name(optimizer, lr, warmup): {
            **converted(optimizer, lr, network["weight_decay"]),
            "warmup": round(warmup * network["steps"]),
        }
        for optimizer in optimizers
        if not (is_cnn and optimizer in MUONS)
        for lr in lrs
        for warmup in Config.warmups
    }
    return Config({"track": False, **network}, arms, seeds, lrs, choosing_seeds=choosing_seeds)


TEXT = {"task": "text:tinyshakespeare.txt", "batch_size": 16, "weight_decay": 0.3}
PICTURES = {"task": "cifar10", "weight_decay": 0.3}
SMALL_GPT, SMALL_WIDE_GPT = (
    {**TEXT, "model": f"gpt:layers=2,width={width},context=32", "steps": 600} for width in (32, 64)
)
SMALL_CNN = {**PICTURES, "model": "cnn:width=16", "shrink": 4, "batch_size": 32, "steps": 600}
# A pilot on one seed, which neither chooses nor is judged, had the best learning rate of every optimizer inside.
GPT_LRS = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
CNN_LRS = (3e-3, 1e-2, 3e-2, 1e-1)
QUICK = {
    "sphere_family_gpt": family(SMALL_GPT, GPT_LRS, seeds=4, choosing_seeds=2),
    "sphere_family_wide_gpt": family(SMALL_WIDE_GPT, GPT_LRS, seeds=4, choosing_seeds=2),
    # At the width of 64 AdamW was best at the lower end, 3e-3. One lower learning rate, with the same seeds.
    "sphere_family_adamw": family(SMALL_WIDE_GPT, (1e-3, 3e-3, 1e-2), 4, 2, ["AdamW"]),
    "sphere_family_cnn": family(SMALL_CNN, CNN_LRS, seeds=6, choosing_seeds=2),
}
GPT = {**TEXT, "model": "gpt:layers=4,width=128", "steps": 2000}
WIDE_GPT = {**TEXT, "model": "gpt", "steps": 2000}
CNN = {**PICTURES, "model": "cnn", "batch_size": 128, "steps": 4000}
PAPER_LRS = (1e-3, 3e-3, 1e-2, 3e-2)
PAPER = {
    "sphere_family_gpt": family(GPT, PAPER_LRS, seeds=3, choosing_seeds=1),
    "sphere_family_wide_gpt": family(WIDE_GPT, PAPER_LRS, seeds=3, choosing_seeds=1),
    "sphere_family_adamw": family(WIDE_GPT, (3e-4, 1e-3, 3e-3), 3, 1, ["AdamW"]),
    "sphere_family_cnn": family(CNN, PAPER_LRS, seeds=3, choosing_seeds=1),
}


def losses(result: Result[Config], optimizer: str, warmup: float) -> Array:
    """Return the losses with one warmup, (seeds, learning rates)."""
    arms = result.config.settings(optimizer, warmups=(warmup,))
    return np.stack([of_arm(result, "loss", arm) for arm in arms], 1)


def plot(result: Result[Config]) -> Figure:
    """Draw the loss over AdamW's learning rate, without warmup and with it."""
    config = result.config
    titles = [f"warmup of {warmup:.0%} of the run" if warmup else "no warmup" for warmup in config.warmups]
    panels = Panels(*titles, shared_yaxes=True, horizontal_spacing=0.05)
    for panel, warmup in enumerate(config.warmups):
        for optimizer, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            if optimizer not in config.optimizers:
                continue
            of_rates = losses(result, optimizer, warmup)
            panels.line(panel, config.lrs, of_rates.mean(0), optimizer, colour)
            for of_seed in of_rates:
                panels.dots(panel, config.lrs, of_seed, colour=colour, size=5)
    panels.figure.update_xaxes(title_text="AdamW's lr", type="log", tickvals=config.lrs)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled("The sphere family at learning rates converted from AdamW's")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge each optimizer: its grid of learning rates, its need for warmup, and its losses compared with AdamW's."""
    own = [claim for optimizer in result.config.optimizers for claim in _claims_of_grid(result, optimizer)]
    return own + [claim for optimizer in result.config.optimizers[1:] for claim in _claims_of_loss(result, optimizer)]


def _claims_of_grid(result: Result[Config], optimizer: str) -> list[Claim]:
    """Judge whether the best learning rate is inside the grid, and whether warmup is needed."""
    config = result.config

    def best(lrs: tuple[float, ...] | None = None, warmups: tuple[float, ...] | None = None) -> Array:
        return scores_at_best(result, "loss", config.settings(optimizer, lrs, warmups))

    ends_over_inside = best((config.lrs[0], config.lrs[-1])) / best(config.lrs[1:-1])
    without_over_with = best(warmups=config.warmups[:1]) / best(warmups=config.warmups[1:])
    return [
        at_least(f"{optimizer}: best loss at the ends of the grid over the best inside", 1.0, ends_over_inside),
        at_most(f"{optimizer}: tuned loss without warmup over that with warmup", AS_GOOD, without_over_with),
    ]


def _claims_of_loss(result: Result[Config], optimizer: str) -> list[Claim]:
    """Judge the tuned loss, the converted loss and the mean over the learning rates against AdamW's."""
    config = result.config
    own = config.settings(optimizer)
    adamws = config.settings("AdamW")
    best_of_adamw = choose(result, "loss", adamws)
    adamw = of_chosen(result, "loss", best_of_adamw)
    tuned = scores_at_best(result, "loss", own)
    at_best_of_adamw = of_chosen(result, "loss", [own[adamws.index(arm)] for arm in best_of_adamw])
    no_warmup = config.warmups[0]
    over_lrs = losses(result, optimizer, no_warmup).mean(1) - losses(result, "AdamW", no_warmup).mean(1)
    return [
        at_most(f"{optimizer}: tuned loss over AdamW's", 1.0, tuned / adamw),
        at_most(f"{optimizer}: converted loss over AdamW's", 1.0, at_best_of_adamw / adamw),
        at_most(f"{optimizer}: converted loss over its own tuned loss", AS_GOOD, at_best_of_adamw / tuned),
        at_most(f"{optimizer}: mean over the lrs, no warmup, minus AdamW's, nats", 0.0, over_lrs),
    ]
