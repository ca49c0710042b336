"""Runs on disk to the data of a page: `gather`."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

import gyroscope
from gyroscope._json import clean_text
from gyroscope._types import Array
from gyroscope.advice import Finding, Findings
from gyroscope.advice.history import LayerHistory, layer_histories
from gyroscope.advice.incidents import judged_steps
from gyroscope.advice.judgements.unknown import NO_PREDICTIONS
from gyroscope.advice.layer_families import plain_name
from gyroscope.advice.phrases import rule_text
from gyroscope.advice.record import group_config
from gyroscope.report.comparison import left_out_layers, shared_layers
from gyroscope.report.group_table import GroupTable, group_table
from gyroscope.report.run_data import MOST_DRAWN, OVER_LAYERS, Report, RunData, Series
from gyroscope.report.run_head import run_head
from gyroscope.report.run_layers import layers_data, map_starts, series_of
from gyroscope.report.run_table import run_layer_table, run_table
from gyroscope.store import Run, RunError, open_run
from gyroscope.store.reader import Progress

# Largest number of samples that a page shows.
MAX_SAMPLES = 2000
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def gather(paths: Sequence[str | os.PathLike[str]], at: int | None = None, progress: Progress | None = None) -> Report:
    """Return the report on one run, or on the layers that several share. Raise `RunError` if a run cannot be shown.

    at        step at which the page opens
    progress  that of `open_run`
    """
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(path, limit=MAX_SAMPLES, progress=progress)) for path in paths]
        for run in runs:
            check(run)
        last = max(int(run.steps[-1]) for run in runs)
        if at is not None and not 0 <= at <= last:
            raise RunError(f"There is no step {at:,} to open at. The last measured step is {last:,}.")
        shared = shared_layers([(str(run.path), run.layers) for run in runs]) if len(runs) > 1 else [None]
        of_runs = zip(runs, names_of(runs), shared, strict=True)
        gathered = [gather_run(run, name, layers=layers, at=at) for run, name, layers in of_runs]
        return make_report(gathered, [run.layers for run in runs], at)


def gather_groups(paths: Sequence[str | os.PathLike[str]]) -> dict[str, GroupTable]:
    """Return the table of parameter groups of each run, by name. Raise `RunError` if a run cannot be shown."""
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(path, limit=MAX_SAMPLES)) for path in paths]
        for run in runs:
            check(run)
        return dict(zip(names_of(runs), map(group_table, runs), strict=True))


def make_report(runs: Sequence[RunData], all_layers: Sequence[Sequence[str]], at: int | None = None) -> Report:
    """Return the report on gathered runs, given all layers that each run has."""
    coloured = by_loss([replace(run, colour=number) for number, run in enumerate(runs)])
    left_out = left_out_layers(runs, all_layers) if len(runs) > 1 else ""
    return Report(coloured, gyroscope.__version__, run_table(coloured), left_out, at=at)


def check(run: Run) -> None:
    """Raise unless there is something to show."""
    if not run.layers or "angular_update" not in run.quantities:
        raise RunError(f"{run.path} has no rotation of any layer. Train with gyro.Tracker.")
    if len(run.steps) == 0:
        raise RunError(f"{run.path} has no samples yet. Wait for the first one.")


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return names of runs: their directories, with as many parent directories as needed to distinguish them."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = [clean_text(str(Path(*path.parts[-depth:]))) for path in paths]
        if len(set(names)) == len(names):
            return names
    # The same run twice.
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def by_loss(runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs with the lowest final loss first, and those without a finite one last."""
    # Losses of different names cannot be compared.
    if len({run.head.loss_name for run in runs}) > 1:
        return list(runs)
    return sorted(runs, key=lambda run: run.head.loss if isfinite(run.head.loss) else inf)


