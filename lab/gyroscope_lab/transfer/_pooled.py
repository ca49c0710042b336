"""Transfer rules compared over all networks: the mean difference of their losses, and which rules it supports.

The rule of decision was fixed before its seeds were looked at. A cell is a network and a change of one axis. The
difference of two rules is averaged over the cells, seed by seed. The cells of one network share their seeds, so they
count as one sample. Networks are independent of each other.

The MLP on Fashion-MNIST was added after the other networks had been looked at, but before it was trained. The rule of
decision did not change.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import ConfidenceInterval, student_quantile
from gyroscope_lab.framework.results import ExperimentRecord
from gyroscope_lab.transfer._rules_trial import COMPARED, MARGIN
from gyroscope_lab.transfer._width_settings import grid_parts, setting_of

# Cells that are left out of the mean. In 150 steps some seeds of the GPT stay on a plateau under every rule, and the
# losses of two seeds differ by 20 margins.
LEFT_OUT = {("batch", "gpt", 4.0)}
# The rules printed first, picked on seeds 0 to 4.
PICKED = {"batch": ("tau", "sqrt-batch"), "tokens": ("copy", "horizon"), "width": ("independent", "mup")}

# By network, (seeds, rules): the sum of the losses over the cells of the network.
Sums = Mapping[str, Array]


@dataclass(frozen=True)
class Pooled:
    """The losses of the rules of one axis over all cells."""

    axis: str
    sums: Sums
    cells: int

    def difference(self, rule: str, other: str) -> ConfidenceInterval:
        """Return the mean over the cells of a rule's loss minus another's, with its interval (Welch, Satterthwaite)."""
        names = COMPARED[self.axis]
        gaps = [sums[:, names.index(rule)] - sums[:, names.index(other)] for sums in self.sums.values()]
        return pooled_interval([gap / self.cells for gap in gaps])

    def above_best(self) -> dict[str, ConfidenceInterval]:
        """Return each rule's mean loss above that of the rule with the lowest mean."""
        names = COMPARED[self.axis]
        means = {name: self.difference(name, names[0]).mean for name in names}
        best = min(means, key=lambda name: means[name])
        return {name: self.difference(name, best) for name in names}

    def supported(self) -> tuple[tuple[str, ...], bool]:
        """Return the rules to print first, and whether the trials decide for one."""
        names = COMPARED[self.axis]
        differences = {(a, b): self.difference(a, b) for a in names for b in names if a != b}
        as_good = [name for name in names if all(differences[name, b].high <= MARGIN for b in names if b != name)]
        by_mean = sorted(names, key=lambda name: self.difference(name, names[0]).mean)
        if as_good:
            return (min(as_good, key=by_mean.index),), True
        picked = PICKED[self.axis]
        others = [name for name in by_mean if name not in picked]
        lost = [name for name in picked if any(differences[name, b].low > MARGIN for b in others)]
        kept = tuple(name for name in picked if name not in lost)
        return (*kept, *others[: len(lost)]), False


def pooled_interval(samples: list[Array]) -> ConfidenceInterval:
    """Return the sum of the means of independent samples with its 95 % interval.

    >>> str(pooled_interval([np.array([1.0, 1.1, 0.9])]))
    '1 [0.7516, 1.248]'
    """
    mean = sum(float(sample.mean()) for sample in samples)
    variances = [float(sample.var(ddof=1)) / len(sample) for sample in samples]
    total = sum(variances)
    n = min(map(len, samples))
    if total == 0:
        return ConfidenceInterval(mean, mean, mean, n)
    freedom = total**2 / sum(v**2 / (len(sample) - 1) for v, sample in zip(variances, samples, strict=True))
    half = student_quantile(freedom) * math.sqrt(total)
    return ConfidenceInterval(mean, mean - half, mean + half, n)


def read_pooled(out: Path, axis: str, networks: tuple[str, ...]) -> Pooled | None:
    """Return the losses of an axis from the records of a folder, or None if one is missing."""
    names = COMPARED[axis]
    sums = {}
    cells = 0
    for network in networks:
        record = ExperimentRecord.read(out, f"transfer/{axis}_{network}")
        if record is None or record.data["n"] < 2:
            return None
        loss = np.asarray(record.data["values"]["loss"], dtype=np.float64)
        loss = loss.reshape(len(loss), -1, len(names))
        factors = record.data["config"]["factors"]
        counted = [place for place, factor in enumerate(factors) if (axis, network, factor) not in LEFT_OUT]
        sums[network] = loss[:, counted].sum(1)
        cells += len(counted)
    for ratio in (4, 8) if axis == "width" else ():  # twice the width has a record with more seeds
        wider = ExperimentRecord.read(out, f"transfer/width_grid_{ratio}")
        if wider is not None:
            sums[f"gpt × {ratio}"] = _losses_of_wider(wider)
            cells += 1
    return Pooled(axis, sums, cells)


def _losses_of_wider(record: ExperimentRecord) -> Array:
    """Return the losses of the rules at a larger width, (seeds, rules)."""
    config = record.data["config"]
    parts = grid_parts(config["ratio"], config["lr_factors"])
    loss = np.asarray(record.data["values"]["loss"], dtype=np.float64)
    return loss[:, [parts.index(setting_of(name, config["ratio"])) for name in COMPARED["width"]]]
