"""Which parameters are scale-invariant, and at which granularity: found by trying, not by the names of layers."""

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
from gyroscope.model.gradients import (
    Gradients,
    Loss,
    NonFiniteLossError,
    gradients,
    preserved,
    random_state,
    restore_random_state,
)
from gyroscope.model.measured import watched_layers
from gyroscope.model.orthogonality import cosines_by_split, ignores_mean
from gyroscope.model.parameters import ModelParameter, model_parameters
from gyroscope.model.selection import Decision, Invariance

Batches = list[Gradients]

# Standard deviation of what is added to gains, biases and scalars. Gains that start at 0 let no gradient through, and
# biases that start at 0 hide that they are scaled with their weight; 0.3 shows both beside activations of about 1.
NOISE = 0.3
# Root mean square of a matrix below which it counts as not yet initialised, like the zeros of an output layer.
TINY = 1e-4
# |cos∠(w, g)| in some split below which a weight may be scale-invariant: a normalisation's eps can show so much.
SUSPECT = 0.1
# Factor by which suspects, with their biases, are enlarged for the proof. An invariant weight's function stays as it
# is, with a normalisation's eps 256 times less visible; anything else shows what it is.
ENLARGED = 16.0
# |cos∠(w, g)| of an enlarged weight below which it is scale-invariant: rounding gives 1e-5, a random vector of a
# thousand entries 3e-2.
COSINE = 1e-3
# Relative change of the loss that all invariant weights, enlarged and rescaled together, may show.
LOSS_CHANGE = 1e-4
# Change of the loss by a new scale, in units of the change by a new direction, that an invariant weight may show.
SCALE_TO_TURN = 1e-2
# Relative change of the loss that rounding in float32 makes.
ROUNDING = 1e-6
UNREACHED = Invariance("none", evidence="no gradient reaches it", undecided=True)
GAIN = Invariance("none", evidence="a gain: one entry per neuron has no direction")


@final
class Probe(dict[str, Invariance]):
    """Parameter name to Invariance; prints as a table, and goes into `param_groups(…, probe=…)`."""

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False, header_style="")
        for column in ("parameter", "invariant per", "axis", "group size", "mean too", "because"):
            table.add_column(column, overflow="fold")
        for name, invariance in self.items():
            where = ["–", "–", "–"]
            if invariance.granularity != "none":
                centred = "yes" if invariance.centred else "no"
                where = [str(invariance.axis), str(invariance.group_size), centred]
            granularity = "cannot say" if invariance.undecided else invariance.granularity
            table.add_row(name, granularity, *where, invariance.evidence)
        return to_text(table)


def probe(model: nn.Module, loss: Loss, *, batches: int = 4) -> Probe:
    """Find the scale-invariant vectors of every weight of two or more dimensions.

    Where the loss ignores the scale of a vector w, its gradient is orthogonal to it: ⟨w, g⟩ = 0 on every batch. The
    finest split for which that holds is confirmed by rescaling. `loss(model)` gives a scalar on a fresh batch at each
    call. Model, buffers, gradients and random states are left as they were.

    A fresh model is a special point: gains of 0 stop gradients, biases of 0 look as if they were not there. So noise is
    first added to gains and biases, and takes the place of matrices of zeros. Where no gradient arrives even so, the
    answer is `undecided`, which is not "not invariant".

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    >>> found = probe(model, lambda model: model(torch.randn(64, 8)).square().sum(1).mean())
    >>> {name: invariance.granularity for name, invariance in found.items()}
    {'0.weight': 'neuron', '2.weight': 'none'}
    """
    check_count("batches", batches, at_least=1, meaning="how many fresh batches to try")
    trained = [known for known in model_parameters(model) if known.parameter.requires_grad]
    tensors = [known for known in trained if known.parameter.dim() >= 2 and not known.is_bias]
    # Enlarged with the weights, the gains of many layers would multiply: the loss then overflows, and every weight
    # needs a trial of its own.
    weights = [known for known in tensors if not _is_gain(known)]
    with preserved(model):
        _leave_special_point_(trained)
        trial = _Trial(model, loss, batches, _biases(weights, trained))
        answers = trial.answers(weights)
    return Probe({known.name: answers.get(known.name, GAIN) for known in tensors})


def _is_gain(known: ModelParameter) -> bool:
    """Return whether a tensor has one entry per neuron, in a shape that broadcasts, such as (C, 1, 1, 1)."""
    shape = known.parameter.shape
    return known.split.granularity == "none" and len(shape) > 2 and max(shape) == known.parameter.numel()


def _biases(weights: Sequence[ModelParameter], known: Sequence[ModelParameter]) -> dict[str, ModelParameter]:
    """The bias beside each weight, by the weight's name."""
    by_name = {each.name: each for each in known}
    layers = {weight.name: weight.name.partition(".parametrizations")[0].removesuffix(".weight") for weight in weights}
    return {name: by_name[f"{layer}.bias"] for name, layer in layers.items() if f"{layer}.bias" in by_name}


