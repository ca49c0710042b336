"""Training runs: killed at any moment they end with the same weights, and nothing is lost."""

import io
import json
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gyroscope_lab as lab
import pytest
import torch
from gyroscope_lab.framework.presets import preset, presets
from gyroscope_lab.networks.gpt import GPT, GPTShape
from gyroscope_lab.sweeps.trial import run_trial
from gyroscope_lab.training import checkpoint, problems, train
from gyroscope_lab.training.by_name import named_training, prepare_weights
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.console import progress_line
from gyroscope_lab.training.loop import StepReport
from gyroscope_lab.training.optimizers import _choices, make_optimizers
from gyroscope_lab.training.problems import make_problem
from rich.console import Console

from gyroscope.cli import main
from gyroscope.optim import Rotational
from gyroscope.theory import AdamW
from tests.forked import FORKED
from tests.needs import muon_for, needs_muon

QUICK = TrainConfig(
    task="digits", model="cnn:width=8,convolutions=2", optimizer="rotational-adamw", lr=1e-2, steps=24, batch_size=64
)


def weights(folder):
    return torch.load(checkpoint.paths(folder / "checkpoints")[-1], weights_only=True)["model"]


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return train(QUICK, folder)


@pytest.mark.slow
def test_a_run_learns_and_records_its_result(tmp_path):
    result = train(replace(QUICK, model="cnn:width=16", optimizer="adamw", steps=150), tmp_path)
    assert result.scores["validation_accuracy"] > 0.8
    assert len(result.history) == QUICK.evaluations
    assert result.divergence is None
    assert json.loads((tmp_path / "result.json").read_text())["scores"] == result.scores
    with result.run() as run:
        assert set(run.scalars) == {"loss", "accuracy", "validation_loss", "validation_accuracy"}
        steps, losses = run.scalar("loss")
        assert steps.tolist() == list(range(result.steps))
        assert losses[-1] < losses[0]


def test_the_lab_trains_from_python_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [lab.train(lab.TrainConfig(task="digits", model="mlp:width=8", steps=2)) for _ in range(2)]
    assert all(isinstance(run, lab.TrainResult) for run in runs)
    assert len(list(Path("runs").iterdir())) == 2
    with pytest.raises(AttributeError, match=r"no attribute 'trian'\. It has TrainConfig, TrainResult, train"):
        _ = lab.trian


def test_the_losses_before_and_after_a_start_are_of_the_same_batches(monkeypatch):
    config = replace(QUICK, optimizer="sgd", lr=0.1, start="equilibrium")
    problem = problems.make_problem(config, None, torch.device("cpu"))
    numbers = []
    loss = problem.loss
    monkeypatch.setattr(problem, "loss", lambda model, number: numbers.append(number) or loss(model, number))
    prepare_weights(config, problem, make_optimizers(config, problem.model))
    assert numbers == 3 * [0, 1, 2, 3]  # gradients, the loss before, the loss after


def test_weights_in_bfloat16_resume_bit_for_bit(tmp_path):
    config = replace(QUICK, optimizer="adamw", precision="pure-bf16", steps=4)
    result = train(config, tmp_path)
    ended = weights(tmp_path)
    assert {name: ended[name].dtype for name in ("features.0.weight", "features.1.weight")} == {
        "features.0.weight": torch.bfloat16,
        "features.1.weight": torch.float32,  # a gain, which does not turn
    }
    checkpoint.paths(tmp_path / "checkpoints")[-1].unlink()
    assert train(config, tmp_path, resume=True).scores == result.scores
    assert same(weights(tmp_path), ended)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", muon_for("muon", ["rotational-adamw", "k-adam", "muon"]))
