"""The command line: argv to the calls of the library, and errors to one sentence."""

import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from gyroscope._files import check_output, read_toml, write_text
from gyroscope.commands import numeric, pair, progress_bar, show, whole
from gyroscope.integrations.extras import MissingExtraError

# Commands that the distribution gyroscope-lab adds. Without it they are still listed, and name the extra to install.
LAB_COMMANDS = {
    "demo": "Predict, train and compare a small network in a minute or two.",
    "lab": "Run the papers' experiments.",
    "sweep": "Train every combination of settings of a file.",
    "train": "Train a network on a task with any optimizer.",
}
# Steps, summed over layers, above which a forecast takes more than a moment.
LONG_RUN = 200_000
# Beginnings of typer's errors about what a command does not take.
UNKNOWN = ("No such option", "Got unexpected")
NEEDS_LAB = 'needs the lab: pip install "gyroscope[lab]"'

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

# Options shared by several commands.
Lr = Annotated[float | None, numeric("peak learning rate")]
WeightDecay = Annotated[float | None, numeric("weight decay, as in torch", "--weight-decay", "--wd")]
Betas = Annotated[str | None, typer.Option(help="for example 0.9,0.999")]
Momentum = Annotated[float | None, numeric("momentum of SGD and Muon")]
Nesterov = Annotated[bool | None, typer.Option("--nesterov", help="use Nesterov's momentum")]
FanIn = Annotated[float | None, numeric("entries of one weight vector", "--fan-in", "--width")]
Shape = Annotated[str | None, typer.Option(help="shape of the weight, for example 256x128 (Muon)")]
InitNorm = Annotated[float | None, numeric("initial norm of one vector, by default that of torch")]
UnitGradNorm = Annotated[float | None, numeric("gradient norm × weight norm (SGD)")]
ScheduleName = Annotated[str | None, typer.Option(help="constant, linear, cosine, wsd or inverse_sqrt")]
Warmup = Annotated[str | None, typer.Option(help="share of the run, for example 2%")]
Final = Annotated[float | None, numeric("last learning rate of linear, cosine and wsd, as a share of the peak")]
Decay = Annotated[float | None, numeric("share of the run in which wsd decays", "--decay-share")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead")]
Text = Annotated[bool, typer.Option("--text", help="print text instead of writing a page")]
Html = Annotated[Path | None, typer.Option(help="also write a page")]
Explain = Annotated[bool, typer.Option("--explain", help="print formulas and sources")]


def print_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from gyroscope import __version__

        typer.echo(f"gyroscope {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version")]


@app.callback()
def gyroscope(version: Version = False) -> None:
    """Measure, predict and control how fast every neuron rotates."""


