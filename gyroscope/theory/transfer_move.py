"""One transfer rule applied to a change of scale: its settings, and the equilibrium and the start that they have."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, final

import numpy as np

from gyroscope.theory.mean_rotation import RunCourse, keep_mean_rotation
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule, constant
from gyroscope.theory.transfer_rows import Scale, TransferRow, TransferSettings, with_settings
from gyroscope.theory.transfer_rules import AXES, MADE_FOR, TransferRule, family_of

# Steps of the longest run whose mean rotation is forecast, which takes a second or two.
LONGEST_FORECAST = 200_000


@final
@dataclass(frozen=True)
class Move:
    """A change of scale of a tuned rule: by these ratios, to this scale."""

    rule: UpdateRule
    ratios: Mapping[str, float]
    to: Scale
    schedule: Schedule | None
    initial_norm: float | None

    def row(self, each: TransferRule, tuned: TransferRow) -> TransferRow:
        """Return the settings by a transfer rule, and what they keep."""
        rule = self.rule.plain
        silent = tuple(axis for axis in AXES if self.ratios[axis] != 1 and axis not in each.speaks_of)
        lr_powers, decay_powers = each.powers(silent)
        lr = rule.lr * self._factor(lr_powers)
        decay = rule.weight_decay * self._factor(decay_powers)
        if each.lr_limit is not None:
            lr = min(lr, each.lr_limit)
        betas = self._betas(each)
        # The square of the rotation on a sphere is that of the learning rate.
        of_decay = {axis: each.rotation_power * lr_powers[axis] + decay_powers[axis] for axis in lr_powers}
        by_axis = {axis: self.ratios[axis] ** power for axis, power in of_decay.items() if self.ratios[axis] != 1}
        followed = {axis: name for axis, name in each.names().items() if self.ratios[axis] != 1}
        row = TransferRow(each.name, each.source, silent_on=silent, rule_by_axis=followed, decay_by_axis=by_axis)
        note = ""
        if betas is not None and not 0 < betas[1] < 1:
            note = f"beta2 would be {betas[1]:.3g}"
        elif each.family not in ("any", family_of(rule)):
            note = f"for {MADE_FOR[each.family]}"
        elif lr * decay >= 1:
            note = "a step would remove the whole weight"
        if note:
            return self._in_proportion(replace(row, note=note), each, tuned)
        settings: dict[str, Any] = {"lr": lr, "weight_decay": decay} if rule.has_weight_decay else {"lr": lr}
        # All at once, because a new learning rate with the old weight decay may be out of range.
        moved = with_settings(self.rule, settings | ({} if betas is None else {"betas": betas}))
        if each.whole_run:
            note = self._no_forecast()
            if note:
                return replace(row, note=note)
            moved = self._over_the_run(moved)
        groups = self._groups(moved.plain, lr_powers["width"], decay_powers["width"])
        eps_factor = self.ratios["batch"] ** -0.5 if each.scales_eps else 1.0
        return self.measured(replace(row, betas=betas, eps_factor=eps_factor, groups=groups), moved)

    def _no_forecast(self) -> str:
        """Return why the mean rotation over both runs is unknown, or nothing."""
        if self.to.width is None or self.initial_norm is None:
            return "it needs --width and an initial norm"
        if self.rule.needs != ("fan_in",):
            return f"the mean rotation of {self.rule.name} over a run depends on more than the width"
        longest = max(self.to.steps, self._base_steps)
        return f"it forecasts at most {LONGEST_FORECAST:,} steps" if longest > LONGEST_FORECAST else ""

    @property
    def _base_steps(self) -> float:
        return self.to.steps * self.ratios["batch"] / self.ratios["tokens"]

    def _over_the_run(self, moved: UpdateRule) -> UpdateRule:
        """Return the rule at the learning rate at which the run as a whole has the promised rotation."""
        assert self.to.width is not None  # `_no_forecast`
        assert self.initial_norm is not None
        width = self.to.width
        base = RunCourse(self._shape(self._base_steps), self.initial_norm, width / self.ratios["width"])
        return keep_mean_rotation(
            self.rule, moved, base, RunCourse(self._shape(self.to.steps), self.initial_norm, width)
        )

    def _shape(self, steps: float) -> Schedule:
        """Return the schedule over another number of steps."""
        count = max(round(steps), 1)
        if self.schedule is None:
            return constant(count)
        share = (np.arange(self.schedule.steps) + 0.5) / self.schedule.steps
        values = self.schedule(np.arange(self.schedule.steps))
        return Schedule(self.schedule.name, count, 0, lambda t: np.interp((t + 0.5) / count, share, values))

    def _factor(self, powers: Mapping[str, float]) -> float:
        return float(prod(self.ratios[axis] ** power for axis, power in powers.items()))

    def _betas(self, each: TransferRule) -> tuple[float, float] | None:
        rule = self.rule.plain
        # Hyperball has the betas of the optimizer inside.
        betas = rule.settings.get("betas") if rule.keeps_norm else rule.adam_betas
        r = self.ratios["batch"]
        if each.beta2 is None or betas is None or r == 1:
            return None
        beta2 = 1 - (1 - betas[1]) * r if each.beta2 == "linear" else betas[1] ** r
        if each.beta2_range is not None:
            low, high = each.beta2_range
            beta2 = min(max(beta2, low), high)
        return betas[0], beta2

    def _groups(self, moved: UpdateRule, lr_power: float, decay_power: float) -> dict[str, TransferSettings]:
        """Return the settings by group. Width changes those of matrices alone (arXiv 2203.03466, Table 3)."""
        matrices = TransferSettings(moved.lr, moved.weight_decay)
        if moved.keeps_norm:  # Hyperball's is a relative length, which other groups do not have
            return {"hidden": matrices}
        lr = moved.lr / self.ratios["width"] ** lr_power
        decay = moved.weight_decay / self.ratios["width"] ** decay_power
        table = TransferSettings(lr, decay)
        return {"hidden": matrices, "head": matrices, "embedding": table, "gains": TransferSettings(lr, 0.0)}

    def measured(self, row: TransferRow, rule: UpdateRule) -> TransferRow:
        """Return the row with the equilibrium of its settings."""
        width = self.to.width
        shape = None if width is None or not rule.whole_matrix else (round(width),) * 2
        settled = rule.equilibrium(shape=shape)
        rms_entry = _rms_entry(rule, shape)
        start = None
        if self.initial_norm is not None and rule.keeps_norm:
            start = 1.0
        elif self.initial_norm is not None and rms_entry is not None and width is not None:
            start = rms_entry * width**0.5 / self.initial_norm
        # The decay of a step over that at the peak learning rate follows the square of its angle.
        mean_decay = 1.0
        if self.schedule is not None:
            multipliers = self.schedule(np.arange(self.schedule.steps))
            mean_decay = float(np.mean(multipliers ** (2 * rule.angle_exponent)))
        timescale = settled.timescale
        return replace(
            row,
            lr=rule.plain.lr,
            weight_decay=rule.plain.weight_decay,
            rotation=settled.angular_update,
            memory=None if timescale is None else timescale * self.to.batch,
            run_length=None if timescale is None else self.to.steps * mean_decay / timescale,
            rms_entry=rms_entry,
            start_over_rotation=start,
        )

    def _in_proportion(self, row: TransferRow, each: TransferRule, tuned: TransferRow) -> TransferRow:
        """Return what a rule without settings would change in the tuned run, by the map alone."""
        decay = prod(row.decay_by_axis.values())
        batch = self.ratios["batch"]
        steps = self.ratios["tokens"] / batch
        return replace(
            row,
            rotation=None if tuned.rotation is None else tuned.rotation * decay**0.5,
            memory=None if tuned.memory is None else tuned.memory * batch / decay,
            run_length=None if tuned.run_length is None else tuned.run_length * decay * steps,
            start_over_rotation=1.0 if each.family == "sphere" and tuned.start_over_rotation is not None else None,
        )


def _rms_entry(rule: UpdateRule, shape: tuple[int, int] | None) -> float | None:
    if rule.keeps_norm or (rule.needs != ("fan_in",) and (rule.needs != ("shape",) or shape is None)):
        return None
    norm = rule.equilibrium(fan_in=1.0 if shape is None else None, shape=shape).norm
    return None if norm is None else float(norm) / prod(shape or (1,)) ** 0.5
