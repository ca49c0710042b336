"""A sweep in a terminal: all settings with the best first, the arms with their good regions, and the failures."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gyroscope.render.terminal import table
from gyroscope_lab.sweeps.data import Comparison, SettingData, SweepData, Width


class SweepText:
    """A sweep as text, the best settings first."""

    def __init__(self, sweep: SweepData) -> None:
        self.sweep = sweep

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _parts(self.sweep, options.max_width)


def _parts(sweep: SweepData, width: int) -> Iterator[RenderableType]:
    failed = len(sweep.failed)
    left = sweep.planned - sweep.ended
    waiting = f", {left} not run yet" if left else ""
    metric = sweep.metric.replace("_", " ")
    count = f", {metric}: {sweep.ended - failed} of {sweep.planned} trials succeeded, {failed} failed{waiting}\n"
    yield Text.assemble((sweep.name, "bold"), count)
    axes = list(sweep.axes)
    order = sorted(sweep.settings, key=lambda each: (not each.n, -each.mean if sweep.higher_is_better else each.mean))
    header = [*(axis.replace("_", " ") for axis in axes), "mean", "± 95 %", "deviation", "n", "failed", "p", "good"]
    yield from table(header, [_row(setting, axes) for setting in order], width)
    yield Text("Mean over seeds. p: Welch's test against the best. Good: near the best of its arm.\n", style="dim")
    for arm in sweep.arms:
        if arm.best is None:
            yield Text(f"• {arm.name or 'all settings'}: no score")
            continue
        top = sweep.settings[arm.best]
        at = ", ".join(f"{axis} {top.settings[axis]}" for axis in sweep.drawn)
        best = f"• {arm.name or 'best'}: {_number(top.mean)} ± {_number(top.interval)}{' at ' if at else ''}{at}"
        good = f"{arm.good} of {arm.settings} settings within {sweep.tolerance:.0%} of it"
        yield Text(", ".join([best, good, *map(region_text, arm.widths)]))
    yield from (Text("• " + comparison_text(sweep, each)) for each in sweep.comparisons)
    for setting, trial in sweep.failed:
        at = ", ".join(f"{axis} {value}" for axis, value in setting.settings.items())
        yield Text.assemble(("✗", "bold red"), f" {at}, seed {trial.seed}: {trial.problem}")


def region_text(width: Width) -> str:
    """Return the good range of an axis, with ≥ if it reaches an end of the grid."""
    edge = "≥ " if width.at_low_end or width.at_high_end else ""
    decades = f", {edge}{width.decades:.1f} decades" if isfinite(width.decades) else ""
    return f"good {width.axis} from {width.low} to {width.high}{decades}"


def comparison_text(sweep: SweepData, test: Comparison) -> str:
    """Return two arms, the difference of their best means, and whether chance explains it."""
    names = f"{sweep.arms[test.first].name} against {sweep.arms[test.second].name}"
    chance = f"Welch's p = {test.p_value:.2g}" if isfinite(test.p_value) else "too few seeds for a test"
    return f"{names}, each at its best: {test.difference:+.4g} ({chance})"


def _row(setting: SettingData, axes: list[str]) -> list[str]:
    cells = [_value(setting.settings[axis]) for axis in axes]
    numbers = [_number(value) for value in (setting.mean, setting.interval, setting.deviation)]
    p_value = f"{setting.p_best:.2g}" if isfinite(setting.p_best) else "–"
    return [*cells, *numbers, str(setting.n), str(setting.failures), p_value, "✓" if setting.good else ""]


def _value(value: Any) -> str:
    return "default" if value is None else str(value)


def _number(value: float) -> str:
    return f"{value:.4f}" if isfinite(value) else "–"
