"""Changes of several axes at once, and the settings that each candidate gives for them."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from gyroscope.theory import AdamW, Scale, TransferRule, cosine, transfer
from gyroscope.theory.mean_rotation import RunCourse, keep_mean_rotation
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope.theory.transfer_rules import AXES, KEEP_ROTATION, compose, recommended_rule
from gyroscope_lab.transfer._networks import Tuned, make_problem
from gyroscope_lab.transfer._training import FIRST_TUNING_SEED, WARMUP, groups_of

# What people do. It is no candidate for the answer.
BASELINE = "copy"
# The answer unless another candidate is better by its interval.
PRODUCT = "product"
Settings = dict[str, TransferSettings]


@dataclass(frozen=True)
class Change:
    """Factors of batch, tokens and width."""

    batch: float = 1.0
    tokens: float = 1.0
    width: float = 1.0

    def __str__(self) -> str:
        factors = {axis: factor for axis, factor in vars(self).items() if factor != 1}
        return ", ".join(f"{axis} × {factor:g}" for axis, factor in factors.items())

    def scales(self, tuned: Tuned) -> tuple[Scale, Scale]:
        """Return the scale of the tuned run and the new one."""
        base = Scale(batch=tuned.batch, tokens=tuned.batch * tuned.steps, width=tuned.width)
        return base, Scale(self.batch * base.batch, self.tokens * base.tokens, width=self.width * tuned.width)


def candidate_rules() -> dict[str, TransferRule]:
    """Return the baseline and the five candidates.

    Of the two that are ours, the first keeps the mean rotation over the run at the tuned weight decay. The second has
    the settings of the product, at the learning rate at which the mean rotation over the run, and not that in
    equilibrium, has the product's factor.
    """
    changed = [axis for axis in AXES if axis != "depth"]
    product = recommended_rule("adam", changed)
    decay = {"batch": 1.0, "tokens": -1.0}
    return {
        BASELINE: compose(dict.fromkeys(changed, "copy")),
        PRODUCT: product,
        "completed": compose({"batch": "completed", "tokens": "completed", "width": "mup"}),
        "power-lines": replace(product, weight_decay=decay, tokens_per_param=0.527),
        KEEP_ROTATION.name: KEEP_ROTATION,
        "product over the run": replace(product, whole_run=True),
    }


# The two candidates that single axes have not tried.
OURS = (KEEP_ROTATION.name, "product over the run")


@cache
def settings_of(tuned: Tuned, change: Change, candidate: str) -> Settings:
    """Return the settings of each group of parameters by a candidate."""
    rule = candidate_rules()[candidate]
    base, to = change.scales(tuned)
    in_equilibrium = replace(rule, whole_run=False)
    (row,) = transfer(tuned.rule, base=base, to=to, transfer_rules=[in_equilibrium]).rows
    if not rule.whole_run:
        return dict(row.groups)
    assert row.lr is not None
    assert row.weight_decay is not None
    moved = AdamW(row.lr, row.weight_decay, tuned.betas)
    kept = keep_mean_rotation(tuned.rule, moved, _course(tuned.network, base), _course(tuned.network, to))
    factor = kept.lr / row.lr
    return {name: replace(each, lr=each.lr * factor) for name, each in row.groups.items()}


def _course(network: str, scale: Scale) -> RunCourse:
    """Return the schedule of a run, with the real initial norms of all hidden layers and the head."""
    steps = round(scale.steps)
    model = make_problem(network, round(scale.width or 0), FIRST_TUNING_SEED).model
    nothing = TransferSettings(0.1, 0.1)
    groups = groups_of(model, {"hidden": nothing, "embedding": nothing, "gains": nothing})
    rows = [weight.detach().flatten(1) for group in groups["hidden"] for weight in group["params"]]
    norms = np.array([float(each.norm(dim=1).square().mean().sqrt()) for each in rows])
    return RunCourse(cosine(steps, round(WARMUP * steps)), norms, np.array([float(each.shape[1]) for each in rows]))