@app.command(epilog="Example: gyroscope plan adamw --lr 1e-3 --wd 0.1 --fan-in 768 --steps 10000")
def plan(
    optimizer: Annotated[str | None, typer.Argument(help="adamw, sgdm, lion, muon, … (a wrong name lists all)")] = None,
    lr: Lr = None,
    weight_decay: WeightDecay = None,
    betas: Betas = None,
    momentum: Momentum = None,
    nesterov: Nesterov = None,
    linearised: Annotated[bool | None, typer.Option("--linearised", help="the paper's linear form of Lion")] = None,
    corrected_decay: Annotated[bool | None, typer.Option("--corrected-decay", help="AdamC: decay ∝ lr²")] = None,
    cautious_decay: Annotated[
        bool | None, typer.Option("--cautious-decay", help="decay only the entries that the update shrinks")
    ] = None,
    steps: Annotated[int | None, whole("length of the run, by default 10000")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear, cosine, wsd, step or inverse_sqrt")] = None,
    warmup: Annotated[int | None, whole("steps of linear warmup, part of the run")] = None,
    final: Final = None,
    decay: Decay = None,
    milestones: Annotated[str | None, typer.Option(help="steps at which lr drops, such as 6000,8000")] = None,
    factor: Annotated[float | None, numeric("factor of the step schedule at each milestone")] = None,
    fan_in: FanIn = None,
    shape: Shape = None,
    init_std: Annotated[float | None, numeric("standard deviation of the initial entries")] = None,
    init_norm: InitNorm = None,
    unit_grad_norm: UnitGradNorm = None,
    batch_size: Annotated[float | None, numeric("with --dataset-size, also count epochs")] = None,
    dataset_size: Annotated[float | None, numeric("examples in the data set")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with these settings and [[layer]] tables")] = None,
    as_json: AsJson = False,
    html: Html = None,
    explain: Explain = False,
) -> None:
    """Predict norms and rotation before training."""
    given = {name: value for name, value in locals().items() if value is not None}
    settings = {name: value for name, value in given.items() if name not in ("config", "as_json", "html", "explain")}

    from gyroscope.planner import plan_settings, read_settings  # not before --help has been answered

    if html is not None and config is not None:
        check_output(html, [config])
    checked = read_settings((read_toml(config) if config else {}) | settings)
    steps_of_all = checked.schedule.steps * len(checked.layers)
    with progress_bar("forecasting", steps_of_all > LONG_RUN) as progress:
        planned = plan_settings(checked, None if progress is None else lambda done: progress(done, steps_of_all))
    show_result(planned, html, as_json, explain)


@app.command(epilog="Example: gyroscope transfer adamw --lr 1e-3 --wd 0.1 --steps 5K --to steps=20K")
def transfer(
    optimizer: Annotated[str | None, typer.Argument(help="adamw, sgdm, lion, muon, hyperball, …")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="tuned run to read the settings from")] = None,
    lr: Lr = None,
    weight_decay: WeightDecay = None,
    betas: Betas = None,
    momentum: Momentum = None,
    batch: Annotated[str | None, typer.Option(help="batch of the tuned run, such as 0.5M tokens")] = None,
    tokens: Annotated[str | None, typer.Option(help="length of the tuned run, for example 10B")] = None,
    samples: Annotated[str | None, typer.Option(help="length of the tuned run in samples")] = None,
    steps: Annotated[str | None, typer.Option(help="length of the tuned run in steps")] = None,
    width: Annotated[str | None, typer.Option(help="entries of one hidden weight vector")] = None,
    depth: Annotated[str | None, typer.Option(help="number of blocks")] = None,
    params: Annotated[str | None, typer.Option(help="parameters, by default width² × depth")] = None,
    to: Annotated[str | None, typer.Option(help="what changes, for example batch=2M,tokens=200B,width=2048")] = None,
    schedule: ScheduleName = None,
    warmup: Annotated[str | None, typer.Option(help="share of the run, 2%, or steps of the tuned run")] = None,
    final: Final = None,
    decay: Decay = None,
    init_norm: InitNorm = None,
    rule: Annotated[str | None, typer.Option(help="rule to answer by, such as tau or batch=tau,width=mup")] = None,
    all_rules: Annotated[bool, typer.Option("--all", help="print what every rule gives, and its source")] = False,
    as_json: AsJson = False,
) -> None:
    """Give settings for another batch, length, width or depth."""
    given = {name: value for name, value in locals().items() if value is not None}

    from gyroscope.planner.transfer_answer import answer_transfer  # not before --help has been answered

    answer = answer_transfer(given)
    if as_json:
        from gyroscope.report.transfer_sentences import transfer_json

        typer.echo(transfer_json(answer))
    else:
        from gyroscope.render.transfer_text import transfer_text

        show(transfer_text(answer, all_rules))


@app.command(epilog="Example: gyroscope convert adamw lion --lr 1e-3 --wd 0.1")
def convert(
    optimizer: Annotated[str, typer.Argument(help="the tuned optimizer: adamw, sgdm, lion, muon, …")],
    other: Annotated[str, typer.Argument(help="the new one: the same names, and hyperball")],
    lr: Lr = None,
    weight_decay: WeightDecay = None,
    betas: Betas = None,
    momentum: Annotated[float | None, numeric("of the tuned optimizer, or of the new one if only that has it")] = None,
    nesterov: Nesterov = None,
    fixed: Annotated[str | None, typer.Option("--set", help="options of the new one, e.g. momentum=0.9")] = None,
    fan_in: Annotated[str | None, typer.Option(help="entries of one weight vector, for each layer")] = None,
    shape: Annotated[str | None, typer.Option(help="shape of each weight, for example 256x128,256x256 (Muon)")] = None,
    unit_grad_norm: Annotated[
        str | None, typer.Option(help="gradient norm × weight norm of each layer, for example 0.19,0.06 (SGD)")
    ] = None,
    schedule: ScheduleName = None,
    warmup: Warmup = None,
    final: Final = None,
    decay: Decay = None,
    as_json: AsJson = False,
) -> None:
    """Give equivalent settings for another optimizer."""
    given = {name: value for name, value in locals().items() if value is not None}

    from gyroscope.planner.convert_settings import read_conversion  # not before --help has been answered

    conversion = read_conversion(given)
    if as_json:
        typer.echo(conversion.json())
    else:
        from gyroscope.render.convert_text import conversion_text

        show(conversion_text(conversion))


@app.command(epilog="Example: gyroscope report runs/first")
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="runs, or a sweep")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the page to write")] = Path("report.html"),
    text: Text = False,
    as_json: AsJson = False,
    groups: Annotated[bool, typer.Option("--groups", help="norms by optimizer and group, with --text")] = False,
    at: Annotated[int | None, whole("step at which the page opens, for example that of an incident")] = None,
) -> None:
    """Report on a run, compare runs, or rank a sweep."""
    from gyroscope.render.page import page_json
    from gyroscope.report import SWEEP_FILE, gather

    if groups and not text:
        raise ValueError("--groups is a table of text. Add --text")

    if not (text or as_json):
        check_output(out, runs)
    if any((path / SWEEP_FILE).is_file() for path in runs):
        if at is not None:
            raise ValueError(f"--at {at}: a sweep has no steps. Name one of its runs instead")
        report_sweep(runs, out, text, as_json)
    elif groups:
        from gyroscope.render.run_text import groups_text
        from gyroscope.report.run_gather import gather_groups

        show(groups_text(gather_groups(runs)))
    else:
        with progress_bar("reading") as progress:
            gathered = gather(runs, at, progress)
        if as_json:
            typer.echo(page_json(gathered))
        elif text:
            from gyroscope.render.run_text import report_text

            show(report_text(gathered))
        else:
            from gyroscope.render.run_page import page

            write_page(out, page(gathered))