def gather_run(
    run: Run,
    name: str,
    *,
    layers: Sequence[str] | None = None,
    id: str = "",
    live: bool = False,
    at: int | None = None,
) -> RunData:
    """Return all that the page shows of a run.

    run     as the store has it
    name    of the run
    layers  the layers that a comparison shows, by plain name. None means all
    id      of the run on a live page
    live    whether the page is live. It then requests series and distributions of the layer that is open
    at      step of which the distributions are included
    """
    findings = run.diagnose()
    judged = judged_steps(run)
    rename = plain_name if layers else str
    histories = [history for history in layer_histories(run) if layers is None or history.name in layers]
    sensitive = {name for finding in findings if finding.kind == "scale_sensitive" for name in finding.layers}
    layers_shown = layers_data(run, histories, live, at, rename, sensitive)
    # The loss first, because a page draws only the first values.
    head = run_head(run)
    logged = sorted(run.scalars, key=lambda name: name != head.loss_name)
    blocks = {name: np.stack([series_of(run, each.name, name) for each in histories]) for name in OVER_LAYERS}
    return RunData(
        name=name,
        head=head,
        status=run.status,
        total=run.total,
        stride=run.stride,
        steps=run.steps,
        map_steps=run.steps[map_starts(len(run.steps))],
        series=over_layers(blocks),
        groups=groups(run),
        layers=layers_shown,
        table=run_layer_table(layers_shown),
        config=run.config,
        id=id,
        summary=findings.summary,
        changes=findings.changes,
        findings=[_finding(finding, rename) for finding in findings],
        marks=_marks(layer_histories(run), findings),
        # A finding has the reason why layers have no prediction.
        notes=[*(note for note in run.notes if not _is_said(note, findings)), *([] if judged is None else [judged])],
        scalars={name: _logged(run, name) for name in logged[: MOST_DRAWN if live else None]},
    )


def _is_said(note: str, findings: Findings) -> bool:
    reason = note.removeprefix(NO_PREDICTIONS).partition(": ")[2]
    return note.startswith(NO_PREDICTIONS) and any(reason in finding.sentence for finding in findings)


def _logged(run: Run, name: str) -> dict[str, Any]:
    """Return the values that training logged, thinned evenly if there are many, and the last one."""
    steps, values = run.scalar(name)
    stride = -(-len(steps) // MAX_SAMPLES)
    return {"steps": steps[::stride], "values": values[::stride], "last": float(values[-1])}


def over_layers(blocks: Mapping[str, Array]) -> Series:
    """Return the series that the page shows for all layers together, from blocks (layers, samples) by name."""
    return {
        f"{name}.{level}": quantile(blocks[name], QUANTILES[level])
        for name, levels in OVER_LAYERS.items()
        for level in levels
    }


def quantile(block: Array, q: float) -> Array:
    """Return a quantile over the rows of a block, of finite numbers only. NaN if there is none.

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


def groups(run: Run) -> list[dict[str, Any]]:
    """Return one for each of the optimizer's groups, without series if none of its layers was measured."""
    stored = run.config.get("groups")
    histories = layer_histories(run)
    count = len(stored) if isinstance(stored, list) else 0
    shown = []
    for number in range(max([count, *(history.layer.group + 1 for history in histories)])):
        members = [history for history in histories if history.layer.group == number]
        series = {key: series_of(run, members[0].name, key) for key in ("lr", "weight_decay")} if members else {}
        rule = members[0].rule if members else None
        optimizer = str(group_config(run.config, number).get("optimizer", "unknown"))
        known = "" if rule is None else rule_text(rule)
        is_named = optimizer in ("unknown", known.partition("(")[0])
        text = known if known and is_named else ": ".join(filter(None, [optimizer, known]))
        shown.append({"rule": text, "layers": len(members), "series": series})
    return shown


def _finding(finding: Finding, rename: Callable[[str], str]) -> dict[str, Any]:
    return {**vars(finding), "layers": [rename(layer) for layer in finding.layers]}


def _marks(layers: Sequence[LayerHistory], findings: Findings) -> list[dict[str, Any]]:
    settled = sorted(history.settled_at for history in layers if np.isfinite(history.settled_at))
    marks = [(settled[len(layers) // 2], "settled", False)] if len(settled) > len(layers) // 2 else []
    marks += [(finding.evidence["step"], finding.mark, True) for finding in findings if finding.mark]
    return [{"step": step, "what": what, "incident": is_incident} for step, what, is_incident in marks]
