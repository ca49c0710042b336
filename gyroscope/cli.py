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

from gyroscope._files import check_output, write_text
from gyroscope.commands import numeric, pair, progress_bar, progress_bar_of, show, whole
from gyroscope.integrations.extras import MissingExtraError

# Commands that the distribution gyroscope-lab adds. Without it they are listed too, and say what to install.
LAB_COMMANDS = {
    "demo": "Predict, train and compare a small network in a minute or two.",
    "lab": "Run the papers' experiments.",
    "sweep": "Train every combination of settings of a file.",
    "train": "Train a network on a task with any optimizer.",
}
NEEDS_LAB = 'needs the lab: pip install "gyroscope[lab]"'

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="See, predict and steady how fast every neuron of a network turns.",
)


def print_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from gyroscope import __version__

        typer.echo(f"gyroscope {__version__}")
        raise typer.Exit


@app.callback()
def gyroscope(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """See, predict and steady how fast every neuron of a network turns."""


@app.command()
def plan(
    optimizer: Annotated[
        str | None,
        typer.Argument(help="adamw, sgdm, lion, muon, …; an unknown name lists all"),
    ] = None,
    lr: Annotated[float | None, numeric("peak learning rate")] = None,
    weight_decay: Annotated[float | None, numeric("as torch has it", "--weight-decay", "--wd")] = None,
    betas: Annotated[str | None, typer.Option(help="for example 0.9,0.999")] = None,
    momentum: Annotated[float | None, numeric()] = None,
    nesterov: Annotated[bool | None, typer.Option("--nesterov")] = None,
    linearised: Annotated[bool | None, typer.Option("--linearised", help="Lion as its paper has it")] = None,
    corrected_decay: Annotated[bool | None, typer.Option("--corrected-decay", help="AdamC: decay ∝ lr²")] = None,
    cautious_decay: Annotated[
        bool | None, typer.Option("--cautious-decay", help="Decay only what the update shrinks")
    ] = None,
    steps: Annotated[int | None, whole("length of the run, 10000 if not given")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear, cosine, step or inverse_sqrt")] = None,
    warmup: Annotated[int | None, whole("steps of linear warmup, part of the run")] = None,
    final: Annotated[float | None, numeric("where linear and cosine end, as a share of lr")] = None,
    milestones: Annotated[str | None, typer.Option(help="of the step schedule, for example 6000,8000")] = None,
    factor: Annotated[float | None, numeric("of the step schedule at each milestone")] = None,
    fan_in: Annotated[float | None, numeric("entries of one weight vector")] = None,
    shape: Annotated[str | None, typer.Option(help="of the weight, for example 256x128 (muon)")] = None,
    init_std: Annotated[float | None, numeric("of the initial entries")] = None,
    init_norm: Annotated[float | None, numeric("of one vector; torch's own initialisation otherwise")] = None,
    unit_grad_norm: Annotated[float | None, numeric("gradient norm × weight norm; SGD's norms need it")] = None,
    batch_size: Annotated[float | None, numeric("with --dataset-size: also speak of epochs")] = None,
    dataset_size: Annotated[float | None, numeric()] = None,
    compare: Annotated[str | None, typer.Option(help="other optimizers, for example sgdm,lion")] = None,
    config: Annotated[
        Path | None, typer.Option(help="the same settings from a TOML file, with [[layer]] tables")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the plan as JSON")] = False,
    html: Annotated[Path | None, typer.Option(help="also write the plan as a page")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="name the formula behind every sentence")] = False,
) -> None:
    """Tell, before training, what a choice of optimizer, learning rate, weight decay and schedule will do."""
    given = {name: value for name, value in locals().items() if value is not None}
    settings = {name: value for name, value in given.items() if name not in ("config", "as_json", "html", "explain")}

    from gyroscope.planner import plan_settings, read_config, read_settings  # not before --help has been answered

    if html is not None and config is not None:
        check_output(html, [config])
    checked = read_settings((read_config(config) if config else {}) | settings)
    with progress_bar(checked.schedule.steps * len(checked.layers)) as progress:
        planned = plan_settings(checked, progress)
    if html is not None:
        write_text(html, planned.page())
    if as_json:
        typer.echo(planned.json())
    else:
        show(planned.text(explain))
    if html is not None:
        typer.echo(f"wrote {html}", err=True)


@app.command()
def transfer(
    optimizer: Annotated[str, typer.Argument(help="adamw, sgdm, lion, muon, hyperball, …")],
    lr: Annotated[float | None, numeric("tuned peak learning rate")] = None,
    weight_decay: Annotated[float | None, numeric("tuned weight decay", "--weight-decay", "--wd")] = None,
    betas: Annotated[str | None, typer.Option(help="for example 0.9,0.95")] = None,
    momentum: Annotated[float | None, numeric()] = None,
    batch: Annotated[str | None, typer.Option(help="of one step, for example 0.5M (in the unit of the length)")] = None,
    tokens: Annotated[str | None, typer.Option(help="length of the tuned run, for example 10B")] = None,
    samples: Annotated[str | None, typer.Option(help="the same in samples")] = None,
    steps: Annotated[str | None, typer.Option(help="the same in steps")] = None,
    width: Annotated[str | None, typer.Option(help="entries of one hidden weight vector")] = None,
    depth: Annotated[str | None, typer.Option(help="number of blocks")] = None,
    params: Annotated[str | None, typer.Option(help="parameters; width² × depth if not given")] = None,
    to: Annotated[str | None, typer.Option(help="what changes, for example batch=2M,tokens=200B,width=2048")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear, cosine or inverse_sqrt")] = None,
    warmup: Annotated[str | None, typer.Option(help="share of the run, 2%, or steps of the tuned run")] = None,
    final: Annotated[float | None, numeric("where linear and cosine end, as a share of lr")] = None,
    init_norm: Annotated[float | None, numeric("initial norm of one hidden vector; torch's own if not given")] = None,
    rule: Annotated[str | None, typer.Option(help="answer by one rule, for example tau")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the answer as JSON")] = False,
    html: Annotated[Path | None, typer.Option(help="also write the answer as a page")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="name the source of every rule")] = False,
) -> None:
    """Give settings for another batch, length, width or depth, by every published rule."""
    given = {name: value for name, value in locals().items() if value is not None}

    from gyroscope.planner.transfer_answer import answer_transfer  # not before --help has been answered
    from gyroscope.planner.transfer_settings import read_transfer

    answered = answer_transfer(read_transfer(given))
    if html is not None:
        write_text(html, answered.page())
    if as_json:
        typer.echo(answered.json())
    else:
        show(answered.text(explain))
    if html is not None:
        typer.echo(f"wrote {html}", err=True)


@app.command()
def convert(
    optimizer: Annotated[str, typer.Argument(help="the tuned optimizer: adamw, sgdm, lion, muon, …")],
    other: Annotated[str, typer.Argument(help="the new one: the same names, and hyperball")],
    lr: Annotated[float | None, numeric("tuned peak learning rate")] = None,
    weight_decay: Annotated[float | None, numeric("tuned weight decay", "--weight-decay", "--wd")] = None,
    betas: Annotated[str | None, typer.Option(help="of the tuned optimizer, for example 0.9,0.95")] = None,
    momentum: Annotated[float | None, numeric("of the tuned optimizer, or of the new one if only that has it")] = None,
    nesterov: Annotated[bool | None, typer.Option("--nesterov", help="the same")] = None,
    fixed: Annotated[
        str | None, typer.Option("--set", help="settings of the new one, for example momentum=0.9")
    ] = None,
    fan_in: Annotated[float | None, numeric("entries of one weight vector")] = None,
    shape: Annotated[str | None, typer.Option(help="of the weight, for example 256x128 (muon)")] = None,
    unit_grad_norm: Annotated[float | None, numeric("gradient norm × weight norm; SGD's norms need it")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear, cosine or inverse_sqrt")] = None,
    warmup: Annotated[str | None, typer.Option(help="share of the run, for example 2%")] = None,
    final: Annotated[float | None, numeric("where linear and cosine end, as a share of lr")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the answer as JSON")] = False,
) -> None:
    """Give the settings with which another optimizer trains alike."""
    given = {name: value for name, value in locals().items() if value is not None}

    from gyroscope.planner.convert_settings import read_conversion  # not before --help has been answered

    conversion = read_conversion(given)
    if as_json:
        typer.echo(conversion.json())
    else:
        from gyroscope.render.convert_text import ConversionText

        show(ConversionText(conversion))


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…", help="folders that a tracker made; or one of a sweep; or checkpoints, oldest first"
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="the page to write")] = Path("report.html"),
    text: Annotated[bool, typer.Option("--text", help="print verdict and layers, or a sweep's table, instead")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the data behind the page instead")] = False,
    at: Annotated[int | None, whole("step at which the page opens, for example that of an incident")] = None,
) -> None:
    """Say what stands out in a run, or which settings of a sweep are best: one page that opens without a network."""
    from gyroscope.checkpoint.files.recognise import is_checkpoint
    from gyroscope.render.page import page_json
    from gyroscope.report import SWEEP_FILE, gather

    if not (text or as_json):
        check_output(out, runs)
    if all(is_checkpoint(path) for path in runs):
        from gyroscope.checkpoint.checkpoint_autopsy import autopsy

        show_autopsy(autopsy(*runs), None if text or as_json else out, as_json)
        return
    if any((path / SWEEP_FILE).is_file() for path in runs):
        if at is not None:
            raise ValueError(f"--at {at}: a sweep has no steps; give one of its runs instead")
        report_sweep(runs, out, text, as_json)
        return
    with progress_bar_of("reading") as progress:
        gathered = gather(runs, at, progress)
    if as_json:
        typer.echo(page_json(gathered))
    elif text:
        from gyroscope.render.run_text import ReportText

        show(ReportText(gathered))
    else:
        from gyroscope.render.run_page import page

        write_text(out, page(gathered))
        typer.echo(f"wrote {out}", err=True)


@app.command()
def autopsy(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(metavar="CHECKPOINT…", help="a file or folder; of several, oldest first, the last is examined"),
    ],
    optimizer: Annotated[
        str | None,
        typer.Option(help="if the file leaves it open: adamw, adam-srt, …; an unknown name lists all"),
    ] = None,
    lr: Annotated[float | None, numeric("learning rate of the last step, of the first parameter group")] = None,
    weight_decay: Annotated[float | None, numeric("as torch has it, where the file does not say")] = None,
    betas: Annotated[str | None, typer.Option(help="the same, for example 0.9,0.999")] = None,
    momentum: Annotated[float | None, numeric("the same")] = None,
    batch_size: Annotated[float | None, numeric("examples of one step, for the noise scale")] = None,
    model_order: Annotated[
        Path | None,
        typer.Option(help="file with the model's parameter names in order, one per line; a blank line parts groups"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="also write a page")] = None,
    text: Annotated[bool, typer.Option("--text", help="print verdict and layers; the default")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON, neuron by neuron")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="name the formula behind every sentence")] = False,
) -> None:
    """Tell from a checkpoint what the last step did: rotation, norms, balance, signal. Nothing in it is executed."""
    from gyroscope.checkpoint.checkpoint_autopsy import autopsy as examine

    if html is not None:
        check_output(html, [*checkpoints, *([model_order] if model_order else [])])
    with progress_bar_of("reading") as progress:
        examined = examine(
            *checkpoints,
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            betas=None if betas is None else pair(betas),
            momentum=momentum,
            batch_size=batch_size,
            model=None if model_order is None else parameter_names(model_order),
            progress=progress,
        )
    if html is not None:
        show_autopsy(examined, html, as_json=False)
    if text or as_json or html is None:
        show_autopsy(examined, None, as_json, explain)


def parameter_names(path: Path) -> list[str] | list[list[str]]:
    """Return the names in a file, one per line, or those of each group if blank lines part them."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is no text: write one parameter name per line") from None
    groups = [block.split() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return groups[0] if len(groups) == 1 else groups


def show_autopsy(examined: Any, out: Path | None, as_json: bool, explain: bool = False) -> None:
    """An autopsy as a page in a file, as JSON, or for a person."""
    if out is not None:
        write_text(out, examined.page())
        typer.echo(f"wrote {out}", err=True)
    elif as_json:
        typer.echo(examined.json())
    else:
        show(examined.text(explain))


@app.command()
def watch(
    directory: Annotated[Path, typer.Argument(help="where the runs are")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 0,
    host: Annotated[str, typer.Option(help="another address to serve at; visitors then need a token")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
) -> None:
    """Show the runs below a directory on a local page that follows them while they train."""
    from gyroscope.live.watch import watch

    watch(directory, host=host, port=port, browser=browser, say=typer.echo)


def report_sweep(folders: list[Path], out: Path, text: bool, as_json: bool) -> None:
    """Report on a sweep by what the lab has registered for it."""
    if len(folders) > 1:
        raise ValueError(f"{len(folders)} folders, one of them a sweep: report on one sweep, or on runs")
    for registered in entry_points(group="gyroscope.reports", name="sweep"):
        registered.load()(folders[0], out, text, as_json)
        return
    raise ValueError(f"{str(folders[0])!r} is a sweep, and a report on it {NEEDS_LAB}")


def add_commands() -> None:
    """Add the commands of other distributions, or what to install for those of the lab."""
    registered = entry_points(group="gyroscope.commands")
    for point in registered:
        point.load()(app)
    if "lab" in registered.names:
        return
    # Any arguments, --help among them: the answer to all of them is what to install.
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name, purpose in LAB_COMMANDS.items():
        help = f"{purpose} Needs gyroscope[lab]."
        app.command(name, help=help, add_help_option=False, context_settings=anything)(ask_for_lab)


def ask_for_lab(context: typer.Context) -> None:
    """Raise ValueError that says how to install a command."""
    raise ValueError(f"`gyroscope {context.info_name}` {NEEDS_LAB}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        with warnings.catch_warnings():
            # Settings out of all proportion overflow. The plan shows what is not finite; NumPy's warning adds nothing.
            warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)
            result = app(args=arguments, prog_name="gyroscope", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return complain(message)
    except (ValueError, MissingExtraError) as error:
        return complain(str(error))
    except ArithmeticError as error:  # overflow or division by zero, far from any setting that trains
        return complain(f"these settings leave the range of numbers ({error}); choose some of a usual size")
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", code=130)
    except BrokenPipeError:  # the program that reads the output, `head` perhaps, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a name that is too long, a directory that may not be read
        where = f"{error.filename!s}: " if error.filename else ""
        return complain(f"{where}{error.strerror or error}; choose another path")


def complain(message: str, code: int = 2) -> int:
    """Print in one line what is wrong."""
    typer.echo("gyroscope: " + " ".join(message.split()), err=True)
    return code


add_commands()

if __name__ == "__main__":
    sys.exit(main())