def test_a_run_stopped_by_ctrl_c_resumes_bit_for_bit(tmp_path, optimizer):
    model = "mlp:width=16" if optimizer == "muon" else QUICK.model
    config = replace(QUICK, model=model, optimizer=optimizer, lr=None, augment=True)
    train(config, tmp_path / "whole")

    def interrupt(progress):
        if progress.step == 13:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=interrupt)
    train(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


@pytest.mark.slow
def test_a_run_that_follows_its_base_resumes_bit_for_bit(tmp_path):
    config = replace(QUICK, optimizer="rotational-sgd", lr=None, follow=True, steps=20)
    train(config, tmp_path / "whole")
    train(replace(config, follow=False), tmp_path / "steady")
    assert not same(weights(tmp_path / "whole"), weights(tmp_path / "steady"))
    train(config, tmp_path / "cut")
    checkpoint.paths(tmp_path / "cut" / "checkpoints")[-1].unlink()
    train(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_bit_for_bit(tmp_path, whole):
    """kill -9, again and again, at moments that nobody chose."""
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "trial.json").write_text(json.dumps(QUICK.as_dict()))
    killed = 0
    for attempt in range(40):
        process = FORKED.Process(target=run_trial, args=(str(folder),))
        process.start()
        start = time.monotonic()
        while process.is_alive() and time.monotonic() - start < 60:
            # Wait for a sign of work, then a little longer each time.
            if killed < 3 and len(checkpoint.paths(folder / "checkpoints")) > killed:
                time.sleep(0.003 * attempt)
                process.kill()
                killed += 1
            time.sleep(0.001)
        process.join()
        if process.exitcode == 0:
            break
    assert killed >= 1
    assert same(weights(whole.path), weights(folder))


def exploding(monkeypatch, at):
    """Let the loss of images be infinite from a batch on."""
    loss = problems.ImageProblem.loss

    def explode(self, model, number):
        value, scores = loss(self, model, number)
        return (value * float("inf") if number >= at else value), scores

    monkeypatch.setattr(problems.ImageProblem, "loss", explode)


def test_a_diverged_run_names_the_step_and_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    exploding(monkeypatch, at=17)
    run = train(replace(QUICK, steps=50), tmp_path)
    assert run.divergence.step == run.steps == 17
    assert json.loads((tmp_path / "result.json").read_text())["diverged_at"] == 17
    assert checkpoint.load_newest(tmp_path / "checkpoints")["step"] == 15
    assert all(torch.isfinite(value).all() for value in weights(tmp_path).values())
    # The layer is the one that turned most against its prediction when it was last measured.
    before = run.divergence.before
    assert before.step == 16
    with run.run() as rotation:
        assert rotation.status == "failed"
        place = rotation.steps.tolist().index(16)
        ratios = {
            layer: rotation.series(layer, "angular_update", "rms")[place]
            / rotation.series(layer, "predicted_angular_update")[place]
            for layer in rotation.layers
        }
    assert before.layer == max(ratios, key=ratios.get)
    assert before.angle / before.predicted == pytest.approx(ratios[before.layer])


def test_the_command_line_reports_divergence_without_a_stack_trace(tmp_path, monkeypatch, capsys):
    exploding(monkeypatch, at=12)
    arguments = ["--model", "cnn:width=8,convolutions=2", "--steps", "30", "--out", str(tmp_path / "run")]
    assert main(["train", *arguments]) == 1
    output = capsys.readouterr()
    text = " ".join(output.out.split())
    assert "Diverged: the loss is not finite from step 12 on (at step 11 " in text
    assert "× its prediction, the most of all layers). The last checkpoint before it is" in text
    assert "Traceback" not in output.out + output.err


def test_a_diverged_run_without_a_tracker_names_the_step_alone(tmp_path, monkeypatch):
    exploding(monkeypatch, at=3)
    run = train(replace(QUICK, track=False), tmp_path)
    assert str(run.divergence) == "the loss is not finite from step 3 on"
    assert [row["step"] for row in run.history] == [3]


def test_a_folder_with_another_run_is_not_overwritten(tmp_path, whole):
    with pytest.raises(ValueError, match="already has a run: continue it with --resume"):
        train(QUICK, whole.path)
    with pytest.raises(ValueError, match=r"other settings \(lr\)"):
        train(replace(QUICK, lr=0.5), whole.path, resume=True)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    checkpoint.save(tmp_path, 1, {"step": 1})
    path = checkpoint.save(tmp_path, 2, {"step": 2})
    path.write_bytes(path.read_bytes()[:100])
    assert checkpoint.load_newest(tmp_path) == {"step": 1}


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path, step, {"step": step})
    assert [path.name for path in checkpoint.paths(tmp_path)] == ["step-000000003.pt", "step-000000004.pt"]


