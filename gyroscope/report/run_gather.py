"""Runs on disk to the data of a page: `gather`."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import gyroscope
from gyroscope._json import clean_text
from gyroscope.advice import Diagnosis, Finding
from gyroscope.advice.history import LayerHistory, layer_histories
from gyroscope.report.run_data import (
    LAYER_SERIES,
    MOST_DRAWN,
    OVER_LAYERS,
    PANELS,
    Array,
    FindingData,
    GroupData,
    LayerData,
    LoggedSeries,
    Mark,
    Report,
    RunData,
    Series,
)
from gyroscope.report.run_layers import distributions, spread, summary
from gyroscope.report.run_theory import bound_of, plane, stability, update_bound
from gyroscope.store import Run, RunError, open_run
from gyroscope.store.reader import Progress

# Samples of a run that a page shows at most.
MOST = 2000
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95, "max": 1.0}


def gather(paths: Sequence[str | os.PathLike[str]], at: int | None = None, progress: Progress | None = None) -> Report:
    """The report on one run, or on several that have the same layers; `RunError` says in a sentence what is wrong.

    `at` is the step at which its page opens; `progress` that of `open_run`.
    """
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(path, most=MOST, progress=progress)) for path in paths]
        for run in runs:
            check(run)
        check_alike(runs)
        last = max(int(run.steps[-1]) for run in runs)
        if at is not None and not 0 <= at <= last:
            raise RunError(f"There is no step {at:,} to open at: the last one that was measured is {last:,}.")
        gathered = [gather_run(run, name, at=at) for run, name in zip(runs, names_of(runs), strict=True)]
    return Report(ordered(gathered), gyroscope.__version__, at=at)


def check(run: Run) -> None:
    """Raise unless there is something to show."""
    if not run.layers or "angular_update" not in run.quantities:
        raise RunError(f"{run.path} has no data of a tracker: no layer's rotation. Train with gyro.Tracker.")
    if len(run.steps) == 0:
        raise RunError(f"{run.path} is empty: it has no samples yet. Wait for the first, or train on.")


def check_alike(runs: Sequence[Run]) -> None:
    """Raise unless all runs have the same layers."""
    for other in runs[1:]:
        differing = sorted(set(runs[0].layers) ^ set(other.layers))
        if differing:
            raise RunError(
                f"{runs[0].path} and {other.path} have different layers, {differing[0]} is in one of them only: "
                "only runs of the same model can be compared. Report on each by itself."
            )


def names_of(runs: Sequence[Run]) -> list[str]:
    """Names of runs: their directories, with as many of those above as it takes to distinguish them."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = [clean_text(str(Path(*path.parts[-depth:]))) for path in paths]
        if len(set(names)) == len(names):
            return names
    # The same run twice.
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def ordered(runs: Sequence[RunData]) -> list[RunData]:
    """The run with the fewest findings, the one with the most, then the others in between."""
    # The two ends first: whoever compares many runs looks at these.
    best = sorted(runs, key=lambda run: run.score)
    return [best[0], best[-1], *best[1:-1]] if len(best) > 2 else best


def gather_run(run: Run, name: str, *, id: str = "", live: bool = False, at: int | None = None) -> RunData:
    """All that the page shows of a run. A live page asks for distributions one by one, so its data have none."""
    layers = layer_histories(run)
    blocks = {name: np.stack([series_of(run, layer, name) for layer in run.layers]) for name in OVER_LAYERS}
    return RunData(
        name=name,
        status=run.status,
        total=run.total,
        stride=run.stride,
        steps=run.steps,
        series={**over_layers(blocks), "update_bound": update_bound(bound_of(layers), run.steps)},
        groups=groups(run),
        layers=[_layer(run, history, live, at) for history in layers],
        plane=plane(layers),
        stability=stability(layers),
        config=run.config,
        id=id,
        **findings_data(run, live=live),
    )


def findings_data(run: Run, *, live: bool = False) -> dict[str, Any]:
    """What changes as a run goes on: findings, marks, notes and what training logged."""
    diagnosis = run.diagnose()
    findings = [_finding(finding) for finding in diagnosis]
    return {
        "verdicts": findings,
        "marks": _marks(layer_histories(run), diagnosis),
        "notes": run.notes,
        # A live page gets them again with each diagnosis, so it gets no more than it draws.
        "scalars": {name: _logged(run, name) for name in run.scalars[: MOST_DRAWN if live else None]},
    }


