"""The commands that the lab adds to `gyroscope`: demo, train, sweep and lab, and the report on a sweep.

Nothing heavy is imported before a command runs, because `gyroscope --help` loads this file.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gyroscope.commands import numeric, show, whole
from gyroscope_lab.framework.catalogue import Size


def add_commands(app: typer.Typer) -> None:
    """Add the lab's commands to those of Gyroscope."""
    app.command()(demo)
    app.command(epilog="Example: gyroscope train --optimizer rotational-adamw --lr 1e-2")(train)
    app.command(epilog="Example: gyroscope sweep examples/sweep.toml")(sweep)
    app.add_typer(lab, name="lab")


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder of the tracked runs and the pages")] = Path("runs/demo"),
) -> None:
    """Predict, train and compare a small network in a minute or two."""
    from rich.console import Console

    from gyroscope_lab.demo import demo

    raise typer.Exit(demo(out, Console()))


def train(
    context: typer.Context,
    preset: Annotated[
        str, typer.Option(help="settings of a paper, for example re/resnet20. Other options change them")
    ] = "",
    task: Annotated[
        str,
        typer.Option(
            help="digits, stdlib, translation, fashion-mnist, mnist, cifar10, cifar100, text:<file>, "
            "bpe:<file> or translation:<folder>"
        ),
    ] = "digits",
    model: Annotated[
        str,
        typer.Option(
            help="mlp, cnn, resnet20, resnet18, mobilenet, vgg13, vgg16, vit, gpt or transformer, with options as "
            "gpt:width=384"
        ),
    ] = "cnn",
    optimizer: Annotated[
        str, typer.Option(help="adamw, sgd, muon, k-adam:k=3, … (an unknown name lists all)")
    ] = "adamw",
    lr: Annotated[float | None, numeric("peak learning rate")] = None,
    weight_decay: Annotated[float | None, numeric("as in torch")] = None,
    momentum: Annotated[float | None, numeric("momentum of SGD and Muon")] = None,
    betas: Annotated[str | None, typer.Option(help="for example 0.9,0.999")] = None,
    decay_embeddings: Annotated[
        bool, typer.Option("--decay-embeddings", help="apply weight decay to embeddings too")
    ] = False,
    start: Annotated[
        Literal["initial", "equilibrium", "equilibrium+embeddings"],
        typer.Option(help="initial weights of the network, or rescaled to the norms of equilibrium"),
    ] = "initial",
    init_scale: Annotated[float, numeric("factor for initial weights that rotate, applied before --start")] = 1.0,
    gain: Annotated[bool, typer.Option("--gain", help="add a learnable gain to each weight vector")] = False,
    epochs: Annotated[float | None, numeric("length of the run, 10 if neither this nor --steps is given")] = None,
    steps: Annotated[int | None, whole("length of the run in steps")] = None,
    schedule: Annotated[str, typer.Option(help="constant, linear, cosine, step or inverse_sqrt")] = "cosine",
    rescale: Annotated[
        bool, typer.Option("--rescale", help="rescale norms to their new equilibrium when lr changes")
    ] = False,
    warmup: Annotated[float, numeric("length of the warmup, in the unit of the run length and part of it")] = 0.0,
    final: Annotated[float, numeric("lr at the end of linear and cosine, as a share of the peak")] = 0.0,
    batch_size: Annotated[int, whole("samples of one forward pass")] = 128,
    accumulate: Annotated[int, whole("batches that make one step")] = 1,
    clip: Annotated[float | None, numeric("largest norm of the whole gradient")] = None,
    norm: Annotated[str, typer.Option(help="batch, layer, group, weight or none, for image networks")] = "batch",
    shrink: Annotated[int, whole("factor by which images are scaled down")] = 1,
    augment: Annotated[bool, typer.Option("--augment", help="crop and flip images at random")] = False,
    precision: Annotated[
        Literal["float32", "bf16", "pure-bf16"],
        typer.Option(help="precision of the computation (pure-bf16: also of weights)"),
    ] = "float32",
    compile: Annotated[bool, typer.Option("--compile", help="torch.compile the model")] = False,
    seed: Annotated[int, whole("seed of initial weights and batches")] = 0,
    track: Annotated[Literal["auto", "off"], typer.Option(help="whether to measure rotation")] = "auto",
    out: Annotated[Path, typer.Option("--out", help="folder of the run")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option("--resume", help="continue from the newest checkpoint")] = False,
    data_root: Annotated[Path | None, typer.Option(help="folder of data sets, GYROSCOPE_DATA if not given")] = None,
    device: Annotated[str, typer.Option(help="device name, as in torch")] = "cpu",
) -> None:
    """Train a network on a task with any optimizer.

    Rotation is measured during training. --resume continues a run that was stopped or killed.
    """
    given = dict(locals())

    from gyroscope_lab.training.console import settings_of, train_in_terminal

    # By name, because typer has its own copy of click with its own class.
    sources = {name: context.get_parameter_source(name) for name in given}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    config = settings_of(given, typed)
    code = train_in_terminal(config, out, resume=resume, data_root=data_root, device=device)
    raise typer.Exit(code)


