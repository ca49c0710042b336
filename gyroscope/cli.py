"""The command line: argv to the calls of the library, and errors to one sentence."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gyroscope._files import write_text
from gyroscope.optimizers import COMMANDS, PLANS

# Steps, of all layers together, that take more than a moment to forecast.
LONG_RUN = 200_000

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


def number(text: str) -> float:
    """A number as a person writes it."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number; write for example 0.001 or 1e-3") from None


def count(text: str) -> int:
    """A whole number, also written as 1e5."""
    value = number(text)
    if value != value or value in (float("inf"), -float("inf")) or value != int(value):
        raise typer.BadParameter(f"{text!r} is not a whole number; write for example 10000 or 1e4")
    return int(value)


def numeric(help: str = "") -> Any:
    """An option that takes a number."""
    return typer.Option(parser=number, metavar="NUMBER", help=help)


def whole(help: str = "") -> Any:
    """An option that takes a whole number."""
    return typer.Option(parser=count, metavar="COUNT", help=help)


@app.command()
def plan(
    optimizer: Annotated[
        str | None,
        typer.Argument(help=", ".join(PLANS)),
    ] = None,
    lr: Annotated[float | None, numeric("peak learning rate")] = None,
    weight_decay: Annotated[float | None, numeric("as torch has it")] = None,
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
def demo(
    out: Annotated[Path, typer.Option("--out", help="folder of the two runs and their page")] = Path("runs/demo"),
) -> None:
    """Plan, train and compare a small network, in a minute or two: what was predicted beside what was measured."""
    from gyroscope_lab.demo import demo
    from rich.console import Console

    raise typer.Exit(demo(out, Console()))


@app.command()
def train(
    context: typer.Context,
    preset: Annotated[str, typer.Option(help="settings of a paper, as re/resnet20; other options change them")] = "",
    task: Annotated[
        str,
        typer.Option(
            help="digits, stdlib, translation, fashion-mnist, mnist, cifar10, cifar100, text:<file> or "
            "translation:<folder>"
        ),
    ] = "digits",
    model: Annotated[
        str,
        typer.Option(
            help="mlp, cnn, resnet20, resnet18, mobilenet, vgg13, vgg16, vit, gpt or transformer; options as "
            "gpt:width=384"
        ),
    ] = "cnn",
    optimizer: Annotated[
        str, typer.Option(help="adamw, sgd, muon, k-adam:k=3, …; an unknown name lists all")
    ] = "adamw",
    lr: Annotated[float | None, numeric("peak learning rate")] = None,
    weight_decay: Annotated[float | None, numeric("as torch has it")] = None,
    momentum: Annotated[float | None, numeric()] = None,
    betas: Annotated[str | None, typer.Option(help="for example 0.9,0.999")] = None,
    decay_embeddings: Annotated[
        bool, typer.Option("--decay-embeddings", help="weight decay also of embeddings")
    ] = False,
    start: Annotated[
        Literal["initial", "equilibrium", "equilibrium+embeddings"],
        typer.Option(help="as the network makes weights, or at the norms of equilibrium"),
    ] = "initial",
    init_scale: Annotated[float, numeric("factor of the initial weights that turn, applied before --start")] = 1.0,
    gain: Annotated[bool, typer.Option("--gain", help="a learnable gain for each weight vector")] = False,
    epochs: Annotated[float | None, numeric("length of the run; 10 if neither this nor --steps is given")] = None,
    steps: Annotated[int | None, whole("the same in steps")] = None,
    schedule: Annotated[str, typer.Option(help="constant, linear, cosine, step or inverse_sqrt")] = "cosine",
    rescale: Annotated[
        bool, typer.Option("--rescale", help="bring norms to their new equilibrium when lr changes")
    ] = False,
    warmup: Annotated[float, numeric("in the unit of the length, and part of it")] = 0.0,
    final: Annotated[float, numeric("where linear and cosine end, as a share of lr")] = 0.0,
    batch_size: Annotated[int, whole()] = 128,
    accumulate: Annotated[int, whole("batches that make one step")] = 1,
    clip: Annotated[float | None, numeric("largest norm of the whole gradient")] = None,
    norm: Annotated[str, typer.Option(help="batch, layer, group, weight or none, of convolutional networks")] = "batch",
    shrink: Annotated[int, whole("average squares of so many pixels")] = 1,
    augment: Annotated[bool, typer.Option("--augment", help="crops and flips of images")] = False,
    precision: Annotated[
        Literal["float32", "bf16", "pure-bf16"], typer.Option(help="of the computation; pure-bf16: of the weights too")
    ] = "float32",
    compile: Annotated[bool, typer.Option("--compile", help="torch.compile the model")] = False,
    seed: Annotated[int, whole()] = 0,
    track: Annotated[Literal["auto", "off"], typer.Option(help="whether rotation is measured")] = "auto",
    out: Annotated[Path, typer.Option("--out", help="folder of the run")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option("--resume", help="go on from the newest checkpoint")] = False,
    data_root: Annotated[Path | None, typer.Option(help="folder of data sets; GYROSCOPE_DATA otherwise")] = None,
    device: Annotated[str, typer.Option(help="as torch names it")] = "cpu",
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="under torchrun: shard the weights by FSDP2, where DDP copies them")
    ] = False,
) -> None:
    """Train a network on a task with any optimizer, measured as it goes; killed or stopped, it can be resumed.

    Under torchrun --nproc-per-node N -m gyroscope train … the processes share each batch.
    """
    given = dict(locals())

    from gyroscope_lab.training.console import settings_of, train_in_terminal

    # By name: typer brings a copy of click along, with a class of its own.
    sources = {name: context.get_parameter_source(name) for name in given}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    config = settings_of(given, typed)
    code = train_in_terminal(config, out, resume=resume, data_root=data_root, device=device, fsdp=fsdp)
    raise typer.Exit(code)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="a TOML file with [base], [grid] or [[list]], and seeds")],
    out: Annotated[
        Path | None, typer.Option("--out", help="folder of the trials; runs/<name of the file> otherwise")
    ] = None,
    jobs: Annotated[int | None, whole("trials at once, 1 if not given; at most one for each core")] = None,
    ray: Annotated[str | None, typer.Option(help="run on Ray: 'local', or the address of a cluster")] = None,
    data_root: Annotated[Path | None, typer.Option(help="folder of data sets; GYROSCOPE_DATA otherwise")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="try again what failed before")] = False,
) -> None:
    """Train every combination of settings of a file; interrupted, it goes on where it was and repeats nothing."""
    from gyroscope_lab.sweeps.console import sweep_in_terminal

    folder = out or Path("runs") / file.stem
    code = sweep_in_terminal(file, folder, jobs=jobs, ray=ray, data_root=data_root, retry_failed=retry_failed)
    raise typer.Exit(code)