@app.command(epilog="Example: gyroscope autopsy checkpoint.pt")
def autopsy(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT", help="files or folders from old to new. The last is examined")
    ],
    optimizer: Annotated[str | None, typer.Option(help="adamw, adam-srt, … if the file does not name it")] = None,
    lr: Annotated[float | None, numeric("learning rate of the last step, of the first parameter group")] = None,
    weight_decay: WeightDecay = None,
    betas: Betas = None,
    momentum: Momentum = None,
    model_order: Annotated[
        Path | None, typer.Option(help="file with parameter names in order, with a blank line between groups")
    ] = None,
    html: Html = None,
    text: Annotated[bool, typer.Option("--text", help="print text even if a page is written")] = False,
    as_json: AsJson = False,
    explain: Explain = False,
) -> None:
    """Examine the last step of a checkpoint."""
    from gyroscope.checkpoint.checkpoint_autopsy import autopsy as examine

    if html is not None:
        check_output(html, [*checkpoints, *([model_order] if model_order else [])])
    with progress_bar("reading") as progress:
        examined = examine(
            *checkpoints,
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            betas=None if betas is None else pair(betas),
            momentum=momentum,
            model=None if model_order is None else parameter_names(model_order),
            progress=progress,
        )
    if html is not None:
        write_page(html, examined.page())
    if text or as_json or html is None:
        show_result(examined, None, as_json, explain)


def show_result(result: Any, html: Path | None, as_json: bool, explain: bool = False) -> None:
    """Print a plan or an autopsy, and write its page if `html` is given."""
    # The page comes first, because nothing is printed if it cannot be written.
    if html is not None:
        write_page(html, result.page())
    if as_json:
        typer.echo(result.json())
    else:
        show(result.text(explain))


def write_page(path: Path, html: str) -> None:
    """Write a page and print its path."""
    write_text(path, html)
    typer.echo(f"wrote {path}", err=True)