def sweep(
    file: Annotated[Path, typer.Argument(help="a TOML file with [base], [grid] or [[list]], and seeds")],
    out: Annotated[
        Path | None, typer.Option("--out", help="folder of the trials, runs/<name of the file> if not given")
    ] = None,
    jobs: Annotated[int | None, whole("trials at once, 1 if not given, at most one for each core")] = None,
    ray: Annotated[str | None, typer.Option(help="run on Ray: 'local', or the address of a cluster")] = None,
    data_root: Annotated[Path | None, typer.Option(help="folder of data sets, GYROSCOPE_DATA if not given")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="run failed trials again")] = False,
) -> None:
    """Train every combination of settings of a file.

    The same command continues an interrupted sweep and repeats no finished trial.
    """
    from gyroscope_lab.sweeps.console import sweep_in_terminal

    folder = out or Path("runs") / file.stem
    code = sweep_in_terminal(file, folder, jobs=jobs, ray=ray, data_root=data_root, retry_failed=retry_failed)
    raise typer.Exit(code)


lab = typer.Typer(rich_markup_mode=None)
RESULTS = Annotated[Path, typer.Option("--out", help="folder of the results")]
SOURCE = Annotated[Path | None, typer.Option("--from", help="folder of your own experiments, instead of the papers'")]


@lab.callback(invoke_without_command=True)
def lab_help(context: typer.Context) -> None:
    """Run the papers' experiments."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@lab.command("list")
def lab_list(out: RESULTS = Path("results"), source: SOURCE = None) -> None:
    """List figures and tables of the papers.

    Each has its claim, its cost, and whether it has been run here.
    """
    from gyroscope_lab.framework.console import catalogue_text

    show(catalogue_text(out, source))


@lab.command("run", epilog="Example: gyroscope lab run smd/fig4")
def lab_run(
    ids: Annotated[list[str], typer.Argument(help="such as smd/fig4, a paper (re, smd, sp, ct, beyond), or all")],
    size: Annotated[Size, typer.Option(help="minutes of one core, or closer to the paper's settings")] = "quick",
    seeds: Annotated[int | None, whole("number of seeds, by default the experiment's own")] = None,
    first_seed: Annotated[int, whole("first seed, to repeat a result with other seeds")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder of the results. Default: results, or runs/lab with --first-seed"),
    ] = None,
    source: SOURCE = None,
) -> None:
    """Measure what a figure or table claims.

    The same command continues an interrupted run.
    """
    from gyroscope_lab.framework.console import run_experiments

    # Other seeds must not replace the record, unless --out asks for it.
    folder = out or Path("runs/lab" if first_seed else "results")
    run_experiments(ids, size, seeds, folder, show, source, first_seed)


@lab.command("judge", epilog="Example: gyroscope lab judge smd/fig4")
def lab_judge(
    ids: Annotated[list[str], typer.Argument(help="such as smd/fig4, all of a paper (smd) or all")],
    out: RESULTS = Path("results"),
) -> None:
    """Judge and draw records again by the claims of this version.

    Nothing is measured. Of a paper or of all, only experiments that have a record are judged.
    """
    from gyroscope_lab.framework.catalogue import select
    from gyroscope_lab.framework.console import experiment_text
    from gyroscope_lab.framework.results import ExperimentRecord
    from gyroscope_lab.framework.runner import judge_again

    for entry in select(ids, size=None):
        if entry.id in ids or ExperimentRecord.read(out, entry.id) is not None:
            judge_again(entry.id, out)
            show(experiment_text(entry.id, out))


@lab.command("show", epilog="Example: gyroscope lab show smd/fig4")
def lab_show(
    id: Annotated[str, typer.Argument(help="such as smd/fig4")],
    out: RESULTS = Path("results"),
    source: SOURCE = None,
) -> None:
    """Show what was measured here: each claim with its number."""
    from gyroscope_lab.framework.console import experiment_text

    show(experiment_text(id, out, source))


def report_sweep(folder: Path, out: Path, text: bool, as_json: bool) -> None:
    """Write the page of a sweep and the pages of its runs in a folder beside it, or print its numbers."""
    from gyroscope.render.page import page_json
    from gyroscope.tools import write_text
    from gyroscope_lab.sweeps.page import sweep_page
    from gyroscope_lab.sweeps.report import gather_sweep, write_run_pages
    from gyroscope_lab.sweeps.text import SweepText

    sweep = gather_sweep(folder)
    if as_json:
        typer.echo(page_json(sweep))
    elif text:
        show(SweepText(sweep))
    else:
        write_text(out, sweep_page(write_run_pages(sweep, folder, out.with_name(f"{out.stem}_runs"))))
        typer.echo(f"wrote {out}", err=True)
