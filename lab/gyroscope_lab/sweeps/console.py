"""A sweep in a terminal: a bar with the time left, then the results."""

from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from gyroscope.report import SWEEP_FILE
from gyroscope.tools import check_count, write_text
from gyroscope_lab.sweeps.plan import read_sweep
from gyroscope_lab.sweeps.report import gather_sweep
from gyroscope_lab.sweeps.run import forget_failures, outcome, run_local, run_ray
from gyroscope_lab.sweeps.table import outcomes_of, write_table
from gyroscope_lab.sweeps.text import SweepText


class TimeLeft(ProgressColumn):
    """The mean time per trial times the trials left. rich's own column ignores trials longer than 30 seconds."""

    def render(self, task: Task) -> Text:
        """Return hours, minutes and seconds, or dashes until the first trial has ended."""
        if not task.completed or task.elapsed is None:
            return Text("-:--:-- left")
        return Text(f"{timedelta(seconds=round(task.elapsed / task.completed * (task.remaining or 0)))} left")


def sweep_in_terminal(
    file: Path, out: Path, *, jobs: int | None, ray: str | None, data_root: Path | None, retry_failed: bool
) -> int:
    """Run the remaining trials and print the results. Return 1 if every trial failed, 130 after Ctrl-C, else 0."""
    if jobs is not None:
        check_count("jobs", jobs, at_least=1)
        if ray is not None:
            raise ValueError(f"jobs={jobs} and ray={ray!r}: Ray sets how many trials run at once, so give one of them")
    sweep = read_sweep(file)
    write_text(out / SWEEP_FILE, file.read_text(encoding="utf-8"))
    if retry_failed:
        forget_failures(sweep, out)
    console = Console()
    left = sum(outcome(trial, out) is None for trial in sweep.trials)
    columns = (TextColumn("{task.completed:,.0f} of {task.total:,.0f} trials"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeLeft(), console=console) as progress:
        task = progress.add_task("", total=left)
        ended = run_local(sweep, out, jobs or 1, data_root) if ray is None else run_ray(sweep, out, ray, data_root)
        try:
            for _ in ended:
                progress.advance(task)
        except KeyboardInterrupt:
            # Wait for the trials to write their checkpoints.
            ended.close()
            console.print("Interrupted. The same command continues the sweep.")
            return 130
    write_table(out / "sweep.sqlite", sweep, outcomes_of(sweep, out))
    data = gather_sweep(out)
    console.print(SweepText(data))
    if data.failed:
        console.print("To run failed trials again, add --retry-failed to the same command.", markup=False)
    console.print(f"To see the results on a page: gyroscope report {out}", markup=False, soft_wrap=True)
    return int(len(data.failed) == data.planned)
