"""Training a translation: padding counts nowhere, exact translations are counted, and runs go on as other tasks' do."""

from dataclasses import replace

import pytest
import torch
from gyroscope_lab.sweeps.plan import read_sweep
from gyroscope_lab.sweeps.run import outcome, run_local
from gyroscope_lab.training import checkpoint, train
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.problems import make_problem
from torch import nn

from gyroscope.cli import main

SMALL = "transformer:layers=1,width=16,heads=2,hidden=16"
QUICK = TrainConfig(
    task="translation", model=SMALL, optimizer="rotational-adamw", lr=1e-2, gain=True, steps=12, batch_size=8
)


def problem_of(config):
    return make_problem(config, None, torch.device("cpu"))


class Oracle(nn.Module):
    """Knows every next character of the sentences that it is asked for, but for some that it takes for another's."""

    def __init__(self, problem, wrong):
        super().__init__()
        self.vocabulary = problem.task.vocabulary
        self.wrong = wrong

    def forward(self, source, target):
        following = torch.cat([target[:, 1:], torch.ones_like(target[:, :1])], 1)  # 1 ends the longest
        guesses = following.clone()
        for sentence, place in self.wrong:
            guesses[sentence, place] = (guesses[sentence, place] + 1) % self.vocabulary
        return 20.0 * nn.functional.one_hot(guesses, self.vocabulary).float()


def test_a_sentence_counts_as_translated_when_all_its_characters_are_right():
    problem = problem_of(QUICK)
    _, target = problem.task.train.batch(problem.batches.chosen(0).tolist())
    shortest = int((target == 0).sum(1).argmax())
    loss, scores = problem.loss(Oracle(problem, []), 0)
    assert scores["accuracy"] == 1.0
    assert loss < 1e-6
    loss, scores = problem.loss(Oracle(problem, [(1, 0), (1, 3), (2, 5)]), 0)
    assert scores["accuracy"] == 1 - 2 / 8
    assert loss.item() == pytest.approx(3 * 20 / (target[:, 1:] != 0).sum().item(), rel=1e-4)
    # What stands behind the end of a sentence is not asked for.
    loss, scores = problem.loss(Oracle(problem, [(shortest, -1)]), 0)
    assert scores["accuracy"] == 1.0
    assert loss < 1e-6


def test_the_loss_of_a_batch_is_the_mean_over_the_characters_of_its_sentences():
    problem = problem_of(QUICK)
    with torch.no_grad():
        loss, _ = problem.loss(problem.model, 3)
        total = 0.0
        characters = 0
        for sentence in problem.batches.chosen(3).tolist():
            source, target = problem.task.train.batch([sentence])  # alone, without padding
            logits = problem.model(source, target[:, :-1])
            total += nn.functional.cross_entropy(logits[0], target[0, 1:], reduction="sum").item()
            characters += target.shape[1] - 1
    assert loss.item() == pytest.approx(total / characters, rel=1e-5)


def test_scores_on_sentences_held_out_do_not_depend_on_how_many_are_evaluated_at_once():
    few, many = (problem_of(replace(QUICK, batch_size=size)) for size in (7, 100))
    assert few.evaluate(few.model) == pytest.approx(many.evaluate(many.model), rel=1e-5)


def test_a_translation_learns_and_is_tracked(tmp_path):
    result = train(replace(QUICK, optimizer="adamw", gain=False, lr=2e-2, steps=60), tmp_path)
    assert set(result.scores) == {"validation_loss", "validation_accuracy"}
    losses = [row["validation_loss"] for row in result.history]
    assert losses[-1] < 0.6 * losses[0]
    with result.run() as run:
        assert any("crossing.key_value" in layer for layer in run.layers)
        assert set(run.scalars) == {"loss", "accuracy", "validation_loss", "validation_accuracy"}


def test_a_translation_with_dropout_resumes_bit_for_bit(tmp_path):
    config = replace(QUICK, model=f"{SMALL},dropout=0.2", follow=True)
    ended = train(config, tmp_path)
    weights = checkpoint.load_newest(tmp_path / "checkpoints")["model"]
    checkpoint.paths(tmp_path / "checkpoints")[-1].unlink()
    assert train(config, tmp_path, resume=True).scores == ended.scores
    again = checkpoint.load_newest(tmp_path / "checkpoints")["model"]
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_files_are_translated_from_the_command_line(tmp_path, capsys):
    for part, lines in (("train", 40), ("valid", 10)):
        (tmp_path / f"{part}.de").write_text("hallo welt\n" * lines, encoding="utf-8")
        (tmp_path / f"{part}.en").write_text("hello world\n" * lines, encoding="utf-8")
    arguments = ["train", "--task", f"translation:{tmp_path}", "--steps", "2", "--batch-size", "8"]
    assert main([*arguments, "--model", SMALL, "--out", str(tmp_path / "run")]) == 0
    assert "validation accuracy" in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "--model", f"{SMALL},context=8", "--out", str(tmp_path / "short")]) == 2
    assert "write the model as transformer:context=12" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("one_thread_per_trial")
def test_translations_are_swept(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        f"""
metric = "validation_accuracy"
[base]
task = "translation"
model = "{SMALL}"
steps = 2
batch_size = 8
[grid]
lr = [1e-2]
""",
        encoding="utf-8",
    )
    sweep = read_sweep(path)
    assert len(list(run_local(sweep, tmp_path / "out", jobs=1))) == 1
    assert all("validation_accuracy" in outcome(trial, tmp_path / "out").scores for trial in sweep.trials)
