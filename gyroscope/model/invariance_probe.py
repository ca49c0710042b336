"""Which parameters are scale-invariant, and at which granularity, found by experiment and not by layer names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from rich.table import Table
from torch import Tensor, nn

from gyroscope._checks import check_count
from gyroscope._text import to_text
from gyroscope.geometry import Split
from gyroscope.model.gradients import (
    Gradients,
    Loss,
    NonFiniteLossError,
    cosines_by_split,
    gradients,
    ignores_mean,
    preserved,
    random_state,
    restore_random_state,
)
from gyroscope.model.parameters import ModelParameter, model_parameters
from gyroscope.model.selection import Invariance

Batches = list[Gradients]

# Standard deviation of what is added to gains, biases and scalars. Gains of 0 stop gradients, and biases of 0 hide that
# they are scaled with their weight. 0.3 reveals both at activations of about 1.
NOISE = 0.3
# Root mean square of a matrix below which it counts as not yet initialised, like the zeros of an output layer.
TINY = 1e-4
# |cos∠(w, g)| in some split below which a weight may be scale-invariant: the eps of a normalisation shows that much.
SUSPECT = 0.1
# Factor by which candidates and their biases are enlarged for the proof. The loss ignores it for an invariant weight,
# and the eps of a normalisation has 256 times less effect. For any other weight the loss changes.
ENLARGED = 16.0
# |cos∠(w, g)| of an enlarged weight below which it is scale-invariant. Rounding gives 1e-5, a random vector of a
# thousand entries 3e-2.
COSINE = 1e-3
# Relative change of the loss that all invariant weights, enlarged and rescaled together, may cause.
LOSS_CHANGE = 1e-4
# Change of the loss by a new scale, in units of the change by a new direction, that an invariant weight may cause.
SCALE_TO_DIRECTION = 1e-2
# Relative change of the loss by rounding in float32.
ROUNDING = 1e-6
# The evidence for `Probe`'s table, one word each. Of an invariant weight it is "orthogonal".
UNREACHED = Invariance("none", evidence="unreached", undecided=True)
GAIN = Invariance("none", evidence="gain")
SENSITIVE = Invariance("none", evidence="sensitive")


@final
class Probe(dict[str, Invariance]):
    """A mapping from parameter names to Invariance. It prints as a table. Pass it to `param_groups(…, probe=…)`.

    The evidence is "orthogonal" (to every gradient, also if rescaled), "sensitive" (the loss depends on the scale,
    however it is split), "unreached" (by any gradient) or "gain" (one entry per neuron, which has no direction).
    """

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False, header_style="")
        for column in ("parameter", "invariant per", "axis", "group size", "mean too", "evidence"):
            table.add_column(column, overflow="fold")
        for name, found in self.items():
            split = ["–", "–", "–"]
            if found.granularity != "none":
                split = [str(found.axis), str(found.group_size), "yes" if found.centred else "no"]
            granularity = "cannot say" if found.undecided else found.granularity
            table.add_row(name, granularity, *split, found.evidence)
        return to_text(table)


def probe(model: nn.Module, loss: Loss, *, batches: int = 4) -> Probe:
    """Find the scale-invariant vectors of every weight of two or more dimensions.

    If the loss ignores the scale of a vector w, its gradient is orthogonal to it: ⟨w, g⟩ = 0 on every batch. The finest
    split for which that holds is confirmed by rescaling. `loss(model)` returns a scalar on a fresh batch at each call.
    Model, buffers, gradients and random states are left as they were.

    A fresh model is a special point, because gains of 0 stop gradients and biases of 0 have no effect. Noise is
    therefore added to gains and biases first, and replaces matrices of zeros. If no gradient reaches a weight even
    then, it is `undecided`, which does not mean "not invariant".

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    >>> found = probe(model, lambda model: model(torch.randn(64, 8)).square().sum(1).mean())
    >>> {name: invariance.granularity for name, invariance in found.items()}
    {'0.weight': 'neuron', '2.weight': 'none'}
    """
    check_count("batches", batches, at_least=1, meaning="how many fresh batches to try")
    trained = [known for known in model_parameters(model) if known.parameter.requires_grad]
    tensors = [known for known in trained if known.parameter.dim() >= 2 and not known.is_bias]
    by_name = {known.name: known for known in trained}
    # Without gains, because the enlarged gains of many layers would multiply and the loss would overflow.
    weights = []
    for known in (each for each in tensors if not _is_gain(each)):
        bias = known.name.partition(".parametrizations")[0].removesuffix(".weight") + ".bias"
        weights.append(_Weight(known.name, known.parameter, known.split, by_name.get(bias)))
    with preserved(model):
        _leave_special_point_(trained)
        answers = _Trial(model, loss, batches).answers(weights)
    return Probe({known.name: answers.get(known.name, GAIN) for known in tensors})


def _is_gain(known: ModelParameter) -> bool:
    """Return whether a tensor has one entry per neuron, in a shape that broadcasts, such as (C, 1, 1, 1)."""
    shape = known.parameter.shape
    return known.split.granularity == "none" and len(shape) > 2 and max(shape) == known.parameter.numel()


@torch.no_grad()
def _leave_special_point_(trained: Sequence[ModelParameter]) -> None:
    """Add noise to values that may be 0 or 1 by design: gains, biases, scalars and uninitialised matrices."""
    state = random_state()
    torch.manual_seed(0)
    for each in trained:
        p = each.parameter
        if p.dim() < 2 or each.is_bias or _is_gain(each):
            p.add_(torch.randn_like(p), alpha=NOISE)
        elif p.square().mean().sqrt() < TINY:
            p.add_(torch.randn_like(p), alpha=(p.shape[0] / p.numel()) ** 0.5)
    # The loss draws the same batches as without the noise.
    restore_random_state(state)


@final
@dataclass(frozen=True, eq=False)
class _Weight:
    """A weight and the bias of its layer, which a normalisation rescales together."""

    name: str
    parameter: nn.Parameter
    split: Split
    bias: ModelParameter | None

    @property
    def with_bias(self) -> list[nn.Parameter]:
        return [self.parameter] if self.bias is None else [self.parameter, self.bias.parameter]

    def grads(self, batches: Batches) -> list[Tensor]:
        return [batch[self.parameter] for batch in batches if self.parameter in batch]

    def has_gradient(self, batches: Batches) -> bool:
        return any(bool(grad.any()) for grad in self.grads(batches))

    def is_suspect(self, batches: Batches) -> bool:
        splits = cosines_by_split(self.split, self.parameter.detach(), self.grads(batches))
        return any(cosine < SUSPECT for _, cosine in splits)


@final
@dataclass(frozen=True)
class _Trial:
    """Experiments with a model, on fresh batches of a loss."""

    model: nn.Module
    loss: Loss
    batches: int

    def answers(self, weights: Sequence[_Weight]) -> dict[str, Invariance]:
        grads = self._gradients(weights)
        suspects = [weight for weight in weights if weight.is_suspect(grads)]
        enlarged = self._gradients_enlarged(suspects)
        finest = {weight.name: _finest(weight, enlarged) for weight in suspects}
        candidates = {name: invariance for name, invariance in finest.items() if invariance is not None}
        proven = self._confirmed([weight for weight in suspects if weight.name in candidates], candidates)
        answers = {}
        for weight in weights:
            if not weight.has_gradient(grads):
                answers[weight.name] = UNREACHED
            elif weight in suspects and not weight.has_gradient(enlarged):
                # If all are enlarged together, layers without a normalisation may saturate or overflow.
                answers[weight.name] = self._alone(weight)
            else:
                answers[weight.name] = proven.get(weight.name, SENSITIVE)
        return answers

    def _gradients(self, weights: Sequence[_Weight]) -> Batches:
        parameters = [p for weight in weights for p in weight.with_bias]
        return [gradients(self.model, self.loss, parameters) for _ in range(self.batches)] if parameters else []

    def _gradients_enlarged(self, weights: Sequence[_Weight]) -> Batches:
        with _enlarged(weights):
            try:
                return self._gradients(weights)
            except NonFiniteLossError:  # the loss overflows
                return []

    def _confirmed(self, weights: Sequence[_Weight], candidates: Mapping[str, Invariance]) -> dict[str, Invariance]:
        """Confirm by rescaling: all weights at once if the loss does not change, else halves, down to one weight."""

        def change_() -> None:
            for weight in weights:
                _rescale_(weight.parameter, candidates[weight.name], ENLARGED)
                if weight.bias is not None:
                    weight.bias.parameter.mul_(ENLARGED)

        if not weights or self._effects(change_)[0] < LOSS_CHANGE:
            return {weight.name: candidates[weight.name] for weight in weights}
        if len(weights) == 1:
            return {weights[0].name: self._alone(weights[0])}
        middle = len(weights) // 2
        return self._confirmed(weights[:middle], candidates) | self._confirmed(weights[middle:], candidates)

    def _alone(self, weight: _Weight) -> Invariance:
        enlarged = self._gradients_enlarged([weight])
        if not weight.has_gradient(enlarged):
            return UNREACHED
        invariance = _finest(weight, enlarged)
        if invariance is not None and self._ignores(partial(_rescale_, weight.parameter, invariance), weight):
            return invariance
        return SENSITIVE

    def _ignores(self, rescale_: Callable[[], object], weight: _Weight) -> bool:
        """Return whether a new scale of the enlarged weight changes the loss far less than a new direction."""
        with _enlarged([weight]):
            by_scale, by_direction = self._effects(rescale_, partial(_redirect_, weight.parameter))
        return by_scale <= SCALE_TO_DIRECTION * by_direction + ROUNDING

    @torch.no_grad()
    def _effects(self, *changes: Callable[[], object]) -> list[float]:
        """Return the relative change of the loss on one batch by each of these changes of the model.

        If the same random state does not reproduce the batch, as with an iterator, a change must exceed the range of
        the loss over several batches.
        """
        state = random_state()
        before = float(self.loss(self.model))
        restore_random_state(state)
        losses = [before, float(self.loss(self.model))]
        # Two batches may have nearly the same loss by chance, but not several.
        if abs(losses[1] - before) > LOSS_CHANGE * abs(before):
            losses += [float(self.loss(self.model)) for _ in range(self.batches)]
        spread = max(losses) - min(losses)
        effects = []
        for change_ in changes:
            with preserved(self.model):
                change_()
                restore_random_state(state)
                after = float(self.loss(self.model))
            effects.append(max(abs(after - before) - 3 * spread, 0.0) / max(abs(before), 1e-12))
        return effects


@contextmanager
def _enlarged(weights: Iterable[_Weight]) -> Iterator[None]:
    # With their biases, because a normalisation rescales both. Enlarged alone, a weight would look scale-sensitive.
    parameters = [p.detach() for weight in weights for p in weight.with_bias]
    for p in parameters:
        p.mul_(ENLARGED)
    try:
        yield
    finally:
        for p in parameters:
            p.div_(ENLARGED)


def _finest(weight: _Weight, batches: Batches) -> Invariance | None:
    """Return the finest split whose vectors are orthogonal to their gradients on every batch."""
    w = weight.parameter.detach()
    grads = weight.grads(batches)
    for split, cosine in cosines_by_split(weight.split, w, grads):
        if cosine < COSINE:
            centred = split.granularity == "neuron" and all(ignores_mean(split, grad, COSINE) for grad in grads)
            return Invariance(split.granularity, split.axis, split.group_size, centred, "orthogonal")
    return None


def _rescale_(w: nn.Parameter, invariance: Invariance, factor: float = 1.0) -> None:
    """Multiply each vector by `factor` times a random number of its own from ½ to 2."""
    split = invariance.split
    draws = torch.rand(2, split.num_vectors(w.shape), generator=torch.Generator().manual_seed(0))
    # Factors from 2^-1 to 2^-½ and from 2^½ to 2, because factors near 1 would prove nothing.
    factors = factor * torch.exp2(torch.where(draws[0] < 0.5, -1, 1) * (0.5 + draws[1] / 2)).to(w)
    mean = split.broadcast(split.mean(w), w.shape).to(w.dtype) if invariance.centred else 0.0
    w.mul_(split.broadcast(factors, w.shape)).add_(mean)  # a mean that the loss ignores may move as well


def _redirect_(w: nn.Parameter) -> None:
    torch.manual_seed(1)
    # About the same norm in a random direction.
    w.copy_(torch.randn_like(w) * w.square().mean().sqrt())
