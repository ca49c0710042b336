"""Losses, gradients and updates beyond what their own past allows.

A deviation is that of a logarithm from the median of the values before it. It is unusual above five standard
deviations, estimated by a median, and above twice the largest usual one of the past.
"""

from collections.abc import Iterable, Iterator
from math import exp, nan
from typing import NamedTuple

import numpy as np

from gyroscope._types import Array, Int64, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.samples import Incident, Samples, jumped, previous
from gyroscope.advice.layer_families import FUSED_PART

# Median absolute deviation to standard deviation, for normal numbers.
NORMAL = 1.4826
# Growth of the spacing between samples from which they count as rarer than before.
WIDER = 2


class Past(NamedTuple):
    """How much of the past a value is judged by.

    least    least number of values whose median is the usual value
    part     1 for all values so far, 3 for the last third of them, because losses fall fast early in a run
    most     most of them
    needed   number of deviations that must be known before anything is judged
    enough   number of deviations from which the thresholds are not wider
    caution  factor by which they are wider before
    memory   number of deviations that are remembered
    block    values that are judged by the same usual value
    """

    least: int
    part: int
    most: int
    needed: int
    enough: int
    caution: float
    memory: int
    block: int


OF_LOSSES = Past(
    least=limit.EARLY_LOSS_LEVEL,
    part=3,
    most=limit.LOSSES_PER_BLOCK * limit.INCIDENT_LEVEL,
    needed=limit.EARLY_LOSSES,
    enough=limit.ENOUGH_LOSSES,
    caution=limit.EARLY_LOSS_CAUTION,
    memory=limit.LOSSES_PER_BLOCK * limit.INCIDENT_MEMORY,
    block=limit.LOSSES_PER_BLOCK,
)
OF_SAMPLES = Past(
    least=limit.EARLY_LEVEL,
    part=1,
    most=limit.INCIDENT_LEVEL,
    needed=limit.EARLY_SAMPLES,
    enough=limit.INCIDENT_LEVEL,
    caution=limit.EARLY_CAUTION,
    memory=limit.INCIDENT_MEMORY,
    block=limit.LEVELS_EVERY,
)

# Logarithms of the quantities that a too large gradient changes in a layer. For each the smallest deviation that counts
# over most layers, the smallest of one layer alone from its past and from the other layers, and the number of
# deviations of one layer that must be known. Momentum keeps only part of a gradient between samples, and small updates
# of all layers can hide that part, so updates need less distance from their past. In the first steps denominators grow
# fast, in some layers more than in others.
QUANTITIES = ("gradient", "update", "denominator")
FLOORS = (limit.INCIDENT_FLOOR, limit.INCIDENT_FLOOR, limit.DENOMINATOR_FLOOR)
LAYER_FLOORS = (limit.LAYER_FLOOR, limit.INCIDENT_FLOOR, limit.LAYER_DENOMINATOR_FLOOR)
ALONE_FLOORS = (limit.LAYER_FLOOR, limit.LAYER_FLOOR, limit.LAYER_DENOMINATOR_FLOOR)
NEEDED = (limit.EARLY_SAMPLES, limit.EARLY_SAMPLES, limit.INCIDENT_LEVEL)


