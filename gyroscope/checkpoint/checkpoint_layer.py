"""The layers of a checkpoint, with the numbers for findings, text and page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.advice.run_layer import noise_ratio
from gyroscope.checkpoint.files.formats import ParameterState
from gyroscope.checkpoint.last_step.group_step import GroupStep
from gyroscope.geometry import Split
from gyroscope.model.by_name import NamedSplit, splits_by_name
from gyroscope.model.measured import WatchedLayer, watched_layers
from gyroscope.model.selection import Decision, turning, with_tokens
from gyroscope.theory import UpdateRule
from gyroscope.theory.law import safe_divide
from gyroscope.theory.sensitivity import decay_error

NAN = float("nan")
# An embedding in a file without an optimizer is shown, because it may have decayed.
UNKNOWN_GROUP = {"weight_decay": 1.0}


def mean_known(values: Array) -> float:
    """Return the mean over the vectors that have a value, or NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else NAN


@final
@dataclass(frozen=True, eq=False)
class CheckpointLayer:
    """A layer in the last step of a checkpoint. Angles are in radians. NaN means unknown.

    name, shape, group     as in the model and its optimizer
    vector                 kind of its vectors: neuron, token, tensor or group
    vectors, fan_in        number of vectors, and number of entries of each
    rule                   update rule at the learning rate of the last step, None if unknown
    exact                  whether the last step is exact, or estimated
    error                  largest error of an estimated mean rotation in tests
    rotations              angle of the last step, by vector
    norm                   RMS over vectors
    predicted_rotation     in equilibrium at the learning rate of the last step, per step
    peak_lr                largest learning rate of the run
    predicted_norm         in equilibrium under noise at the peak learning rate
    timescale              one memory: steps after which a direction is forgotten, in equilibrium at the peak
    run_length             Σ lr·weight decay over the run so far, in memories
    run_length_known       whether that follows the file's schedule. Otherwise a linear or cosine schedule is assumed
    alignment              s: mean square of updates over that of noise
    lambda_u, lambda_u_error   weight decay that a radial gradient amounts to, and its standard error
    dead                   vectors without any gradient so far, according to the state
    non_finite             vectors with a weight or an optimizer state that is not finite
    options                of its parameter group, and the optimizer's name
    """

    name: str
    shape: Sequence[int]
    group: int
    vector: str
    vectors: int
    fan_in: int
    rule: UpdateRule | None = None
    exact: bool = False
    error: float = NAN
    rotations: Array = field(default_factory=lambda: np.full(1, NAN), repr=False)
    norm: float = NAN
    predicted_rotation: float = NAN
    peak_lr: float = NAN
    predicted_norm: float = NAN
    timescale: float = NAN
    run_length: float = NAN
    run_length_known: bool = False
    alignment: float = NAN
    lambda_u: float = NAN
    lambda_u_error: float = NAN
    dead: int = 0
    non_finite: int = 0
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def rotation(self) -> float:
        """Mean angle of the last step over vectors."""
        return mean_known(self.rotations)

    @property
    def rotation_ratio(self) -> float:
        """Root mean square of the angles over the predicted rotation at the rate of the last step."""
        return float(safe_divide(mean_known(self.rotations**2) ** 0.5, self.predicted_rotation))

    @property
    def norm_ratio(self) -> float:
        """Norm over that of equilibrium under noise at the peak learning rate."""
        return float(safe_divide(self.norm, self.predicted_norm))

    @property
    def spread(self) -> float:
        """95th over 5th percentile of the vectors' angles, over that of pure noise."""
        known = self.rotations[np.isfinite(self.rotations)]
        if known.size < 2:
            return NAN
        low, high = np.quantile(known, [limit.OUTER_SHARE, 1 - limit.OUTER_SHARE])
        return float(safe_divide(high, low)) / noise_ratio(self.fan_in, known.size)

    @property
    def keeps_norm(self) -> bool:
        """Whether its optimizer keeps the norms fixed and sets the angle."""
        return self.rule is not None and self.rule.keeps_norm

    @property
    def is_embedding(self) -> bool:
        """Whether its vectors are tokens, which are shown but not judged."""
        return self.vector == "token"

    def facts(self, steps: float | None) -> LayerFacts:
        """Return what judgements use, after so many steps."""
        noise = noise_ratio(self.fan_in, self.vectors)
        return LayerFacts.of_checkpoint(
            self.name,
            self.rule,
            steps=steps,
            peak_lr=self.peak_lr,
            memory=self.timescale,
            run_length=self.run_length,
            norm_ratio=self.norm_ratio,
            rotation_ratio=self.rotation_ratio,
            predicted_rotation=self.predicted_rotation,
            rotation=self.rotation,
            group=self.group,
            vectors=self.vectors,
            dead=self.dead,
            neuron_ratio=self.spread * noise,
            noise_ratio=noise,
            lambda_u=self.lambda_u,
            decay_error=self._decay_error,
            options=self.options,
        )

    @property
    def _decay_error(self) -> float:
        """λ_e/λ, NaN if λ_u may be 0."""
        is_significant = abs(self.lambda_u) > limit.MIN_STANDARD_ERRORS * self.lambda_u_error
        decay = self.rule.weight_decay if self.rule is not None else 0.0
        return float(decay_error(decay, self.lambda_u)) if is_significant and decay > 0 else NAN


def checkpoint_layers(
    parameters: Sequence[ParameterState],
    groups: Sequence[Mapping[str, Any]],
    steps: Sequence[GroupStep] = (),
) -> Iterator[tuple[ParameterState, list[WatchedLayer]]]:
    """Yield every parameter with vectors, and its layers. `steps` are the last steps of the groups, if known.

    A parameter group with a split (`granularity`, `axis`, `group_size`), as `gyro.param_groups` makes it, overrides
    names and shapes (`gyroscope.model.by_name`). Muon rotates each matrix as a whole. Fused queries, keys and values
    are three layers, as in the tracker.
    """
    by_name = splits_by_name({each.name: each.weight.shape for each in parameters})
    for parameter in parameters:
        has_group = parameter.group >= 0
        group = groups[parameter.group] if has_group else UNKNOWN_GROUP
        step = steps[parameter.group] if has_group and steps else None
        decision = _decision(parameter, by_name[parameter.name], group, step)
        if decision.turns:
            yield parameter, list(watched_layers(decision, decision.split))


def _decision(
    parameter: ParameterState, named: NamedSplit, group: Mapping[str, Any], step: GroupStep | None
) -> Decision:
    # Without values, because only its shape is used.
    empty = torch.empty(parameter.weight.shape, device="meta")
    weight = torch.nn.Parameter(empty, requires_grad=False)
    decision = Decision(parameter.name, weight, named.split, "name and shape", parameter.group, named.is_embedding)
    spec = None if step is None else step.spec
    # Our optimizers that rotate nothing also write the default split, so it is not a choice of the user.
    turns_nothing = spec is not None and spec.is_ours and not spec.load().turns_by_group
    if "granularity" in group and not (turns_nothing and Split.of(group) == Split()):
        decision = replace(decision, split=Split.of(group), reason="its parameter group")
    rule = None if step is None else step.rule
    decision = turning(decision, group, whole_by=rule.name if rule is not None and rule.whole_matrix else "")
    return with_tokens(decision, group)
