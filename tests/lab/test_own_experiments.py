"""Training and experiments outside the repository: objects, a folder of files, and the page of docs about both."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from gyroscope_lab import train

from gyroscope.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "own-experiment.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def parts(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def loss(model):
    return (model(torch.randn(16, 8)) - 1).square().mean()


def test_the_steps_are_those_of_a_plain_loop(tmp_path):
    model, optimizer = parts()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    result = train(model=model, optimizer=optimizer, scheduler=scheduler, loss=loss, steps=30, out=tmp_path)
    plain, stepping = parts()
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(stepping, 30)
    for _ in range(30):
        stepping.zero_grad()
        loss(plain).backward()
        stepping.step()
        falling.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert (result.steps, result.scores, result.divergence) == (30, {}, None)
    with result.run() as run:
        assert "0.weight" in run.layers
    recorded = json.loads((tmp_path / "config.json").read_text())
    assert (recorded["model"], recorded["optimizers"], recorded["steps"]) == ("Sequential", ["AdamW"], 30)
    assert "batch_size" not in recorded  # which the loss alone knows


def test_a_run_goes_on_bit_for_bit_where_the_loss_draws_from_the_global_generator(tmp_path):
    whole, optimizer = parts()
    train(model=whole, optimizer=optimizer, loss=loss, steps=20, track=False, out=tmp_path / "whole")
    model, optimizer = parts()

    def stop(report):
        if report.step == 12:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(model=model, optimizer=optimizer, loss=loss, steps=20, track=False, out=tmp_path / "cut", on_step=stop)
    model, optimizer = parts(seed=1)
    train(model=model, optimizer=optimizer, loss=loss, steps=20, track=False, out=tmp_path / "cut", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))


def test_scores_are_taken_in_evaluation_mode_as_often_as_asked(tmp_path):
    model, optimizer = parts()
    modes = []

    def evaluate(model):
        modes.append(model.training)
        return {"score": torch.tensor(0.5)}

    options = {"steps": 9, "evaluate": evaluate, "evaluations": 3, "track": False, "out": tmp_path}
    result = train(model=model, optimizer=optimizer, loss=loss, **options)
    assert modes == [False] * 3
    assert model.training
    assert result.history == [{"step": step, "score": 0.5} for step in (3, 6, 9)]


def test_what_does_not_fit_together_is_refused(tmp_path):
    model, optimizer = parts()
    schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
    with pytest.raises(ValueError, match="2 schedulers for 1 optimizers"):
        train(model=model, optimizer=optimizer, loss=loss, steps=3, scheduler=schedulers, out=tmp_path)
    with pytest.raises(ValueError, match="steps=0"):
        train(model=model, optimizer=optimizer, loss=loss, steps=0, out=tmp_path)
    train(model=model, optimizer=optimizer, loss=loss, steps=3, track=False, out=tmp_path)
    with pytest.raises(ValueError, match="already has a run"):
        train(model=model, optimizer=optimizer, loss=loss, steps=3, out=tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the page's experiment, with a helper beside it."""
    monkeypatch.setattr("gyroscope_lab.framework.figures._svg", lambda figure: "<svg/>")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "batch_norm_angle.py").write_text(EXAMPLES[1], encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_page_of_docs_works_as_it_says(folder, capsys):
    exec(compile(EXAMPLES[0], str(PAGE), "exec"), {"__name__": "example"})
    assert Path("runs/own/result.json").is_file()
    commands = re.findall(r"^\$ gyroscope (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        capsys.readouterr()
        assert main(command.split()) == 0
    shown = capsys.readouterr().out
    assert "angle per step in equilibrium" in shown
    assert "holds" in shown
    assert Path("results/experiments/batch_norm_angle.json").is_file()
    assert "experiments/batch_norm_angle" in Path("results/README.md").read_text(encoding="utf-8")


def test_a_folder_is_listed_alone_and_its_helpers_are_imported(folder, capsys):
    (folder / "_sizes.py").write_text("STEPS = 20\n")
    text = (
        EXAMPLES[1]
        .replace("steps: int = 800", "steps: int = STEPS")
        .replace("\nCOST", "\nfrom _sizes import STEPS\n\nCOST")
    )
    (folder / "short.py").write_text(text.replace("rotates by", "may rotate by"))
    assert main(["lab", "list", "--from", "experiments"]) == 0
    listed = capsys.readouterr().out
    assert "may rotate by" in " ".join(listed.split())
    assert "smd/fig4" not in listed
    assert main(["lab", "run", "experiments/short", "--seeds", "1", "--from", "experiments"]) == 0
    record = json.loads(Path("results/experiments/short.json").read_text())
    assert (record["config"]["steps"], record["n"]) == (20, 1)


@pytest.mark.parametrize(
    ("argv", "file", "words"),
    [
        ("lab show x --from experiments", "", "(`gyroscope lab list --from experiments` shows all)"),
        ("lab list --from nowhere", "", "'nowhere' has no experiments"),
        ("lab run experiments/batch_norm_angel --from experiments", "", "did you mean 'experiments/batch_norm_angle'"),
        ("lab run experiments/batch_norm_angle --size paper --from experiments", "", "has no PAPER config"),
        ("lab list --from experiments", "def broken(:", "cannot read 'experiments/extra.py' as Python"),
        ("lab list --from experiments", "x = 1", "is not an experiment: give it a docstring and COST"),
        ("lab run all --from experiments", '"""A claim."""\nCOST = {"quick": "1 s"}', "has no QUICK"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_sentence(folder, argv, file, words, capsys):
    if file:
        (folder / "extra.py").write_text(file)
    assert main(argv.split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err