def test_a_disk_without_room_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"step": 1})

    def full(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ValueError, match=r"cannot write the checkpoint .*step-000000002.*No space left"):
        checkpoint.save(tmp_path, 2, {"step": 2})
    assert checkpoint.load_newest(tmp_path) == {"step": 1}
    assert [path.name for path in Path(tmp_path).iterdir()] == ["step-000000001.pt"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Ballast:
    """Fills the disk after a step, and makes room again after a later one."""

    def __init__(self, disk, fill, empty=None):
        self.file = disk / "ballast"
        self.fill = fill
        self.empty = empty

    def __call__(self, report):
        if report.step == self.fill:
            with suppress(OSError), open(self.file, "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        if report.step == self.empty:
            self.file.unlink()


@pytest.mark.slow
def test_a_run_outlives_a_full_disk_at_checkpoint_time(small_disk, whole):
    folder = small_disk / "run"
    with pytest.warns(RuntimeWarning) as caught:  # the tracker may warn too: it writes to the same disk
        run = train(QUICK, folder, on_step=Ballast(small_disk, fill=6, empty=18))
    texts = [str(warning.message) for warning in caught]
    assert any("cannot write the checkpoint" in text and "Training continues" in text for text in texts)
    assert run.scores == whole.scores
    assert same(weights(whole.path), weights(folder))


@pytest.mark.slow
def test_a_run_that_ends_on_a_full_disk_resumes_from_the_checkpoint_before(small_disk, whole):
    folder = small_disk / "run"
    ballast = Ballast(small_disk, fill=17)
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match=r"cannot write .*step-000000024.*are kept"):
        train(QUICK, folder, on_step=ballast)
    assert checkpoint.load_newest(folder / "checkpoints")["step"] == 15
    ballast.file.unlink()
    train(QUICK, folder, resume=True)
    assert same(weights(whole.path), weights(folder))


def test_accumulated_batches_count_as_one_step(tmp_path):
    layer_norm = replace(QUICK, norm="layer", optimizer="sgd", lr=0.1, steps=4, track=False)
    one = train(replace(layer_norm, batch_size=64), tmp_path / "one")
    assert one.steps == 4
    two = train(replace(layer_norm, batch_size=32, accumulate=2), tmp_path / "two")
    assert two.steps == 4


@pytest.mark.parametrize("optimizer", muon_for("muon", _choices()))
def test_every_optimizer_trains_by_its_name(tmp_path, optimizer):
    run = train(TrainConfig(model="mlp:width=16", optimizer=optimizer, steps=40), tmp_path)
    with run.run() as rotation:
        _, losses = rotation.scalar("loss")
    assert losses[-10:].mean() < losses[:10].mean() - 0.02


def names(optimizer):
    return {name for group in optimizer.param_groups for name in group["param_names"]}


@needs_muon
def test_muon_takes_hidden_matrices_and_adamw_the_rest():
    model = GPT(GPTShape(11, layers=1, heads=2, width=16, bias=True))
    muon, adamw = make_optimizers(TrainConfig(model="gpt", optimizer="muon", lr=0.01, steps=1), model)
    block = "blocks.0."
    hidden = ("attention.qkv", "attention.out", "feed_forward.inner", "feed_forward.out")
    assert names(muon) == {f"{block}{name}.weight" for name in hidden}
    assert names(muon) | names(adamw) == {name for name, _ in model.named_parameters()}
    assert not names(muon) & names(adamw)
    assert {group["lr"] for each in (muon, adamw) for group in each.param_groups} == {0.01}
    assert type(adamw) is torch.optim.AdamW
    with pytest.raises(ValueError, match="this network has none: choose mlp, vit or gpt"):
        make_optimizers(TrainConfig(optimizer="muon", steps=1), torch.nn.Conv2d(3, 8, 3))


@pytest.mark.parametrize("decay_embeddings", [False, True])
def test_embeddings_decay_on_request(decay_embeddings):
    model = GPT(GPTShape(11, layers=1, heads=2, width=16))
    config = TrainConfig(model="gpt", weight_decay=0.3, decay_embeddings=decay_embeddings, steps=1)
    (adamw,) = make_optimizers(config, model)
    decays = {name: group["weight_decay"] for group in adamw.param_groups for name in group["param_names"]}
    assert decays["token.weight"] == decays["position.weight"] == (0.3 if decay_embeddings else 0.0)
    assert decays["blocks.0.attention.qkv.weight"] == 0.3
    assert decays["norm.weight"] == 0.0


@needs_muon
def test_both_optimizers_of_muon_follow_the_schedule(tmp_path):
    config = TrainConfig(model="mlp:width=8", optimizer="muon", lr=0.01, steps=10, schedule="linear", track=False)
    train(config, tmp_path)
    states = torch.load(checkpoint.paths(tmp_path / "checkpoints")[-1], weights_only=True)["optimizers"]
    assert [state["param_groups"][0]["lr"] for state in states] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert len({state["param_groups"][0]["lr"] for state in states}) == 1


def test_an_unknown_optimizer_names_the_nearest_one():
    model = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match="did you mean 'rotational-adamw'"):
        make_optimizers(TrainConfig(optimizer="rotational-adam", steps=1), model)
    with pytest.raises(ValueError, match="adamw has no 'momentum': it takes lr, weight_decay, betas"):
        make_optimizers(TrainConfig(momentum=0.9, steps=1), model)