@torch.no_grad()
def _leave_special_point_(trained: Sequence[ModelParameter]) -> None:
    """Add noise to what may be 0 or 1 by design: gains, biases, scalars and matrices that are not yet initialised."""
    state = random_state()
    torch.manual_seed(0)
    for each in trained:
        p = each.parameter
        if p.dim() < 2 or each.is_bias or _is_gain(each):
            p.add_(torch.randn_like(p), alpha=NOISE)
        elif p.square().mean().sqrt() < TINY:
            p.add_(torch.randn_like(p), alpha=(p.shape[0] / p.numel()) ** 0.5)
    # The batches are those that would have come without it.
    restore_random_state(state)


@final
@dataclass(frozen=True)
class _Trial:
    """What is tried of a model, on fresh batches of a loss; `biases` stand beside weights, by the weight's name."""

    model: nn.Module
    loss: Loss
    batches: int
    biases: Mapping[str, ModelParameter]

    def answers(self, weights: Sequence[ModelParameter]) -> dict[str, Invariance]:
        """An answer for each weight, by name."""
        grads = self._gradients(weights)
        suspects = [weight for weight in weights if self._is_suspect(weight, grads)]
        enlarged = self._gradients_enlarged(suspects)
        finest = {weight.name: _finest(weight, enlarged) for weight in suspects}
        candidates = {name: invariance for name, invariance in finest.items() if invariance is not None}
        proven = self._confirmed([weight for weight in suspects if weight.name in candidates], candidates)
        answers = {}
        for weight in weights:
            if not _arrives(weight, grads):
                answers[weight.name] = UNREACHED
            elif weight in suspects and not _arrives(weight, enlarged):
                # Enlarged together, layers without a normalisation may have saturated or overflown.
                answers[weight.name] = self._alone(weight)
            else:
                answers[weight.name] = proven.get(weight.name) or self._not_invariant(weight, enlarged)
        return answers

    def _gradients(self, weights: Sequence[ModelParameter]) -> Batches:
        """Gradients of weights and of their biases on each batch."""
        parameters = [each.parameter for each in self._with_biases(weights)]
        return [gradients(self.model, self.loss, parameters) for _ in range(self.batches)] if parameters else []

    def _gradients_enlarged(self, weights: Sequence[ModelParameter]) -> Batches:
        """The same with the weights enlarged; none where the loss overflows."""
        with self._enlarged(weights):
            try:
                return self._gradients(weights)
            except NonFiniteLossError:
                return []

    def _with_biases(self, weights: Iterable[ModelParameter]) -> list[ModelParameter]:
        return [each for weight in weights for each in (weight, self.biases.get(weight.name)) if each is not None]

    def _is_suspect(self, weight: ModelParameter, batches: Batches) -> bool:
        splits = cosines_by_split(weight.split, weight.parameter.detach(), _of(weight, batches))
        if any(cosine < SUSPECT for _, cosine in splits) or self._cosine_with_bias(weight, batches) < SUSPECT:
            return True
        return bool(_invariant_parts(weight, batches, SUSPECT))

    def _cosine_with_bias(self, weight: ModelParameter, batches: Batches) -> float:
        """The largest |cos∠(w, g)| of a weight and its bias as one vector; 1 where there is none."""
        bias = self.biases.get(weight.name)
        if bias is None or not all(weight.parameter in batch and bias.parameter in batch for batch in batches):
            return 1.0
        pair = torch.cat([weight.parameter.detach().flatten(), bias.parameter.detach().flatten()])
        grads = [torch.cat([batch[weight.parameter].flatten(), batch[bias.parameter].flatten()]) for batch in batches]
        return max((abs(float(torch.cosine_similarity(pair, grad, dim=0))) for grad in grads), default=1.0)

    @contextmanager
    def _enlarged(self, weights: Iterable[ModelParameter]) -> Iterator[None]:
        """Weights with their biases ENLARGED times as large; as they were afterwards."""
        # The bias is part of what a normalisation rescales: enlarged alone, a weight would look sensitive.
        parameters = [each.parameter for each in self._with_biases(weights)]
        with torch.no_grad():
            for p in parameters:
                p.mul_(ENLARGED)
        try:
            yield
        finally:
            with torch.no_grad():
                for p in parameters:
                    p.div_(ENLARGED)

    def _confirmed(
        self, weights: Sequence[ModelParameter], candidates: Mapping[str, Invariance]
    ) -> dict[str, Invariance]:
        """What survives rescaling: all at once if the loss stays, else half by half, down to one weight alone."""

        def change_() -> None:
            for weight in weights:
                _rescale_(weight.parameter, candidates[weight.name], ENLARGED)
                if weight.name in self.biases:
                    self.biases[weight.name].parameter.mul_(ENLARGED)

        if not weights or self._effects(change_)[0] < LOSS_CHANGE:
            return {weight.name: candidates[weight.name] for weight in weights}
        if len(weights) == 1:
            return {weights[0].name: self._alone(weights[0])}
        middle = len(weights) // 2
        return self._confirmed(weights[:middle], candidates) | self._confirmed(weights[middle:], candidates)

    def _alone(self, weight: ModelParameter) -> Invariance:
        """The answer for one weight, enlarged alone."""
        enlarged = self._gradients_enlarged([weight])
        if not _arrives(weight, enlarged):
            return UNREACHED
        invariance = _finest(weight, enlarged)
        if invariance is not None and self._is_unmoved(weight, partial(_rescale_, weight.parameter, invariance)):
            return invariance
        return self._not_invariant(weight, enlarged)

    def _not_invariant(self, weight: ModelParameter, enlarged: Batches) -> Invariance:
        """Why a weight is not invariant: most often a bias before the normalisation."""
        reason = "the loss depends on its scale, however it is split"
        parts = _invariant_parts(weight, enlarged, COSINE)
        if parts:
            reason = f"only its part {', '.join(parts)}: layers of their own would separate it from the others"
        if self._cosine_with_bias(weight, enlarged) < COSINE:
            both = self._with_biases([weight])
            if self._is_unmoved(weight, partial(torch._foreach_mul_, [each.parameter for each in both], 2.0)):
                reason = f"only together with {both[1].name}: a bias before the normalisation; bias=False would do"
        return Invariance("none", evidence=reason)

    def _is_unmoved(self, weight: ModelParameter, rescale_: Callable[[], object]) -> bool:
        """Whether the loss ignores a new scale of the enlarged weight, compared with what a new direction does."""
        with self._enlarged([weight]):
            scaled, turned = self._effects(rescale_, partial(_turn_, weight.parameter))
        return scaled <= SCALE_TO_TURN * turned + ROUNDING

    @torch.no_grad()
    def _effects(self, *changes: Callable[[], object]) -> list[float]:
        """Relative change of the loss on one batch by each of these changes of the model.

        The batch is the same where drawing it again from the same random state gives it again; where it comes from an
        iterator, the range of the loss over several batches is what a change must exceed.
        """
        state = random_state()
        before = float(self.loss(self.model))
        # The same draws again: what differs now is not due to a change.
        restore_random_state(state)
        losses = [before, float(self.loss(self.model))]
        # Two batches may have nearly the same loss by chance; the range of several is no accident.
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


