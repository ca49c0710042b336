"""A sweep in a terminal: a bar with the time left, then the table of its arms."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gyroscope._checks import check_count
from gyroscope.lab.sweeps.plan import Sweep, read_sweep
from gyroscope.lab.sweeps.run import outcome, run_local, run_ray
from gyroscope.lab.sweeps.table import Arm, arms, best, compare, good_region, write_table


def sweep_in_terminal(file: Path, out: Path, *, jobs: int, ray: str | None, data_root: Path | None) -> int:
    """Run the trials that are left and print what the sweep says; 1 where every trial failed."""
    check_count("jobs", jobs, at_least=1)
    sweep = read_sweep(file)
    console = Console()
    left = sum(outcome(trial, out) is None for trial in sweep.trials)
    columns = (TextColumn("{task.completed:,.0f} of {task.total:,.0f} trials"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=left)
        if ray is not None:
            ended = run_ray(sweep, out, None if ray == "local" else ray, data_root)
        else:
            ended = run_local(sweep, out, jobs, data_root)
        for _ in ended:
            progress.advance(task)
    outcomes = [found for trial in sweep.trials if (found := outcome(trial, out)) is not None]
    write_table(out / "sweep.sqlite", sweep, outcomes)
    known = arms(sweep, outcomes)
    console.print(arm_table(sweep, known))
    for found in outcomes:
        if found.problem:
            console.print(f"{found.trial.varied}: {found.problem}", markup=False)
    return int(not any(arm.values for arm in known))


def arm_table(sweep: Sweep, known: list[Arm]) -> Table:
    """Every setting with its mean, deviation and 95 % interval; p is Welch's against the best."""
    top = best(sweep, known)
    good = good_region(sweep, known)
    names = list(sweep.axes)
    caption = f"best is bold; {len(good)} of {len(known)} settings are within 2 % of it"
    table = Table(title=sweep.metric.replace("_", " "), caption=caption)
    for name in names:
        table.add_column(name)
    for column in ("mean", "deviation", "± 95 %", "n", "failed", "p against best"):
        table.add_column(column, justify="right")
    for arm in known:
        numbers = [arm.mean, arm.deviation, arm.interval]
        p_value = float("nan") if top is None or arm is top else compare(arm, top)
        cells = [str(arm.settings.get(name, "")) for name in names]
        cells += ["–" if number != number else f"{number:.4f}" for number in numbers]
        cells += [str(len(arm.values)), str(arm.failures), "–" if p_value != p_value else f"{p_value:.2g}"]
        table.add_row(*cells, style="bold" if arm is top else "")
    return table