def test_the_live_line_has_loss_accuracy_rate_time_left_and_rotation():
    file = io.StringIO()
    rotation = {"gyroscope/angular_update": 0.0123, "gyroscope/predicted_angular_update": 0.0104}
    with progress_line(Console(file=file, force_terminal=True, width=200)) as line:
        for step in (1, 2, 3):
            scores = {"accuracy": torch.tensor(0.25), "validation_loss": 0.7, "validation_accuracy": 0.75}
            line(StepReport(step, 4, 64, torch.tensor(2.0), scores, rotation))
    text = file.getvalue()
    assert "loss 2.000, accuracy 0.250 (held out 0.700, 0.750), rotation 0.012 of 0.01 predicted" in text
    assert "samples/s" in text
    assert "left" in text


def test_settings_that_make_no_run_are_errors():
    with pytest.raises(ValueError, match="exactly one of them"):
        TrainConfig()
    with pytest.raises(ValueError, match="schedule='linea' is unknown"):
        TrainConfig(steps=3, schedule="linea")
    with pytest.raises(ValueError, match="unknown setting 'learning_rate'"):
        TrainConfig.from_dict({"learning_rate": 3, "steps": 3})


def test_a_start_at_equilibrium_is_the_same_call_and_survives_a_resume(tmp_path):
    config = TrainConfig(task="digits", model="mlp:width=16", steps=12, start="equilibrium", init_scale=0.5, lr=1e-2)
    started = []
    whole = train(config, tmp_path / "whole", on_start=started.append)
    rule = AdamW(1e-2, 0.1)
    for layer in started[0].layers:
        weight = dict(problems.make_problem(config, None, torch.device("cpu")).model.named_parameters())[layer.name]
        assert layer.before == pytest.approx(0.5 * weight.norm(dim=1).square().mean().sqrt().item(), rel=1e-5)
        assert layer.after == pytest.approx(rule.equilibrium(fan_in=weight.shape[1]).norm, rel=1e-5)
    for path in (tmp_path / "whole" / "checkpoints").glob("*.pt"):
        if "12" not in path.stem:
            path.unlink()
    again = train(config, tmp_path / "whole", resume=True, on_start=started.append)
    assert again.scores == whole.scores
    assert len(started) == 1  # a run that goes on has no start


def test_pure_bfloat16_rounds_the_weights_that_rotate_and_trains(tmp_path):
    config = TrainConfig(task="digits", model="cnn:width=8", steps=12, precision="pure-bf16", evaluations=1)
    result = train(config, tmp_path / "run")
    assert result.divergence is None
    with result.run() as run:
        assert run.series(run.layers[1], "frozen_entries").max() > 0


