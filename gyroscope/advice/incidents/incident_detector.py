"""Events in a run: a setting that jumped, unusual batches, one layer's gradient, skipped steps, …

The same detector reads samples as they come, beside training, and those of a finished run one after the other.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.changes import Frozen, Settings, Skipped, WeightJumps, not_finite
from gyroscope.advice.incidents.layer_values import SERIES, Incident, LayerValues
from gyroscope.advice.incidents.unusual_values import Gradients, Losses

# Evidence of these causes rises and falls, so the largest value is kept. For other causes the latest is kept.
PASSING = ("batches", "layer_gradient", "skipped")
# Causes that one sample of a loss jump can look like, before it is clear that the jump lasts.
MISTAKEN = ("weights", "layer_gradient")


@final
class IncidentDetector:
    """Reads samples in order. `incidents` lists the incidents so far, and each is updated while it lasts."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self.losses_judged_from: int | None = None
        """First step whose loss was judged."""
        self.gradients_judged_from: int | None = None
        """First step whose gradients were judged."""
        self._layers: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._settings = Settings()
        self._frozen = Frozen()
        self._weights = WeightJumps()
        self._last: LayerValues | None = None
        self._losses = Losses()
        self._gradients = Gradients(self._layers)
        self._skipped = Skipped()
        self._seen: Incident | None = None
        self._rates: deque[float] = deque(maxlen=limit.INCIDENT_LEVEL)
        self._samples_after_jump = limit.INCIDENT_LEVEL + 1
        # Number of samples for which the latest incident explains gradients and losses, whose past is from before it.
        self._explained = 0

    def resumed(self, step: int) -> None:
        """Record that the run was interrupted and continues with this step."""
        self._cause(Incident("resumed", step, step, step, (), "the run"))

    @np.errstate(all="ignore")
    def update(
        self, step: int, layers: Sequence[str], values: Array, loss_steps: Array, losses: Array
    ) -> list[Incident]:
        """Read a sample, and return the incidents that begin with it.

        values      (SERIES, layers), NaN if there is no value
        loss_steps  steps of the losses that were logged since the last sample, and `losses` their values
        """
        if list(layers) != self._layers:  # another model, without a past
            self._layers = list(layers)
            self._forget()
        known = len(self.incidents)
        last = self._last
        since = 0 if last is None else last.step + 1
        now = LayerValues(since, step, self._layers, dict(zip(SERIES, values, strict=True)))
        self._last = now
        for jump in self._settings.update(now):
            self._cause(jump)
        self._cause(None if last is None else self._frozen.update(now, last))
        if self.gradients_judged_from is None and self._gradients.is_judging:
            self.gradients_judged_from = step
        gradients, of_layer = self._gradients.update(now, is_first=last is None)
        self._follow_lr(now)
        had_jumped = self._losses.has_jumped
        unusual = self._unusual(gradients, loss_steps, losses)
        moved = None if last is None else self._weights.update(now, last)
        self._weights_or_gradient(moved, of_layer, self._jump(unusual))
        self._cause(not_finite(now))
        self._cause(self._skipped.update(now))
        if unusual is not None:
            self._batches(unusual, had_jumped)
        self._explained -= 1
        return self.incidents[known:]

    def finish(self, loss_steps: Array, losses: Array) -> list[Incident]:
        """Judge the losses after the last sample of a run that has ended, and return the incidents among them."""
        known = len(self.incidents)
        had_jumped = self._losses.has_jumped
        unusual = self._unusual(None, loss_steps, losses)
        if unusual is not None:
            self._batches(unusual, had_jumped)
        return self.incidents[known:]

    def _follow_lr(self, now: LayerValues) -> None:
        rate = float(np.nanmax(now["lr"], initial=0.0))
        if len(self._rates) >= limit.MIN_SAMPLES and rate > limit.SETTING_JUMP * self._rates[-1]:
            self._samples_after_jump = 0
        self._samples_after_jump += 1
        self._rates.append(rate)

    @property
    def _lr_rose(self) -> bool:
        """Whether the recent losses belong to a lower learning rate, as after a restart of the schedule."""
        return bool(self._rates) and self._rates[-1] > limit.MAX_SMOOTH_FACTOR * min(self._rates)

    @property
    def _lr_jumped(self) -> bool:
        """Whether losses are compared with those from before a restart of the schedule."""
        return self._samples_after_jump <= limit.INCIDENT_LEVEL

    def _jump(self, unusual: Incident | None) -> Incident | None:
        """Return the jump of the loss that explains what gradients and weights do now."""
        latest = self._explanation
        if latest is not None:
            return latest if _lasts(latest) else None
        return unusual if unusual is not None and _lasts(unusual) else None

    @property
    def _explanation(self) -> Incident | None:
        """The latest incident, if it explains what gradients and losses do now."""
        return self.incidents[-1] if self._explained > 0 and self.incidents else None

    def _weights_or_gradient(self, weights: Incident | None, gradient: Incident | None, jump: Incident | None) -> None:
        """Record the layers whose weights moved too far, and the layer whose gradient is unusual.

        If an update is still too large, the optimizer moved the weights.
        """
        if weights is not None and gradient is not None and "update" in gradient.evidence:
            others = tuple(layer for layer in weights.layers if layer not in gradient.layers)
            weights = replace(weights, layers=others) if others else None
        if weights is not None and not _follows(weights, jump) and not self._was_moved(weights):
            self._cause(weights)
        if gradient is None or _follows(gradient, jump):
            return
        latest = self._explanation
        if latest is not None and latest.cause != "layer_gradient":
            self._consequence(gradient)
        else:
            self._cause(gradient)

    def _was_moved(self, weights: Incident) -> bool:
        """Return whether updates can have moved the weights, because the cause of large updates lasted until then."""
        latest = self._explanation
        return latest is not None and latest.cause in ("lr", "layer_gradient") and latest.end >= weights.since - 1

    def _batches(self, unusual: Incident, had_jumped: bool) -> None:
        """Record unusual losses and gradients as a separate incident unless another one explains them."""
        latest = self._explanation
        if latest is not None and _lasts(unusual) and latest.cause in MISTAKEN and _follows(latest, unusual):
            _rename(latest, unusual)
        elif latest is not None and latest.cause != "batches":
            self._consequence(unusual)
            if _lasts(unusual):
                # A loss that has not come down yet still has the same explanation.
                self._explained = max(self._explained, limit.RECOVERED_BLOCKS)
            return
        self._record(unusual, inf if had_jumped else limit.LOSSES_PER_BLOCK)
        if _lasts(unusual):
            self._explained = limit.INCIDENT_LEVEL

    def _unusual(self, gradients: Incident | None, loss_steps: Array, losses: Array) -> Incident | None:
        """Return unusual gradients and losses. A logged loss decides, and gradients show by how much."""
        decides = self._losses.is_judging and len(losses) > 0
        # The loss of a step is logged after its sample, and comes with the next one.
        seen = gradients or self._seen
        self._seen = gradients
        is_restart = self._lr_jumped and self._explanation is None
        unusual = self._losses.update(loss_steps, losses, lr_rose=self._lr_rose, is_restart=is_restart)
        if self.losses_judged_from is None:
            self.losses_judged_from = self._losses.judged_from
        if unusual is None:
            return None if decides else gradients
        if is_restart and not _lasts(unusual):
            return None
        if seen is None or seen.step < unusual.since:
            return unusual
        return replace(unusual, layers=seen.layers, evidence={**unusual.evidence, **seen.evidence})

    def _cause(self, incident: Incident | None) -> None:
        """Record an incident with a known cause, and what gradients and losses do after it."""
        if incident is not None:
            self._record(incident)
            self._explained = limit.INCIDENT_LEVEL

    def _consequence(self, unusual: Incident) -> None:
        latest = self.incidents[-1]
        latest.layers = tuple(dict.fromkeys([*latest.layers, *unusual.layers]))
        for name, value in unusual.evidence.items():
            latest.evidence.setdefault(f"then_{name}", value)
        latest.evidence.setdefault("then_step", unusual.step)

    def _record(self, new: Incident, gap: float = 0) -> None:
        """Add an incident, or extend the one before it if that ended at most `gap` steps ago."""
        latest = next((incident for incident in reversed(self.incidents) if incident.cause == new.cause), None)
        if latest is None or new.since > latest.end + 1 + gap:
            self.incidents.append(replace(new, evidence=dict(new.evidence)))
            return
        latest.end = max(latest.end, new.end)
        latest.layers = tuple(dict.fromkeys([*latest.layers, *new.layers]))
        kept = latest.evidence if new.cause in PASSING else {}
        latest.evidence |= {name: max(value, kept.get(name, value)) for name, value in new.evidence.items()}


def _lasts(unusual: Incident) -> bool:
    """Return whether the loss has jumped, and has not only spiked."""
    return "lasting" in unusual.evidence


def _follows(seen: Incident, jump: Incident | None) -> bool:
    """Return whether the loss jumped before the weights or a layer's gradient became unusual.

    A loss is computed before its gradient, so a loss that is too large at the same step came first.
    """
    if jump is None:
        return False
    return jump.step < seen.since or ("gradient" in seen.evidence and jump.step <= seen.step)


def _rename(incident: Incident, jump: Incident) -> None:
    """Change an incident of some layers into the loss jump that caused it."""
    incident.cause = "batches"
    incident.since = jump.since
    incident.step = jump.step
    incident.first = jump.first
    incident.evidence = {name: value for name, value in incident.evidence.items() if name in ("gradient", "update")}
