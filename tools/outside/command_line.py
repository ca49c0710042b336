"""Random command lines as a user without privileges: never a traceback, a strange exit code or a long wait."""

import importlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

import gyroscope as gyro
from gyroscope.cli import main
from outside.tally import Tally, forked, require

RANDOM_LINES = 80
# Odd values that are tried alone, of each option.
VALUES = 6
LIMIT = 20.0
NOBODY = 65534
# fmt: off
NUMBERS = [
    "0", "-1", "1", "2", "0.5", "1e-3", "3e-4", "0.1", "1e-30", "1e308", "1e400", "-0.0", "nan", "inf", "-inf", "1_000",
    "0x10", "1e", "1,5", "١", "abc", "", " ",
]
COUNTS = ["0", "-1", "1", "3", "100", "5000", "1e4", "1.5", "1e30", "99999999999999999999", "nan", "x", ""]
PAIRS = ["0.9,0.999", "0.9", "1,1", "0,0", "-1,2", "nan,nan", "a,b", "0.9,0.999,0.5", ",", "0.9;0.9", ""]
WORDS = ["", " ", "-", "--", "é✗", "a\nb", "'", "$HOME", "%s", "{}", "\\", "x" * 300, "None", "[1]", "adamw\t"]
OPTIMIZERS = [
    "adamw", "sgdm", "sgd", "lion", "muon", "adam", "adam-s", "adam-srt", "sgd-mrt", "nadam", "k-adam", "hyperball",
    "rotational-adamw",
]
SCHEDULES = ["constant", "linear", "cosine", "step", "inverse_sqrt", "wsd"]
# Relative paths of the scratch folder and absolute ones that this user may not write. Never a device.
PATHS = [
    "run", "good.pt", "out", "dcp", "empty", "empty.pt", "text.txt", "bytes.bin", "cut.pt", "plan.toml", "bad.toml",
    "loop", "dangling", "locked", "locked/x.pt", "secret.pt", "with space/a b.pt", "missing", "missing/x.pt",
    "~nouser/x", "~", ".", "..", "/", "/root/x.html", "new.html", "deep/er/new.html", "run/run.sqlite", "sub\ndir",
    "x" * 300,
]
# fmt: on
TRAIN_TASKS = ["digits", "mnist", "nowhere", "text:text.txt", "text:missing", "translation:run"]
TRAIN_MODELS = ["mlp", "mlp:width=4", "mlp:width=0", "cnn:width=4", "cnn:width=x", "gpt", "mlp:", "mlp:nope=1", "huge"]


REHEARSAL = [
    ["plan", "adamw", "--lr", "1e-3", "--weight-decay", "0.1", "--fan-in", "8", "--html", "plan.html"],
    ["plan", "--config", "plan.toml", "--json"],
    ["plan", "--config", "bad.toml"],
    ["report", "run", "--out", "run.html"],
    ["report", "run", "--text"],
    ["autopsy", "good.pt", "--html", "page.html"],
    ["autopsy", "good.pt", "--text"],
    ["autopsy", "dcp"],
    ["autopsy", "text.txt"],
    ["train", "--model", "mlp", "--steps", "2", "--out", "out"],
    ["train", "--model", "cnn:width=4", "--steps", "2", "--out", "out", "--resume"],
    ["train", "--model", "mlp", "--steps", "2", "--out", "out", "--resume"],
    ["train", "--task", "text:text.txt", "--model", "gpt:width=8", "--steps", "2", "--out", "out2"],
    ["train", "--task", "text:missing"],
    ["train", "--optimizer", "nonsense"],
    *(["train", "--model", "mlp", "--steps", "1", "--out", each, "--optimizer", each] for each in OPTIMIZERS),
    ["export", "run", "--out", "run.csv"],
    ["export", "run", "--help"],
    ["sweep", "plan.toml"],
    ["lab", "list"],
    ["doctor"],
    ["demo", "--help"],
]