@pytest.mark.parametrize(("option", "value"), [("start", "origin"), ("precision", "fp8"), ("init_scale", 0.0)])
def test_a_start_that_there_is_not_is_a_sentence(option, value):
    with pytest.raises(ValueError, match=option):
        TrainConfig(steps=1, **{option: value})


def test_an_optimizer_takes_options_of_its_class_after_a_colon():
    model = torch.nn.Linear(8, 4)
    (optimizer,) = make_optimizers(TrainConfig(optimizer="k-adam:k=3,strategy=naive", steps=1), model)
    assert {group["k"] for group in optimizer.param_groups} == {3}
    assert {group["strategy"] for group in optimizer.param_groups} == {"naive"}
    with pytest.raises(ValueError, match="unknown option 'kk' of k-adam: it has k, strategy"):
        make_optimizers(TrainConfig(optimizer="k-adam:kk=3", steps=1), model)
    with pytest.raises(ValueError, match="write options as k-adam:option=value"):
        make_optimizers(TrainConfig(optimizer="k-adam:k", steps=1), model)


def test_the_special_variant_rotates_directions_of_adam_by_the_angle_of_adamw():
    model = torch.nn.Linear(64, 4)
    config = TrainConfig(optimizer="rotational-adam-l2:beta=0.9", lr=1e-2, weight_decay=0.5, steps=1)
    (optimizer,) = make_optimizers(config, model)
    assert isinstance(optimizer, Rotational)
    assert isinstance(optimizer.inner, torch.optim.Adam)
    turning = next(group for group in optimizer.param_groups if group["granularity"] != "none")
    assert turning["angular_update"] == AdamW(lr=1e-2, weight_decay=0.5)
    assert (turning["beta"], turning["weight_decay"]) == (0.9, 0.5)


def test_imbalance_is_given_by_shares_that_rotate_slower_and_faster():
    model = torch.nn.Linear(64, 8)
    config = TrainConfig(optimizer="imbalanced-adamw:slower=0.5,faster=0.25,factor=4", lr=1e-2, steps=1)
    (optimizer,) = make_optimizers(config, model)
    before = model.weight.detach().double()
    before -= before.mean(1, keepdim=True)  # the first step centres
    model.weight.grad = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    cosine = torch.nn.functional.cosine_similarity(before, model.weight.detach().double())
    angles = torch.acos(cosine) / AdamW(lr=1e-2, weight_decay=0.1).equilibrium(leading_order=True).angular_update
    assert sorted(round(float(angle), 2) for angle in angles) == [0.25] * 4 + [1.0] * 2 + [4.0] * 2


def test_vectors_are_whole_layers_on_request():
    model = torch.nn.Linear(64, 8)
    config = TrainConfig(optimizer="rotational-sgd:granularity=tensor", steps=1)
    (optimizer,) = make_optimizers(config, model)
    assert [group["granularity"] for group in optimizer.param_groups if group["weight_decay"]] == ["tensor"]


@pytest.mark.slow
def test_a_run_is_measured_as_often_as_configured(tmp_path):
    result = train(replace(QUICK, sample_every=7), tmp_path)
    with result.run() as run:
        assert run.steps.tolist() == list(range(0, QUICK.steps, 7))
    with pytest.raises(ValueError, match="sample_every=0"):
        replace(QUICK, sample_every=0)


def test_gains_learn_beside_weights_that_keep_their_norms(tmp_path):
    config = TrainConfig(model="mlp:width=16", norm="none", optimizer="rotational-adamw", gain=True, lr=0.01, steps=40)
    training, _ = named_training(config, make_problem(config, None, torch.device("cpu")), tmp_path)
    names_of_gains = [name for name, _ in training.model.named_parameters() if name.endswith(".gain")]
    assert len(names_of_gains) == sum(isinstance(module, torch.nn.Linear) for module in training.model.modules())
    for _ in range(config.steps):
        training.one_step()
        training.step += 1
    gains = dict(training.model.named_parameters())
    assert all((gains[name] - 1).abs().max() > 0.01 for name in names_of_gains)


