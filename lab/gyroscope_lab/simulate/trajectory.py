"""What a simulated run leaves behind: norm, angle and gradient of every weight vector, read from the weights."""

from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from gyroscope.geometry import Split
from gyroscope.tools import Array, Int64, check_count

# Numbers that a record will hold: 800 MB in float32.
LARGEST = 200_000_000
# Squares of norm, gradient norm, unit gradient norm and length of the step; angle; cosine with the reference.
QUANTITIES = 6


@final
@dataclass(frozen=True)
class Averages:
    """Each vector over the records of a trajectory: (settings, vectors), or (vectors,) for a single optimizer."""

    norm: Array
    """RMS over time"""
    angular_update: Array
    """mean over time, radians per step"""
    unit_grad_norm: Array
    """RMS over time"""
    step_length: Array
    """RMS over time"""

    @property
    def layer_norm(self) -> Array:
        """RMS over the vectors too: what `Equilibrium.norm` predicts."""
        return np.asarray(np.sqrt((self.norm**2).mean(-1)))

    @property
    def layer_angular_update(self) -> Array:
        """Mean over the vectors too: what `Equilibrium.angular_update` predicts."""
        return np.asarray(self.angular_update.mean(-1))

    @property
    def layer_unit_grad_norm(self) -> Array:
        """RMS over the vectors too."""
        return np.asarray(np.sqrt((self.unit_grad_norm**2).mean(-1)))

    @property
    def layer_step_length(self) -> Array:
        """RMS over the vectors too: what `Equilibrium.update_rms` predicts, but for the decay's part of a step."""
        return np.asarray(np.sqrt((self.step_length**2).mean(-1)))

    @property
    def spread(self) -> Array:
        """How unevenly the vectors turn: standard deviation of their angular updates over the mean."""
        return np.asarray(self.angular_update.std(-1) / self.angular_update.mean(-1))


@final
@dataclass(frozen=True)
class Trajectory:
    """A simulated run. Arrays are (records, settings, vectors), or (records, vectors) for a single optimizer.

    `steps[i]` is the step that record i shows, or the last of those it averages (angles by their mean, norms by their
    RMS); step 0 is the first. `norm` is read after the step, the gradient before it.
    """

    steps: Int64
    norm: Array
    angular_update: Array
    """radians per step"""
    grad_norm: Array
    unit_grad_norm: Array
    """gradient norm times the norm of the weight it was taken at"""
    step_length: Array
    """‖w' - w‖, how far the step moved the vector"""
    cosine: Array | None = None
    """with the same vector after the step `reference`, if one was named"""

    def after(self, step: int) -> "Trajectory":
        """The records of `step` and later."""
        chosen = self.steps >= step
        if not chosen.any():
            raise ValueError(f"step={step} lies beyond the last record, of step {self.steps[-1]}")
        records: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        later: dict[str, Any] = {name: None if x is None else x[chosen] for name, x in records.items()}
        return Trajectory(**later)

    def averages(self, after: int = 0) -> Averages:
        """Each vector averaged over the records of step `after` and later."""
        part = self.after(after)
        return Averages(_rms(part.norm), part.angular_update.mean(0), _rms(part.unit_grad_norm), _rms(part.step_length))


@final
class TrajectoryBuilder:
    """Measures a step from the weights before and after it, and averages the last `average` of every `every` steps.

    Weights and gradients come as rows, one vector each.
    """

    def __init__(self, rows: Tensor, *, steps: int, every: int, average: int, reference: int | None) -> None:
        check_count("every", every, at_least=1)
        check_count("average", average, at_least=1)
        if average > every:
            raise ValueError(f"average={average} is more than the every={every} steps of one record: lower it")
        self.every = every
        self.average = average
        self.reference = reference
        records = steps // every
        if records == 0:
            raise ValueError(f"every={every} leaves no record in a run of {steps} steps: lower it")
        if records * QUANTITIES * len(rows) > LARGEST:
            raise ValueError(f"{records} records × {len(rows)} vectors do not fit in memory: raise every={every}")
        if reference is not None and not 0 <= reference < steps:
            raise ValueError(f"reference={reference} is not a step of a run of {steps} steps")
        # Sums of squares and angles in the weights' own precision: a record averages few steps.
        self._records = rows.new_zeros(records, QUANTITIES, len(rows))
        self._split = Split()
        self._before = torch.empty_like(rows)
        self._start = torch.zeros_like(rows)
        self._active = False

    def before(self, t: int, rows: Tensor, grad: Tensor) -> None:
        """Look at the weights and the gradient of step t."""
        self._active = t // self.every < len(self._records) and t % self.every >= self.every - self.average
        if self._active:
            self._before.copy_(rows)
            # Before the step, for some optimizers write into the gradient.
            self._grad_norm = torch.linalg.vector_norm(grad, dim=1)

    def after(self, t: int, rows: Tensor) -> None:
        """Look at the weights again, and measure."""
        if self._active:
            angle = self._split.angle(self._before, rows)
            cosine = torch.zeros_like(self._grad_norm)
            if self.reference is not None:
                cosine = self._split.angle(self._start, rows).cos()
            norm_before, norm = (torch.linalg.vector_norm(w, dim=1) for w in (self._before, rows))
            length = torch.linalg.vector_norm(rows - self._before, dim=1)
            squares = torch.stack([norm, self._grad_norm, self._grad_norm * norm_before, length]).square()
            record = torch.cat([squares, angle[None], cosine[None]])
            self._records[t // self.every].add_(record, alpha=1 / self.average)
        if t == self.reference:
            self._start.copy_(rows)

    def trajectory(self, shape: tuple[int, ...], order: list[int] | None) -> Trajectory:
        """The records as arrays: rows in the form (settings, vectors) and the order in which the settings came."""
        records = self._records.double().cpu().numpy().reshape(len(self._records), QUANTITIES, *shape)
        if not np.isfinite(records).all():
            raise ValueError("this run leaves the range of numbers: its lr is out of all proportion to its norm")
        if order is not None:
            records = records[:, :, np.argsort(order)]
        norm, grad_norm, unit_grad_norm, step_length = np.sqrt(records[:, :4]).swapaxes(0, 1)
        steps = (np.arange(len(records)) + 1) * self.every - 1
        cosine = None
        if self.reference is not None:
            # A record that averages steps before the reference has a cosine with nothing.
            known = steps - self.average >= self.reference
            cosine = np.where(known.reshape(-1, *(1,) * len(shape)), records[:, 5], np.nan)
        return Trajectory(steps, norm, records[:, 4], grad_norm, unit_grad_norm, step_length, cosine)


def _rms(values: Array) -> Array:
    return np.asarray(np.sqrt((values**2).mean(0)))