def deviations(values: Array, past: Past, first: int = 0) -> Array:
    """Return how far each row is from the median of the rows before its block, NaN if there are too few.

    first  number of rows before these, a multiple of the block
    """
    result = np.full(values.shape, nan)
    for start in range(past.block, len(values), past.block):
        size = min(max((first + start) // past.part, past.least), past.most, start)
        if size < past.least:
            continue
        # NaN are sorted to the end, so a layer without a past has no usual value.
        level = np.partition(values[start - size : start], size // 2, axis=0)[size // 2]
        result[start : start + past.block] = values[start : start + past.block] - level
    return result


def allowed(known: Array, past: Past) -> float:
    """Return the largest upward deviation that is usual, given those of the past."""
    # Relative to their own median, because a falling loss is always below its past.
    noise = NORMAL * float(np.median(np.abs(known - np.median(known))))
    return _caution(known, past) * max(limit.INCIDENT_DEVIATIONS * noise, limit.INCIDENT_EXTREMES * float(known.max()))


def lasting(known: Array, past: Past) -> float:
    """Return the deviation that most of several losses must have to be a jump.

    Single spikes of the past do not move it. Losses near zero are skewed: a third of them may be far above the others.
    """
    median, upper = np.quantile(known, (0.5, 0.75))
    return _caution(known, past) * limit.JUMP_DEVIATIONS * NORMAL * float(upper - median)


def _caution(known: Array, past: Past) -> float:
    return past.caution if len(known) < past.enough else 1.0


def unusual_losses(steps: Array, losses: Array, rose: Mask, restarted: Mask, first: int = 0) -> list[Incident]:
    """Return single losses beyond the threshold, and jumps that last.

    A jump lasts if it raises most losses of a block. Single spikes do not, and they do not hide a jump.

    rose       losses that a higher learning rate explains if they last
    restarted  losses after a restart of the schedule, which are usual
    """
    deviation = deviations(np.log(losses), OF_LOSSES, first)
    single = np.zeros(len(losses), bool)
    jump = np.zeros(len(losses), bool)
    for start in range(0, len(losses), OF_LOSSES.block):
        block = slice(start, start + OF_LOSSES.block)
        now = deviation[block]
        if not (now > limit.LOSS_FLOOR).any():
            continue
        past = slice(max(0, start - OF_LOSSES.memory), start)
        known = deviation[past][~(single | jump)[past]]
        known = known[~np.isnan(known)]
        if len(known) < OF_LOSSES.needed:
            continue
        # The comparison with the largest one is cheaper than the whole threshold, and most blocks end here.
        if now.max() > max(limit.LOSS_FLOOR, limit.INCIDENT_EXTREMES * known.max()):
            single[block] = (now > max(limit.LOSS_FLOOR, allowed(known, OF_LOSSES))) & ~restarted[block]
        low = np.sort(now)[limit.LOSSES_BELOW_JUMP] if len(now) == OF_LOSSES.block else 0.0
        if low > limit.LOSS_FLOOR and not rose[block].any():
            jump[block] = low > lasting(known, OF_LOSSES)
    return _joined(steps, deviation, [*_singles(deviation, single), *_jumps(deviation, jump)])


class HighLosses(NamedTuple):
    """Losses `begin` to `end`, both included, that are above the usual by `height`."""

    begin: int
    end: int
    height: float
    lasts: bool


def _singles(deviation: Array, single: Mask) -> Iterator[HighLosses]:
    for number in np.flatnonzero(single).tolist():
        yield HighLosses(number, number, float(deviation[number]), lasts=False)


def _jumps(deviation: Array, jump: Mask) -> Iterator[HighLosses]:
    block = OF_LOSSES.block
    edges = np.flatnonzero(np.diff(jump, prepend=False, append=False))
    for start, stop in edges.reshape(-1, 2).tolist():
        height = float(np.sort(deviation[start : start + block])[limit.LOSSES_BELOW_JUMP])
        # A jump begins where the sum of all later losses, relative to half its height, is largest.
        before = max(0, start - block)
        above = deviation[before : start + block] - height / 2
        begin = before + int(np.argmin(np.cumsum([0.0, *above])))
        end = start + int(np.flatnonzero(deviation[start:stop] > height / 2)[-1])
        yield HighLosses(begin, end, height, lasts=True)


def _joined(steps: Array, deviation: Array, rises: Iterable[HighLosses]) -> list[Incident]:
    """Return incidents of rises that follow each other, without those from which training is recovering."""
    found: list[Incident] = []
    peak = 0.0
    last = 0
    for rise in sorted(rises):
        if rise.begin - last > limit.RECOVERY * OF_LOSSES.block:
            peak = 0.0
        last = rise.end
        if rise.height <= limit.MIN_LASTING_SHARE * peak:
            continue
        peak = max(peak, rise.height)
        within = deviation[rise.begin : rise.end + 1]
        evidence = {"loss": exp(float(within.max()))}
        if rise.lasts:
            evidence["lasting"] = exp(float(np.median(within)))
        since = int(steps[rise.begin - 1]) + 1 if rise.begin else 0
        step, end = int(steps[rise.begin]), int(steps[rise.end])
        if found and since <= found[-1].end + 1 + OF_LOSSES.block:
            found[-1].end = max(found[-1].end, end)
            found[-1].evidence |= {
                name: max(value, found[-1].evidence.get(name, value)) for name, value in evidence.items()
            }
        else:
            found.append(Incident("batches", since, step, end, (), "the loss", evidence))
    return found


@np.errstate(all="ignore")
def layer_quantities(samples: Samples) -> Array:
    """Return the logarithms of `QUANTITIES`: an array (quantities, samples, layers)."""
    # η_e = lr/(‖w‖²·B). B grows between samples if one of the gradients between them was large.
    denominators = np.log(samples["lr"] / (samples["effective_lr"] * samples["norm"] ** 2))
    table = np.array(
        [
            np.log(samples["unit_grad_norm"]),
            np.log(samples["tangential_update"] / samples["lr"]),
            denominators - previous(denominators),
        ]
    )
    table[~np.isfinite(table)] = nan
    return table


def regular_since(steps: Array) -> Int64:
    """Return for each sample the first one from which on samples have not become rarer, with more between them."""
    widest = np.fmax.accumulate(np.diff(steps, prepend=nan))
    return np.maximum.accumulate(np.where(widest >= WIDER * previous(widest), np.arange(len(steps)), 0))


def unusual_batches(samples: Samples, table: Array) -> list[Incident]:
    """Return the samples in which most layers differ from their own past, the layers sorted by how much."""
    since = regular_since(samples.steps)
    # The updates of some optimizers scale with another power of the learning rate.
    new_rate = jumped(samples["lr"], previous(samples["lr"]), limit.MAX_SMOOTH_FACTOR).any(1)
    since_rate = np.maximum.accumulate(np.where(new_rate, np.arange(len(samples)), since))
    evidence: dict[int, dict[str, float]] = {}
    for name, values, floor in zip(QUANTITIES, table, FLOORS, strict=True):
        middle = deviations(middle_of(values), OF_SAMPLES, samples.first)
        begin = since_rate if name == "update" else since
        for row in _beyond(middle, floor, begin):
            evidence.setdefault(row, {})[name] = exp(float(middle[row]))
    gradients = deviations(table[0], OF_SAMPLES, samples.first) if evidence else table[0]
    found = []
    for row in sorted(evidence):
        order = np.argsort(-gradients[row])
        reached = tuple(samples.layers[layer] for layer in order if gradients[row, layer] > limit.INCIDENT_FLOOR)
        step = int(samples.steps[row])
        found.append(Incident("batches", samples.since(row), step, step, reached, "the gradients", evidence[row]))
    return found


def _beyond(deviation: Array, floor: float, begin: Int64) -> Iterator[int]:
    """Yield the rows whose deviation is beyond the threshold, given the usual ones since a row."""
    beyond = np.zeros(len(deviation), bool)
    for row in np.flatnonzero(deviation > floor).tolist():
        past = slice(max(begin[row], row - OF_SAMPLES.memory), row)
        known = deviation[past][~beyond[past]]
        known = known[~np.isnan(known)]
        if len(known) >= OF_SAMPLES.needed and deviation[row] > allowed(known, OF_SAMPLES):
            beyond[row] = True
            yield row


def single_layers(samples: Samples, table: Array) -> Iterator[Incident]:
    """Yield the layer that differs most from its own past and from what the other layers do, in each sample.

    A layer's deviation is measured from its own median, and from the median deviation of all layers. So an effect
    of a batch on all layers is not attributed to one layer. An effect on some layers is not either, because the
    gradients of all queries and keys grow together when attention begins to learn.
    """
    # q, k and v of a fused weight belong to one parameter.
    parameters = np.array([FUSED_PART.sub("", name) for name in samples.layers])
    since = regular_since(samples.steps)
    deviation = np.array([deviations(values, OF_SAMPLES, samples.first) for values in table])
    unusual = deviation > np.reshape(LAYER_FLOORS, (-1, 1, 1))
    for row in np.flatnonzero(unusual.any((0, 2))).tolist():
        for number in np.flatnonzero(unusual[:, row].any(1)).tolist():
            # The gradient of one layer is measured against those of the others, which change with it.
            begin = 0 if QUANTITIES[number] == "gradient" else int(since[row])
            past = slice(max(begin, row - OF_SAMPLES.memory), row)
            known = np.where(unusual[number, past], nan, deviation[number, past])
            unusual[number, row] &= _is_alone(deviation[number, row], known, number, parameters)
        far = unusual[:, row]
        if not far.any():
            continue
        number = int(far.any(1).argmax())
        layer = int(np.where(far[number], deviation[number, row], -np.inf).argmax())
        evidence = {QUANTITIES[each]: exp(deviation[each, row, layer]) for each in np.flatnonzero(far[:, layer])}
        evidence["beta2"] = float(samples["beta2"][row, layer])
        step = int(samples.steps[row])
        name = samples.layers[layer]
        yield Incident("layer_gradient", samples.since(row), step, step, (name,), "the layer", evidence)


def _is_alone(now: Array, known: Array, number: int, parameters: Array) -> Mask:
    """Return the layers that differ from the others by more than the floor and by more than in the past."""
    alone = now - middle_of(now)
    far: Mask = (now > LAYER_FLOORS[number]) & (alone > ALONE_FLOORS[number])
    if not far.any():
        return far
    own = parameters == parameters[np.nanargmax(alone)]
    far &= own & (alone > limit.MIN_ALONE * np.fmax.reduce(alone[~own], initial=0.0))
    if not far.any():
        return far
    past = known - middle_of(known)[:, None]
    for layer in np.flatnonzero(far).tolist():
        usual = past[~np.isnan(past[:, layer]), layer]
        far[layer] = len(usual) >= NEEDED[number] and alone[layer] > allowed(usual, OF_SAMPLES)
    return far


def middle_of(values: Array) -> Array:
    """Return the median over the last axis without NaN. The median of none is NaN.

    >>> middle_of(np.array([[1.0, 4.0, nan], [nan, nan, nan]])).tolist()
    [2.5, nan]
    """
    in_order = np.sort(values, axis=-1)  # NaN at the end
    count = np.count_nonzero(~np.isnan(values), axis=-1, keepdims=True)
    lower = np.take_along_axis(in_order, np.maximum(count - 1, 0) // 2, axis=-1)
    upper = np.take_along_axis(in_order, np.minimum(count // 2, values.shape[-1] - 1), axis=-1)
    return np.asarray((lower + upper)[..., 0] / 2)