def test_a_preset_gives_a_papers_settings_and_what_is_typed_changes_them(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(
        "gyroscope_lab.training.console.train_in_terminal", lambda config, *_, **__: trained.append(config)
    )
    main(["train", "--preset", "re/resnet20-adamw", "--weight-decay", "0.1", "--steps", "50", "--out", str(tmp_path)])
    (config,) = trained
    assert (config.model, config.lr, config.batch_size) == ("resnet20", 0.05, 128)
    assert (config.weight_decay, config.steps, config.epochs) == (0.1, 50, None)


def test_an_unknown_preset_is_answered_by_the_list_of_all(capsys, tmp_path):
    assert main(["train", "--preset", "re/resnet20-adam", "--out", str(tmp_path)]) == 2
    assert "did you mean 're/resnet20-adamw'?" in capsys.readouterr().err


def turned(config, steps, tmp_path):
    """The training after so many steps, and the norms of its convolutions before each and at the end."""
    training, _ = named_training(config, make_problem(config, None, torch.device("cpu")), tmp_path)
    norms = []
    for _ in range(steps):
        norms.append(training.model.features[0].weight.norm().item())
        training.one_step()
        training.step += 1
    return training, [*norms, training.model.features[0].weight.norm().item()]


def test_milestones_divide_the_learning_rate_where_they_stand(tmp_path):
    config = replace(QUICK, optimizer="sgd", lr=0.5, schedule="step", milestones=(0.25, 0.5), steps=8)
    training, _ = turned(config, 0, tmp_path)
    assert [training.schedulers[0].lr_lambdas[0](t) for t in range(8)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01]
    )
    with pytest.raises(ValueError, match=r"milestones=1\.5"):
        replace(config, milestones=(0.5, 1.5))


def test_rescaled_norms_are_those_of_the_new_equilibrium_when_lr_falls(tmp_path):
    config = replace(QUICK, optimizer="sgd", lr=1e-3, weight_decay=0.1, schedule="step", steps=8)
    _, plain = turned(config, 8, tmp_path)
    training, rescaled = turned(replace(config, rescale=True), 8, tmp_path)
    assert rescaled[:4] == plain[:4]
    # lr falls by 10 before step 4, SGD's norms by its fourth root; lr is too small to change them otherwise.
    assert rescaled[4] / plain[4] == pytest.approx(10**-0.25, rel=1e-3)
    assert rescaled[6] / plain[6] == pytest.approx(10**-0.5, rel=1e-3)
    assert training.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-5)


@pytest.mark.slow
def test_a_run_with_rescaled_norms_resumes_bit_for_bit(tmp_path):
    config = replace(QUICK, optimizer="sgd", schedule="step", rescale=True, steps=20)
    train(config, tmp_path)
    ended = weights(tmp_path)
    checkpoint.paths(tmp_path / "checkpoints")[-1].unlink()
    train(config, tmp_path, resume=True)
    assert same(weights(tmp_path), ended)


def test_a_head_that_does_not_rotate_decays_and_keeps_its_norm_when_others_are_rescaled(tmp_path):
    config = replace(QUICK, optimizer="sgd", lr=1e-3, schedule="step", rescale=True, turn_head=False, steps=8)
    training, norms = turned(config, 0, tmp_path)
    before = training.model.head.weight.norm().item()
    training, norms = turned(config, 8, tmp_path)
    group = next(g for g in training.optimizers[0].param_groups if "head.weight" in g["param_names"])
    assert (group["granularity"], group["weight_decay"]) == ("none", 5e-4)
    assert training.model.head.weight.norm().item() == pytest.approx(before, rel=0.01)
    assert norms[-1] / norms[0] == pytest.approx(10**-0.5, rel=0.01)


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_a_training(name):
    TrainConfig.from_dict(preset(name))


@pytest.mark.parametrize("device", ["typo", "cuda:99", "meta", ""])
def test_a_device_that_cannot_be_used_is_one_sentence(device, tmp_path, capsys):
    assert main(["train", "--device", device, "--steps", "2", "--out", str(tmp_path / "run")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"device={device!r}" in err
    assert not (tmp_path / "run").exists()