def _of(weight: ModelParameter, batches: Batches) -> list[Tensor]:
    return [batch[weight.parameter] for batch in batches if weight.parameter in batch]


def _arrives(weight: ModelParameter, batches: Batches) -> bool:
    return any(bool(grad.any()) for grad in _of(weight, batches))


def _finest(weight: ModelParameter, batches: Batches) -> Invariance | None:
    """The finest split whose vectors are orthogonal to their gradients on every batch."""
    w = weight.parameter.detach()
    grads = _of(weight, batches)
    for split, cosine in cosines_by_split(weight.split, w, grads):
        if cosine < COSINE:
            centred = split.granularity == "neuron" and all(ignores_mean(split, grad, COSINE) for grad in grads)
            evidence = f"|cos(w, g)| ≤ {cosine:.0e} in {split.num_vectors(w.shape)} vectors, loss unmoved by rescaling"
            return Invariance(split.granularity, split.axis, split.group_size, centred, evidence)
    return None


def _invariant_parts(weight: ModelParameter, batches: Batches, limit: float) -> list[str]:
    """Return the invariant parts of fused queries, keys and values, such as "q (per group of 64)".

    A norm of queries and keys head by head makes these two invariant, and the values not.
    """
    decision = Decision(weight.name, weight.parameter, weight.split, "")
    layers = list(watched_layers(decision, weight.split)) if decision.turns else []
    if len(layers) < 2:
        return []
    parts = []
    for layer in layers:
        axis = layer.split.axes(weight.parameter.dim())[0]
        w, *grads = (
            each.narrow(axis, layer.start, layer.stop - layer.start)
            for each in (weight.parameter.detach(), *_of(weight, batches))
        )
        finest = next((split for split, cosine in cosines_by_split(layer.split, w, grads) if cosine < limit), None)
        if finest is not None:
            size = f" of {finest.group_size}" if finest.granularity == "group" else ""
            parts.append(f"{layer.name.rpartition('[')[2][:-1]} (per {finest.granularity}{size})")
    return parts


def _rescale_(w: nn.Parameter, invariance: Invariance, factor: float = 1.0) -> None:
    """Multiply each vector by `factor` times a number of its own of ½ to 2."""
    split = invariance.split
    draws = torch.rand(2, split.num_vectors(w.shape), generator=torch.Generator().manual_seed(0))
    # Factors from 2^-1 to 2^-½ and from 2^½ to 2: none so near 1 that it would prove nothing.
    factors = factor * torch.exp2(torch.where(draws[0] < 0.5, -1, 1) * (0.5 + draws[1] / 2)).to(w)
    mean = split.broadcast(split.mean(w), w.shape).to(w.dtype) if invariance.centred else 0.0
    w.mul_(split.broadcast(factors, w.shape)).add_(mean)  # a mean that the loss ignores may move as well


def _turn_(w: nn.Parameter) -> None:
    """Another direction of about the same norm."""
    torch.manual_seed(1)
    w.copy_(torch.randn_like(w) * w.square().mean().sqrt())
