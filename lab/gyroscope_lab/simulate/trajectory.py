"""The trajectory of a simulated run: norm, angle and gradient of every weight vector, read from the weights."""

from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from gyroscope.geometry import Split
from gyroscope.tools import Array, Int64, check_count

# Most numbers in the records of a run: 800 MB in float32.
LARGEST = 200_000_000
# Squares of norm, gradient norm, unit gradient norm and step length, then angle and cosine with the reference.
QUANTITIES = 6


@final
@dataclass(frozen=True)
class Averages:
    """Averages of each vector over a trajectory: (settings, vectors), or (vectors,) for a single optimizer."""

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
        """RMS norm over time and vectors, which `Equilibrium.norm` predicts."""
        return np.asarray(np.sqrt((self.norm**2).mean(-1)))

    @property
    def layer_angular_update(self) -> Array:
        """Mean rotation over time and vectors, which `Equilibrium.angular_update` predicts."""
        return np.asarray(self.angular_update.mean(-1))

    @property
    def layer_unit_grad_norm(self) -> Array:
        """RMS unit gradient norm over time and vectors."""
        return np.asarray(np.sqrt((self.unit_grad_norm**2).mean(-1)))

    @property
    def layer_step_length(self) -> Array:
        """RMS step length over time and vectors. `Equilibrium.update_rms` predicts it without the part of decay."""
        return np.asarray(np.sqrt((self.step_length**2).mean(-1)))

    @property
    def spread(self) -> Array:
        """Standard deviation of the rotation of the vectors over its mean."""
        return np.asarray(self.angular_update.std(-1) / self.angular_update.mean(-1))


@final
@dataclass(frozen=True)
class Trajectory:
    """A simulated run. Arrays are (records, settings, vectors), or (records, vectors) for a single optimizer.

    `steps[i]` is the step of record i, or the last of those that it averages (angles by their mean, norms by their
    RMS). Step 0 is the first. `norm` is measured after the step, and the gradient before it.
    """

    steps: Int64
    norm: Array
    angular_update: Array
    """radians per step"""
    grad_norm: Array
    unit_grad_norm: Array
    """gradient norm times the weight norm at the same step"""
    step_length: Array
    """‖w' - w‖, the distance that the step moved the vector"""
    cosine: Array | None = None
    """cosine with the same vector after the step `reference`, if one was given"""

    def after(self, step: int) -> "Trajectory":
        """Return the records of `step` and later."""
        chosen = self.steps >= step
        if not chosen.any():
            raise ValueError(f"step={step} is after the last record, at step {self.steps[-1]}")
        records: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        later: dict[str, Any] = {name: None if x is None else x[chosen] for name, x in records.items()}
        return Trajectory(**later)

    def averages(self, after: int = 0) -> Averages:
        """Average each vector over the records of step `after` and later."""
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
            raise ValueError(f"average={average} is more than the every={every} steps of one record: lower average")
        self.every = every
        self.average = average
        self.reference = reference
        records = steps // every
        if records == 0:
            raise ValueError(f"every={every} leaves no record in a run of {steps} steps: lower every")
        if records * QUANTITIES * len(rows) > LARGEST:
            raise ValueError(f"{records} records × {len(rows)} vectors do not fit in memory: raise every={every}")
        if reference is not None and not 0 <= reference < steps:
            raise ValueError(f"reference={reference} is not a step of a run of {steps} steps")
        # Sums of squares and angles have the precision of the weights, because a record averages few steps.
        self._records = rows.new_zeros(records, QUANTITIES, len(rows))
        self._split = Split()
        self._before = torch.empty_like(rows)
        self._start = torch.zeros_like(rows)
        self._active = False

    def before(self, t: int, rows: Tensor, grad: Tensor) -> None:
        """Store the weights and the gradient norm before step t."""
        self._active = t // self.every < len(self._records) and t % self.every >= self.every - self.average
        if self._active:
            self._before.copy_(rows)
            # Before the step, because some optimizers write into the gradient.
            self._grad_norm = torch.linalg.vector_norm(grad, dim=1)

    def after(self, t: int, rows: Tensor) -> None:
        """Measure step t from the weights after it."""
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
        """Return the records as arrays of shape (settings, vectors), in the original order of the settings."""
        records = self._records.double().cpu().numpy().reshape(len(self._records), QUANTITIES, *shape)
        if not np.isfinite(records).all():
            raise ValueError("numeric overflow in the simulation: check the magnitude of lr, weight decay and norm")
        if order is not None:
            records = records[:, :, np.argsort(order)]
        norm, grad_norm, unit_grad_norm, step_length = np.sqrt(records[:, :4]).swapaxes(0, 1)
        steps = (np.arange(len(records)) + 1) * self.every - 1
        cosine = None
        if self.reference is not None:
            # A record that averages steps before the reference has no cosine.
            known = steps - self.average >= self.reference
            cosine = np.where(known.reshape(-1, *(1,) * len(shape)), records[:, 5], np.nan)
        return Trajectory(steps, norm, records[:, 4], grad_norm, unit_grad_norm, step_length, cosine)


def _rms(values: Array) -> Array:
    return np.asarray(np.sqrt((values**2).mean(0)))