def parameter_names(path: Path) -> list[str] | list[list[str]]:
    """Return the names in a file, one per line, or those of each group if blank lines separate groups."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is not text. Write one parameter name per line") from None
    groups = [block.split() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return groups[0] if len(groups) == 1 else groups


@app.command(epilog="Example: gyroscope export runs/first table.csv")
def export(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="folders of runs")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="table to write: .csv or .parquet")],
) -> None:
    """Write runs as one table (.csv or .parquet)."""
    from gyroscope.store import export, open_run

    export([open_run(run) for run in runs], out)
    typer.echo(f"wrote {out}", err=True)


@app.command(epilog="Example: gyroscope watch runs")
def watch(
    directory: Annotated[Path, typer.Argument(help="directory with runs")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="port, or 0 for a free one")] = 0,
    host: Annotated[str, typer.Option(help="address to serve at. Other machines need a token")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
) -> None:
    """Follow runs on a local page while they train."""
    from gyroscope._text import printable
    from gyroscope.live.watch import watch

    watch(directory, host=host, port=port, browser=browser, say=lambda line: typer.echo(printable(line)))


@app.command()
def doctor(
    device: Annotated[str | None, typer.Option(help="cpu, cuda:1, mps, … By default cuda if there is one")] = None,
    as_json: AsJson = False,
) -> int:
    """Check this installation, and print a summary for bug reports."""
    from gyroscope.doctor import examine

    with progress_bar("checking") as progress:
        found = examine(device, progress)
    typer.echo(found.json() if as_json else found.text())
    return int(not found.passed)


def report_sweep(folders: list[Path], out: Path, text: bool, as_json: bool) -> None:
    """Report on a sweep with the function that the lab registers."""
    if len(folders) > 1:
        raise ValueError(f"{len(folders)} folders, one of them a sweep. Report on one sweep, or on runs")
    for registered in entry_points(group="gyroscope.reports", name="sweep"):
        registered.load()(folders[0], out, text, as_json)
        return
    raise ValueError(f"{str(folders[0])!r} is a sweep, and a report on it {NEEDS_LAB}")


def add_commands() -> None:
    """Add the commands of other distributions, or say what to install for those of the lab."""
    registered = entry_points(group="gyroscope.commands")
    for point in registered:
        point.load()(app)
    if "lab" in registered.names:
        return
    # All arguments, including --help, lead to the same answer: what to install.
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name, purpose in LAB_COMMANDS.items():
        help = f"{purpose} Needs gyroscope[lab]."
        app.command(name, help=help, add_help_option=False, context_settings=anything)(ask_for_lab)


def ask_for_lab(context: typer.Context) -> None:
    """Raise ValueError with the command that installs the lab."""
    raise ValueError(f"`gyroscope {context.info_name}` {NEEDS_LAB}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Bad input prints one sentence to stderr and returns 2."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        with warnings.catch_warnings():
            # Extreme settings overflow. The plan shows numbers that are not finite, so NumPy's warning adds nothing.
            warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)
            result = app(args=arguments, prog_name="gyroscope", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return complain(message + hint(error, message))
    except (ValueError, MissingExtraError) as error:
        return complain(str(error))
    except ArithmeticError as error:  # overflow or division by zero, far from any realistic setting
        return complain(f"numeric overflow ({error}). Check the magnitude of lr, weight decay and norms")
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", code=130)
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a name that is too long, a directory that may not be read
        where = f"{error.filename!s}: " if error.filename else ""
        return complain(f"{where}{error.strerror or error}. Choose another path")


def hint(error: Any, message: str) -> str:
    """Return what comes after an error of typer: an example if an argument is missing, or where options are listed."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    if message.startswith("Missing argument"):
        return f" {context.command.epilog or ''}"
    return f". `{context.command_path} --help` lists what it takes" if message.startswith(UNKNOWN) else ""


def complain(message: str, code: int = 2) -> int:
    """Print an error in one line."""
    from gyroscope._text import printable

    typer.echo(printable("gyroscope: " + " ".join(message.split())), err=True)
    return code


add_commands()

if __name__ == "__main__":
    sys.exit(main())