def check(tally: Tally) -> None:
    """Run the lines in forked children that give up their privileges after the imports."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="outside-") as name:
        folder = Path(name)
        # The user without privileges must get through to the scratch folder.
        folder.chmod(0o755)
        inputs = folder / "inputs"
        inputs.mkdir()
        fill(inputs)
        rehearse(inputs)
        for number, line in enumerate([*single_lines(draw), *(random_line(draw) for _ in range(RANDOM_LINES))]):
            # A fresh folder for each line: one may well replace a file that another reads.
            scratch = folder / "scratch"
            shutil.copytree(inputs, scratch, symlinks=True)
            own(scratch)
            ended = forked(lambda line=line, scratch=scratch: run(scratch, line), LIMIT)  # type: ignore[misc]
            with tally.attempt(f"line {number}: {line!r}"):
                last = ended.output.strip().splitlines()[-1:]
                require(ended.code in (0, 1, 2), f"code {ended.code} after {ended.seconds:.1f} s: {last}")
                require("Traceback (most recent call last)" not in ended.output, f"a traceback: {last}")
            shutil.rmtree(scratch)


def rehearse(folder: Path) -> None:
    """Import what the commands import when they run: a user without privileges may not be able to read Python."""

    def run_all() -> int:
        os.chdir(folder)
        for line in REHEARSAL:
            main(line)
        (folder / "modules.txt").write_text("\n".join(sys.modules))
        return 0

    ended = forked(run_all, 120)
    require(ended.code == 0, f"the rehearsal failed: {ended.output[-500:]}")
    for module in (folder / "modules.txt").read_text().split():
        # Some are aliases of attributes, which no import statement finds.
        with suppress(ImportError):
            importlib.import_module(module)


def own(folder: Path) -> None:
    """Give a folder to the user without privileges, with two entries that even its owner may not read."""
    if os.getuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    (folder / "locked").chmod(0)
    (folder / "secret.pt").chmod(0)


def fill(scratch: Path) -> None:
    """Write what the commands are given to read: good, damaged, empty and strange."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    child = os.fork()  # the tracker starts threads, and a process with threads must not be forked
    if child == 0:
        with gyro.Tracker(model, optimizer, scratch / "run", every=1) as tracker:
            for _ in range(5):
                model.zero_grad()
                loss = model(torch.randn(8, 6)).square().mean()
                loss.backward()
                optimizer.step()
                tracker.log(loss=loss.item())
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, scratch / "good.pt")
        os._exit(0)
    os.waitpid(child, 0)
    good = (scratch / "good.pt").read_bytes()
    for folder in ("dcp", "empty", "locked", "with space"):
        (scratch / folder).mkdir()
    (scratch / "dcp" / ".metadata").write_bytes(b"not a pickle")
    (scratch / "with space" / "a b.pt").write_bytes(good)
    (scratch / "locked" / "x.pt").write_bytes(good)
    (scratch / "secret.pt").write_bytes(good)
    (scratch / "empty.pt").touch()
    (scratch / "cut.pt").write_bytes(good[: len(good) // 2])
    (scratch / "text.txt").write_text("to be or not to be\n" * 200)
    (scratch / "bytes.bin").write_bytes(bytes(range(256)) * 8)
    (scratch / "plan.toml").write_text('optimizer = "adamw"\nlr = 1e-3\nweight_decay = 0.1\n[[layer]]\nfan_in = 8\n')
    (scratch / "bad.toml").write_text('lr = [1, "two"\n')
    (scratch / "loop").symlink_to("loop")
    (scratch / "dangling").symlink_to("nothing")


def run(scratch: Path, line: list[str]) -> int:
    """Run one command line in the scratch folder, without privileges. Only for a child process."""
    os.chdir(scratch)
    os.environ.update(HOME=str(scratch), TMPDIR=str(scratch))
    # Nothing is asked at a terminal that is not there.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return main(line)


def single_lines(draw: random.Random) -> Iterator[list[str]]:
    """Yield lines with one odd thing each, which no other error hides: every path, and some values of every option."""
    for name in ("report", "autopsy", "sweep"):
        yield from ([name, path] for path in PATHS)
    usual: list[tuple[list[str], dict[str, list[str]]]] = [
        (["plan", "adamw", *USUAL_PLAN], PLAN),
        (["report", "run"], REPORT),
        (["autopsy", "good.pt"], AUTOPSY),
        (["train", *USUAL_TRAIN], TRAIN),
        (["export", "run"], EXPORT),
    ]
    for line, options in usual:
        for option, values in options.items():
            odd = draw.sample(values, min(VALUES, len(values)))
            yield from ([*line, option, value] for value in odd)
            if not values:
                yield [*line, option]


def random_line(draw: random.Random) -> list[str]:
    """Make up one command line."""
    name, make = draw.choice(COMMANDS)
    line = [name, *make(draw)]
    if draw.random() < 0.1:
        line.insert(draw.randrange(len(line) + 1), draw.choice(["--nonsense", "-x", "--", "", "--json", "--help"]))
    return line


def some(draw: random.Random, options: dict[str, list[str]], share: float) -> list[str]:
    """Take a share of the options, each with one of its values. An option without values is a flag."""
    line = []
    for option, values in options.items():
        if draw.random() < share:
            line += [option, draw.choice(values)] if values else [option]
    return line


def paths(draw: random.Random) -> list[str]:
    """Take one to three paths that an argument can hold."""
    return [draw.choice(PATHS) for _ in range(draw.choice((1, 1, 1, 2, 3)))]


USUAL_PLAN = ["--lr", "1e-3", "--weight-decay", "0.1", "--fan-in", "64", "--unit-grad-norm", "0.1", "--steps", "500"]
USUAL_TRAIN = ["--model", "mlp", "--batch-size", "8", "--steps", "2", "--out", "new"]
PLAN = {
    "--lr": NUMBERS,
    "--weight-decay": NUMBERS,
    "--betas": PAIRS,
    "--momentum": NUMBERS,
    "--nesterov": [],
    "--linearised": [],
    "--corrected-decay": [],
    "--cautious-decay": [],
    "--steps": COUNTS,
    "--schedule": SCHEDULES,
    "--warmup": COUNTS,
    "--final": NUMBERS,
    "--milestones": PAIRS,
    "--factor": NUMBERS,
    "--fan-in": NUMBERS,
    "--shape": ["8x8", "0x0", "8", "8x", "x", "1e9x1e9", "-1x2"],
    "--init-std": NUMBERS,
    "--init-norm": NUMBERS,
    "--unit-grad-norm": NUMBERS,
    "--config": PATHS,
    "--json": [],
    "--explain": [],
    "--html": PATHS,
}
AUTOPSY = {
    "--optimizer": [*OPTIMIZERS, *WORDS],
    "--lr": NUMBERS,
    "--weight-decay": NUMBERS,
    "--betas": PAIRS,
    "--momentum": NUMBERS,
    "--batch-size": NUMBERS,
    "--model-order": PATHS,
    "--html": PATHS,
    "--text": [],
    "--json": [],
    "--explain": [],
}
TRAIN = {
    "--task": TRAIN_TASKS,
    "--model": TRAIN_MODELS,
    "--optimizer": [*OPTIMIZERS, *WORDS],
    "--lr": NUMBERS,
    "--weight-decay": NUMBERS,
    "--momentum": NUMBERS,
    "--betas": PAIRS,
    "--start": ["initial", "equilibrium", "x"],
    "--init-scale": NUMBERS,
    "--gain": [],
    "--schedule": SCHEDULES,
    "--warmup": NUMBERS,
    "--final": NUMBERS,
    "--batch-size": ["1", "8", "0", "-1", "x"],
    "--accumulate": ["1", "2", "0", "-1"],
    "--clip": NUMBERS,
    "--norm": ["batch", "none", "x"],
    "--shrink": ["1", "2", "0", "9"],
    "--precision": ["float32", "bf16", "pure-bf16", "x"],
    "--seed": ["0", "1", "-1", "99999999999999999999"],
    "--track": ["auto", "off"],
    "--resume": [],
    "--device": ["cpu", "typo", "cuda", "cpu:7", "meta", ""],
    "--preset": ["nonsense"],
    "--data-root": PATHS,
}
REPORT = {"--out": PATHS, "--text": [], "--json": [], "--at": COUNTS}
EXPORT = {"--out": PATHS, "--format": ["csv", "parquet", "x"], "--json": []}
SWEEP = {"--out": PATHS, "--jobs": ["1", "0", "x"], "--retry-failed": []}


def plan_line(draw: random.Random) -> list[str]:
    """Draw a plan with odd settings."""
    return [draw.choice([*OPTIMIZERS, *OPTIMIZERS, *WORDS]), *some(draw, PLAN, draw.choice((0.1, 0.3)))]


def sane_plan_line(draw: random.Random) -> list[str]:
    """Draw a plan that passes the first checks, with a few odd settings after the usual ones."""
    return [draw.choice(OPTIMIZERS), *USUAL_PLAN, *some(draw, PLAN, 0.05)]


def train_line(draw: random.Random) -> list[str]:
    """Draw a run of at most three steps. The last --steps counts."""
    out = draw.choice(["new", "out", *paths(draw)])
    odd = some(draw, TRAIN, draw.choice((0.02, 0.08)))
    return ["--model", "mlp", "--batch-size", "8", *odd, "--out", out, "--steps", draw.choice("01233")]


COMMANDS: list[tuple[str, Callable[[random.Random], list[str]]]] = [
    ("plan", plan_line),
    *[("plan", sane_plan_line)] * 3,
    ("report", lambda draw: [*paths(draw), *some(draw, REPORT, 0.3)]),
    *[("report", lambda draw: ["run", *some(draw, REPORT, 0.25)])] * 2,
    ("autopsy", lambda draw: [*paths(draw), *some(draw, AUTOPSY, 0.15)]),
    *[("autopsy", lambda draw: ["good.pt", *some(draw, AUTOPSY, 0.08)])] * 3,
    *[("train", train_line)] * 4,
    ("export", lambda draw: [*paths(draw), *some(draw, EXPORT, 0.3)]),
    ("export", lambda draw: ["run", *some(draw, EXPORT, 0.5)]),
    ("sweep", lambda draw: [*paths(draw), *some(draw, SWEEP, 0.3)]),
    ("lab", lambda draw: draw.choice([["list"], ["show"], ["show", "x"], ["run", "x"], ["x"], []])),
    ("watch", lambda draw: [*paths(draw), "--help"]),
    ("doctor", lambda draw: some(draw, {"--json": [], "--help": []}, 0.5)),
    ("nonsense", paths),
]