lab = typer.Typer(rich_markup_mode=None)
app.add_typer(lab, name="lab")
RESULTS = Annotated[Path, typer.Option("--out", help="folder of the results")]


@lab.callback(invoke_without_command=True)
def lab_help(context: typer.Context) -> None:
    """The papers' figures and tables: what is claimed, and what is measured."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@lab.command("list")
def lab_list(out: RESULTS = Path("results")) -> None:
    """Every figure and table of the papers: its claim, its cost, and whether it has been run here."""
    from gyroscope_lab.console import catalogue_text

    show(catalogue_text(out))


@lab.command("run")
def lab_run(
    ids: Annotated[list[str], typer.Argument(help="such as smd/fig4; or a paper: re, smd, sp, ct, beyond; or all")],
    size: Annotated[Literal["quick", "paper"], typer.Option()] = "quick",
    seeds: Annotated[int | None, whole("number of seeds, if not the experiment's own")] = None,
    out: RESULTS = Path("results"),
) -> None:
    """Measure what a figure or table claims; an interrupted run goes on where it was."""
    from gyroscope_lab.console import run_experiments

    run_experiments(ids, size, seeds, out, show)


@lab.command("show")
def lab_show(id: Annotated[str, typer.Argument(help="such as smd/fig4")], out: RESULTS = Path("results")) -> None:
    """What was measured here: each claim beside its number."""
    from gyroscope_lab.console import experiment_text

    show(experiment_text(id, out))


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
    from gyroscope.report import gather
    from gyroscope.report.sweep_data import SWEEP_FILE

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
        typer.Option(help=f"if the file leaves it open: {', '.join(COMMANDS)}"),
    ] = None,
    lr: Annotated[float | None, numeric("learning rate of the last step, of the first parameter group")] = None,
    weight_decay: Annotated[float | None, numeric("as torch has it, where the file does not say")] = None,
    betas: Annotated[str | None, typer.Option(help="the same, for example 0.9,0.999")] = None,
    momentum: Annotated[float | None, numeric("the same")] = None,
    batch_size: Annotated[float | None, numeric("examples of one step, for the noise scale")] = None,
    html: Annotated[Path | None, typer.Option(help="also write a page")] = None,
    text: Annotated[bool, typer.Option("--text", help="print verdict and layers; the default")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON, neuron by neuron")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="name the formula behind every sentence")] = False,
) -> None:
    """Tell from a checkpoint what the last step did: rotation, norms, balance, signal. Nothing in it is executed."""
    from gyroscope.checkpoint.checkpoint_autopsy import autopsy as examine

    with progress_bar_of("reading") as progress:
        examined = examine(
            *checkpoints,
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            betas=None if betas is None else pair(betas),
            momentum=momentum,
            batch_size=batch_size,
            progress=progress,
        )
    if html is not None:
        show_autopsy(examined, html, as_json=False)
    if text or as_json or html is None:
        show_autopsy(examined, None, as_json, explain)


def pair(text: str) -> tuple[float, float]:
    """Two numbers with a comma between them."""
    parts = text.split(",")
    if len(parts) != 2:
        raise typer.BadParameter(f"{text!r} is not a pair of numbers; write for example 0.9,0.999")
    return number(parts[0]), number(parts[1])


def show_autopsy(examined: Any, out: Path | None, as_json: bool, explain: bool = False) -> None:
    """An autopsy as a page in a file, as JSON, or for a person."""
    if out is not None:
        write_text(out, examined.page())
        typer.echo(f"wrote {out}", err=True)
    elif as_json:
        typer.echo(examined.json())
    else:
        show(examined.text(explain))


def report_sweep(folders: list[Path], out: Path, text: bool, as_json: bool) -> None:
    """The same for a sweep; the pages of its runs go into a folder beside its own."""
    if len(folders) > 1:
        raise ValueError(f"{len(folders)} folders, one of them a sweep: report on one sweep, or on runs")
    from gyroscope_lab.sweeps.report import gather_sweep, write_run_pages

    from gyroscope.render.page import page_json
    from gyroscope.render.sweep_page import sweep_page
    from gyroscope.render.sweep_text import SweepText

    sweep = gather_sweep(folders[0])
    if as_json:
        typer.echo(page_json(sweep))
    elif text:
        show(SweepText(sweep))
    else:
        write_text(out, sweep_page(write_run_pages(sweep, folders[0], out.with_name(f"{out.stem}_runs"))))
        typer.echo(f"wrote {out}", err=True)


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


@contextmanager
def progress_bar(steps: int) -> Iterator[Callable[[int], None] | None]:
    """A bar with the time left where a forecast takes more than a moment and somebody watches."""
    if steps < LONG_RUN or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("forecasting", total=steps)
        before = 0

        def advance(done: int) -> None:
            nonlocal before
            bar.advance(task, done - before if done > before else done)  # a smaller count: the next layer has begun
            before = done

        yield advance


@contextmanager
def progress_bar_of(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for work whose length is known once it has begun, where somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(renderable: Any) -> None:
    """Print for a person: at most 100 columns, colours where the terminal has them."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, 100)
    console.print(renderable)


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
    except ValueError as error:
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


if __name__ == "__main__":
    sys.exit(main())