def _logged(run: Run, name: str) -> LoggedSeries:
    steps, values = run.scalar(name)
    stride = -(-len(steps) // MOST)
    return LoggedSeries(steps[::stride], values[::stride], float(values[-1]))


def series_of(run: Run, layer: str, name: str) -> Array:
    """A series by its name, quantity.statistic; all NaN where the run has no such quantity."""
    quantity, _, stat = name.partition(".")
    if quantity not in run.quantities:
        return np.full(len(run.steps), np.nan)
    return run.series(layer, quantity, stat or "mean")


def over_layers(blocks: Mapping[str, Array]) -> Series:
    """What the page shows of all layers together, from blocks (layers, samples) by name."""
    return {
        f"{name}.{level}": quantile(blocks[name], QUANTILES[level])
        for name, levels in OVER_LAYERS.items()
        for level in levels
    }


def quantile(block: Array, q: float) -> Array:
    """Over the rows of a block, finite numbers only; NaN where there is none.

    >>> quantile(np.array([[1.0, np.nan], [3.0, np.inf]]), 0.5)
    array([ 2., nan])
    """
    # Not np.nanquantile, which calls Python for each column and takes seconds for a long run. NaN are sorted last.
    ranked = np.sort(np.where(np.isfinite(block), block, np.nan), axis=0)
    place = q * np.maximum(np.isfinite(ranked).sum(0) - 1, 0)
    below = np.floor(place).astype(int)
    columns = np.arange(block.shape[1])
    low = ranked[below, columns]
    high = ranked[np.ceil(place).astype(int), columns]
    return np.asarray(low + (place - below) * (high - low))


def _layer(run: Run, history: LayerHistory, live: bool, at: int | None) -> LayerData:
    layer = run.layer(history.name)
    return LayerData(
        name=layer.name,
        shape=layer.shape,
        granularity=layer.granularity,
        vectors=layer.vectors,
        fan_in=layer.fan_in,
        group=layer.group,
        summary=summary(history),
        spread=spread(history),
        distributions={} if live else distributions(run, layer.name, at),
        series={name: series_of(run, layer.name, name) for name in LAYER_SERIES},
    )


def groups(run: Run) -> list[GroupData]:
    """One for each of the optimizer's groups; without series where none of its layers was measured."""
    stored = run.config.get("groups")
    known = stored if isinstance(stored, list) else []
    layers = [run.layer(name) for name in run.layers]
    shown = []
    for number in range(max([len(known), *(layer.group + 1 for layer in layers)])):
        names = [layer.name for layer in layers if layer.group == number]
        series = {key: series_of(run, names[0], key) for key in ("lr", "weight_decay")} if names else {}
        shown.append(GroupData(_rule(known[number] if number < len(known) else None), len(names), series))
    return shown


def _rule(group: Any) -> str:
    """AdamW(lr=0.001, …); the optimizer's class where theory does not know it."""
    if not isinstance(group, Mapping):
        return "unknown"
    rule = group.get("rule")
    if not isinstance(rule, Mapping):
        return str(group.get("optimizer", "unknown"))
    # JSON has lists.
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in rule.items()}
    options = (
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in known.items()
        if key != "name" and value is not False
    )
    shown = f"{rule.get('name')}({', '.join(options)})"
    optimizer = group.get("optimizer")
    return shown if optimizer in (None, rule.get("name")) else f"{optimizer}: {shown}"


def _finding(found: Finding) -> FindingData:
    panel = PANELS.get(found.kind, "equilibrium")
    return FindingData(
        found.kind, found.severity, found.sentence, found.remedy, found.layers, dict(found.evidence), panel, found.trial
    )


def _marks(layers: Sequence[LayerHistory], diagnosis: Diagnosis) -> list[Mark]:
    settled = sorted(history.settled_at for history in layers if np.isfinite(history.settled_at))
    marks = [Mark(settled[len(layers) // 2], "settled")] if len(settled) > len(layers) // 2 else []
    fallen = [finding.evidence["step"] for finding in diagnosis if finding.kind == "fell_out"]
    events = [Mark(finding.evidence["step"], finding.mark, incident=True) for finding in diagnosis if finding.mark]
    return [*marks, *(Mark(step, "fell out") for step in fallen), *events]
