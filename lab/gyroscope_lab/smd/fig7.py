"""lr grows with the batch, yet one large step rotates less than the small steps in its place (SMD Figures 7 and 8).

Linear scaling replaces k steps of batch B and rate lr by one step of batch kB and rate k·lr. In equilibrium that step
rotates by sqrt(k) times the angle of one small step. The k small steps, whose momentum keeps their direction, rotate by
sqrt(k + 2Σ(k-j)α^j) times that angle (ours). The sum of kB gradients is less than k times that of B. Differences from
the paper: a small CNN on CIFAR-10 of 8 × 8 pixels replaces ResNet-50 on ImageNet. Batches are 64, 256 and 1,024 instead
of 256, 1,024 and 4,096. lr is fixed, and the product lr·wd is 50 times as large, so that layers settle. The medium size
has 16 × 16 pixels, five times the steps and ten times the paper's product.
"""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, MEASURED, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.smd._networks import SMALL, drawn, rule_of, settings_of, theory_angle, train_arm

COST = {"quick": "1 min", "medium": "15 min", "paper": "3 days"}
COVERS = ("smd/fig8",)
# By how much lr and batch grow together.
FACTORS = (1, 4, 16)
# Share of the run after which layers count as settled.
LATE = 0.5


@dataclass(frozen=True)
class Config(Arms):
    """One arm for each of `FACTORS`, all with the same number of samples."""


def _arms(lr: float, batch: int, steps: int) -> dict[str, dict[str, float]]:
    return {f"B = {batch * k}": {"lr": lr * k, "batch_size": batch * k, "steps": steps // k} for k in FACTORS}


QUICK = Config(
    base={**SMALL, "schedule": "constant", "weight_decay": 1e-2}, arms=_arms(lr=0.05, batch=64, steps=960), seeds=5
)
MEDIUM = replace(
    QUICK, base={**QUICK.base, "shrink": 2, "weight_decay": 2e-3}, arms=_arms(lr=0.05, batch=64, steps=4800), seeds=4
)
_PAPERS_EPOCH = 50_000 // 256
PAPER = Config(
    base={**preset("smd/stages"), "epochs": None, "schedule": "constant"},
    arms=_arms(lr=0.1, batch=256, steps=90 * _PAPERS_EPOCH),
)


def measure(trial: Trial[Config]) -> Measurements:
    """Train, and measure angles of one step and of as many steps as a larger batch replaces, and summed gradients."""
    motion, _ = train_arm(trial, spans=FACTORS)
    late = slice(int(LATE * len(motion.rows)), None)
    batch = settings_of(trial.config, trial.part)["batch_size"]
    gradient = np.sqrt(motion["gradient"])
    turned = np.stack([motion.turned(k) for k in FACTORS])  # (factors, steps, layers)
    return {
        "turned": np.stack([drawn(np.nan_to_num(angles)) for angles in turned]),
        "turned_settled": turned[:, late].mean(1),
        # At unit norm of the weight, for its norm is another for every batch.
        "summed_gradient": batch * gradient[late].mean(0),
    }


def turned_together(k: int, momentum: float) -> float:
    """Return the angle of k steps over the angle of one, in equilibrium, while both are small.

        sqrt(k + 2·Σ_{j<k} (k-j)·α^j)     (ours: steps j apart have the correlation α^j of SGD's momentum)

    >>> turned_together(4, momentum=0.0), f"{turned_together(4, momentum=0.9):.2f}"
    (2.0, '3.75')
    """
    together = k + 2 * sum((k - j) * momentum**j for j in range(1, k))
    return float(together**0.5)


def plot(result: Result[Config]) -> Figure:
    """Draw k small steps and the one step that replaces them (layer means of the first seed), and summed gradients."""
    config = result.config
    small, *large = config.parts
    share = np.linspace(0, 1, of_arm(result, "turned", small).shape[2])
    titles = [*(f"{small} against {arm}" for arm in large), "summed gradient (Figure 8)"]
    panels = Panels(*titles, horizontal_spacing=0.07)
    for panel, (arm, k) in enumerate(zip(large, FACTORS[1:], strict=True)):
        steps = of_arm(result, "turned", small)[0, panel + 1].mean(1)
        one = of_arm(result, "turned", arm)[0, 0].mean(1)
        rule = rule_of(config, small)
        panels.line(panel, share, steps, f"∠(w_t, w_t+k), {small}", COLOURS[1], **MEASURED)
        panels.line(panel, share, one, f"∠(w_t, w_t+1), {large[0]} or {large[1]}", COLOURS[0], **MEASURED)
        panels.level(panel, theory_angle(rule_of(config, arm)))
        together = theory_angle(rule) * turned_together(k, rule.momentum)
        panels.level(panel, together)
        panels.figure.update_yaxes(range=[0, 1.25 * together], col=panel + 1)
        panels.figure.update_xaxes(title_text="share of the run", col=panel + 1)
    ratios = np.stack([summed_gradient_ratio(result, arm) for arm in config.parts])  # (arms, seeds)
    panels.line(2, FACTORS, ratios.mean(1), "norm over that of the smallest batch", COLOURS[2], **MEASURED)
    for of_seed in ratios.T:
        panels.dots(2, FACTORS, of_seed, colour=COLOURS[2], size=6)
    panels.predicted(2, FACTORS, FACTORS, "proportional to the batch")
    panels.figure.update_xaxes(title_text="times the smallest batch", type="log", tickvals=FACTORS, col=3)
    panels.figure.update_yaxes(title_text="angle, radians", col=1)
    panels.figure.update_yaxes(type="log", tickvals=FACTORS, col=3)
    return panels.titled("Linear scaling: k small steps rotate more than the one large step in their place")


def summed_gradient_ratio(result: Result[Config], arm: str) -> Array:
    """Return the norm of the gradient summed over a batch, over that of the smallest batch, mean over layers."""
    smallest = of_arm(result, "summed_gradient", result.config.parts[0])
    return np.asarray((of_arm(result, "summed_gradient", arm) / smallest).mean(1))


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether angles of one and of k steps agree with theory, and gradients grow less than the batch."""
    config = result.config
    small, *large = config.parts
    one_small = of_arm(result, "turned_settled", small)[:, 0].mean(1)
    small_rule = rule_of(config, small)
    judged = [agrees(f"angle of one step over theory, {small}", 1.0, one_small / theory_angle(small_rule), within=0.1)]
    for place, arm in enumerate(large, start=1):
        k = FACTORS[place]
        together = of_arm(result, "turned_settled", small)[:, place].mean(1)
        one = of_arm(result, "turned_settled", arm)[:, 0].mean(1)
        sums = summed_gradient_ratio(result, arm)
        expected = turned_together(k, small_rule.momentum)
        judged += [
            agrees(f"angle of one step over theory, {arm}", 1.0, one / theory_angle(rule_of(config, arm)), within=0.1),
            agrees(f"angle of {k} steps over that of one, {small} (ours)", expected, together / one_small, within=0.1),
            at_least(f"angle of {k} steps of {small} over that of one step of {arm}", 1.25, together / one),
            at_most(f"summed gradient of {arm} over that of {small}, below proportion", 0.9 * k, sums),
        ]
    return judged
