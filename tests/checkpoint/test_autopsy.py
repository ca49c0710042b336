"""What an autopsy says, in words, numbers and on its page."""

import json
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import SGD, AdamW

import gyroscope as gyro
from gyroscope.checkpoint.checkpoint_autopsy import Autopsy
from gyroscope.cli import main
from tests.checkpoint.training import network
from tests.walk import adamw

LR, DECAY = 2e-3, 5.0


def settled(steps: int = 1500, seed: int = 0) -> dict:
    """State dicts of two matrices that AdamW has brought to equilibrium under tangent noise."""
    model, states = {}, {}
    step = adamw(DECAY)
    for number, shape in enumerate([(64, 128), (96, 64)]):
        rng = np.random.default_rng((seed, number))
        w = rng.standard_normal(shape) * (LR / (2 * DECAY)) ** 0.5
        state: dict = {}
        for t in range(1, steps + 1):
            g = rng.standard_normal(shape)
            g -= w * ((g * w).sum(1) / (w * w).sum(1))[:, None]
            w = step(w, g / np.linalg.norm(w, axis=1, keepdims=True), state, LR, t)
        model[f"{number}.weight"] = torch.tensor(w)
        moments = {"exp_avg": torch.tensor(state["m"]), "exp_avg_sq": torch.tensor(state["v"])}
        states[number] = {"step": torch.tensor(float(steps)), **moments}
    optimizer = AdamW([torch.nn.Parameter(value.clone()) for value in model.values()], lr=LR, weight_decay=DECAY, eps=0)
    return {"model": model, "optimizer": {**optimizer.state_dict(), "state": states}}


@pytest.fixture(scope="module")
def equilibrium() -> dict:
    return settled()


def test_layers_in_equilibrium_are_as_predicted_in_every_number(equilibrium):
    autopsy = gyro.autopsy(equilibrium)
    for layer in autopsy.layers.values():
        assert layer.rotation_ratio == pytest.approx(1.0, rel=0.05)
        assert layer.norm_ratio == pytest.approx(1.0, rel=0.05)
        assert layer.spread == pytest.approx(1.0, rel=0.2)
        assert layer.alignment == pytest.approx(1.0, rel=0.1)
        assert abs(layer.lambda_u) < 4 * layer.lambda_u_error
    assert [finding.severity for finding in autopsy.findings if finding.kind == "well"] == ["good"]
    assert "2 of 2 layers rotated as predicted" in str(autopsy)


def test_gradients_that_agree_rotate_their_layer_faster(equilibrium):
    state = deepcopy(equilibrium)
    state["optimizer"]["state"][1]["exp_avg"] *= 3
    findings = {finding.kind: finding for finding in gyro.autopsy(state).findings}
    assert gyro.autopsy(state).layers["1.weight"].alignment == pytest.approx(9, rel=0.1)
    assert findings["over_rotation"].layers == ("1.weight",)


def test_neurons_of_different_speed_dead_ones_and_nan_are_found(equilibrium):
    state = deepcopy(equilibrium)
    state["model"]["0.weight"][:16] *= 8
    assert "neuron_imbalance" in gyro.autopsy(state).findings.kinds
    for name in ("exp_avg", "exp_avg_sq"):
        state["optimizer"]["state"][1][name][:5] = 0
    dead = gyro.autopsy(state)
    assert dead.layers["1.weight"].dead == 5
    assert "dead_vectors" in dead.findings.kinds
    state["model"]["0.weight"][3, 3] = float("nan")
    assert gyro.autopsy(state).findings[0].kind == "diverged"
    assert gyro.autopsy(state).findings[0].layers == ("0.weight",)


def test_a_norm_that_is_off_and_a_short_run_are_told_apart(equilibrium):
    large = deepcopy(equilibrium)
    large["model"]["0.weight"] *= 2
    assert gyro.autopsy(large).findings.summary[-1].endswith(", except 0.weight (off equilibrium).")
    short = deepcopy(equilibrium)
    short["optimizer"]["param_groups"][0]["lr"] = 1e-6
    assert gyro.autopsy(short).findings.summary[-1].startswith("The run is too short for equilibrium")


def test_sgds_equilibrium_norm_comes_from_its_buffer():
    rng = np.random.default_rng(0)
    lr, wd, alpha = 0.05, 0.05, 0.9
    w = rng.standard_normal((96, 128)) * 0.1
    m = np.zeros_like(w)
    for _ in range(3000):
        g = rng.standard_normal(w.shape) * 0.02
        g -= w * ((g * w).sum(1) / (w * w).sum(1))[:, None]
        m = alpha * m + g / np.linalg.norm(w, axis=1, keepdims=True) + wd * w
        w = w - lr * m
    optimizer = SGD([torch.nn.Parameter(torch.tensor(w))], lr=lr, momentum=alpha, weight_decay=wd)
    state = {**optimizer.state_dict(), "state": {0: {"momentum_buffer": torch.tensor(m)}}}
    layer = gyro.autopsy({"model": {"w": torch.tensor(w)}, "optimizer": state}).layers["w"]
    assert layer.norm_ratio == pytest.approx(1.0, rel=0.03)
    assert layer.rotation_ratio == pytest.approx(1.0, rel=0.05)


def test_weights_alone_give_norms_and_with_settings_where_they_should_be(equilibrium):
    alone = gyro.autopsy({"model": equilibrium["model"]})
    assert alone.layers["0.weight"].norm > 0
    assert np.isnan(alone.layers["0.weight"].norm_ratio)
    assert "no optimizer state" in str(alone)
    described = gyro.autopsy({"model": equilibrium["model"]}, optimizer="adamw", lr=LR, weight_decay=DECAY)
    assert described.layers["0.weight"].norm_ratio == pytest.approx(1.0, rel=0.05)
    assert np.isnan(described.layers["0.weight"].rotation)


def test_a_rate_that_is_given_replaces_the_saved_one_and_the_saved_one_is_said_to_be_assumed(equilibrium):
    assumed = gyro.autopsy(equilibrium)
    assert "The learning rate of the last step is assumed to be 0.002" in str(assumed)
    given = gyro.autopsy(equilibrium, lr=2 * LR)
    assert not given.notes
    ratio = given.layers["0.weight"].rotation / assumed.layers["0.weight"].rotation
    assert ratio == pytest.approx(2.0, rel=0.02)


def test_a_saved_rate_of_0_is_asked_for_and_not_used(equilibrium):
    state = deepcopy(equilibrium)
    state["optimizer"]["param_groups"][0]["lr"] = 0.0
    autopsy = gyro.autopsy(state)
    assert np.isnan(autopsy.layers["0.weight"].rotation)
    assert "Pass lr" in str(autopsy)


def finished(state: dict, last: float, peak: float = LR) -> dict:
    """The same state at the end of a cosine whose schedule is a function, which the file does not have."""
    state = deepcopy(state)
    state["optimizer"]["param_groups"][0] |= {"lr": last, "initial_lr": peak}
    return state


def test_norm_and_run_length_of_a_finished_run_are_those_of_the_peak_rate_and_its_rotation_of_the_last(
    equilibrium,
):
    """At a last rate of almost 0, norms would be hundreds of times predicted, and the run far shorter than a memory."""
    autopsy = gyro.autopsy(finished(equilibrium, 1e-6 * LR))
    constant = gyro.autopsy(equilibrium)
    for name, layer in autopsy.layers.items():
        assert layer.peak_lr == LR
        assert layer.norm_ratio == pytest.approx(1.0, rel=0.05)
        assert layer.facts(1500).state == "falls out"
        # 1,500 steps of half the peak rate on average, and a memory of 100 steps.
        assert layer.timescale == pytest.approx(1 / (LR * DECAY))
        assert layer.run_length == layer.run_length == pytest.approx(1500 * LR * DECAY / 2, rel=1e-5)
        assert not layer.run_length_known
        assert layer.rotation == pytest.approx(1e-6 * constant.layers[name].rotation, rel=0.02)
        assert layer.predicted_rotation == pytest.approx(1e-3 * constant.layers[name].predicted_rotation, rel=0.02)
    assert autopsy.findings.summary[-1].startswith("The run is in equilibrium and falls out of it at the end (run")


def test_the_run_length_of_a_constant_rate_is_known_and_without_a_count_of_steps_unknown(equilibrium):
    layer = gyro.autopsy(equilibrium).layers["0.weight"]
    assert layer.run_length == pytest.approx(1500 * LR * DECAY)
    assert layer.run_length_known
    described = gyro.autopsy({"model": equilibrium["model"]}, optimizer="adamw", lr=LR, weight_decay=DECAY)
    assert np.isnan(described.layers["0.weight"].run_length)
    assert described.layers["0.weight"].peak_lr == LR


def test_norms_are_compared_at_the_peak_rate_also_if_the_last_rate_is_0(equilibrium):
    layer = gyro.autopsy(finished(equilibrium, 0.0)).layers["0.weight"]
    assert layer.norm_ratio == pytest.approx(1.0, rel=0.05)
    assert np.isnan(layer.rotation)


@pytest.mark.slow
def test_two_files_give_effective_decay_memory_and_drift(tmp_path):
    files = []
    for steps in (1500, 1540):
        files.append(tmp_path / f"{steps}.pt")
        torch.save(settled(steps), files[-1])
    autopsy = gyro.autopsy(*files)
    for drift in autopsy.drifts:
        assert drift.steps == 40
        # In equilibrium the memory is 1/a = 100 steps.
        assert drift.memory == pytest.approx(100, rel=0.15)
        assert drift.effective_decay == pytest.approx(drift.expected_decay, rel=0.15)
        assert np.cos(drift.angle) == pytest.approx(np.exp(-0.01 * (40 - drift.lag)), rel=0.05)
        assert drift.norm_ratio == pytest.approx(1.0, rel=0.03)
    assert "forgotten in" in str(autopsy)
    with pytest.raises(ValueError, match="name the older checkpoint first"):
        gyro.autopsy(*reversed(files))


@pytest.mark.slow
def test_two_files_of_a_rotational_optimizer_at_a_falling_rate(tmp_path):
    """Noise at norms that are held: directions are forgotten as the base's rule has it, at the mean of the rates."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 128, generator=generator))
    optimizer = gyro.optim.RotationalAdamW([weight], lr=2e-2, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.25, total_iters=800)
    files = []
    for step in range(1, 501):
        weight.grad = torch.randn(64, 128, generator=generator)
        optimizer.step()
        schedule.step()
        if step in (400, 500):
            files.append(tmp_path / f"{step}.pt")
            state = {"model": {"w": weight.detach()}, "optimizer": optimizer.state_dict()}
            torch.save({**state, "scheduler": schedule.state_dict()}, files[-1])
    autopsy = gyro.autopsy(*files)
    (drift,) = autopsy.drifts
    assert drift.norm_ratio == pytest.approx(1.0, rel=1e-3)
    assert drift.lag == pytest.approx(2 * 0.9 / (1 - 0.81))
    # 0.01 per step at full rate, of which 5/8 and 17/32 are left at the ends.
    assert drift.expected_decay == pytest.approx((100 - drift.lag) * 0.01 * (5 / 8 + 17 / 32) / 2, rel=0.005)
    assert drift.effective_decay == pytest.approx(drift.expected_decay, rel=0.1)
    assert autopsy.layers["w"].rotation_ratio == pytest.approx(1.0, rel=0.1)
    (finding,) = (finding for finding in autopsy.findings if finding.kind == "well")
    assert finding.severity == "note"


def test_a_tiny_turn_between_two_files_keeps_its_digits():
    """An arccos of the cosine would give 0 or 1.5e-8."""
    weight = torch.eye(4, dtype=torch.float64)
    turned = weight + 1e-9 * weight.roll(1, 0)
    autopsy = gyro.autopsy({"model": {"0.weight": weight}}, {"model": {"0.weight": turned}})
    (drift,) = autopsy.drifts
    assert drift.angle == pytest.approx(1e-9, rel=1e-6)


def test_files_of_different_models_are_not_compared(equilibrium, tmp_path):
    other = deepcopy(equilibrium)
    other["model"]["0.weight"] = torch.ones(3, 3)
    for each in other["optimizer"]["state"].values():
        each["step"] = torch.tensor(10.0)
    del other["optimizer"]["state"][0]
    with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
        gyro.autopsy(other, equilibrium)


def test_json_has_every_number_of_every_neuron(equilibrium):
    data = json.loads(gyro.autopsy(equilibrium).json())
    assert data["step"] == 1500
    layer = data["layers"][0]
    assert len(layer["rotations"]) == 64
    assert layer["rule"]["name"] == "AdamW"
    assert layer["rotation"] == pytest.approx(float(np.mean(layer["rotations"])), rel=1e-4)
    assert data["findings"]


def test_the_command_prints_text_json_and_writes_a_page(equilibrium, tmp_path, capsys):
    file = tmp_path / "ckpt.pt"
    torch.save(equilibrium, file)
    assert main(["autopsy", str(file)]) == 0
    text = capsys.readouterr().out
    assert "Autopsy: ckpt.pt after 1,500 steps" in text
    assert "0.weight" in text
    assert main(["autopsy", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "ckpt.pt"
    assert main(["autopsy", str(file), "--html", str(tmp_path / "page.html")]) == 0
    assert "<h1>Autopsy: ckpt.pt" in (tmp_path / "page.html").read_text()
    assert main(["autopsy", str(file), "--betas", "0.9"]) == 2
    assert "pair of numbers" in capsys.readouterr().err


def test_a_page_over_a_checkpoint_is_refused_before_anything_is_read(equilibrium, tmp_path, capsys):
    file = tmp_path / "ckpt.pt"
    torch.save(equilibrium, file)
    before = file.read_bytes()
    assert main(["autopsy", str(file), "--html", str(file)]) == 2
    assert "is an input, and the output would replace it" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_names_are_escaped_on_the_page():
    weights = {"<script>alert(1)</script>": torch.ones(4, 4)}
    page = gyro.autopsy({"model": weights}).page()
    assert "<script>alert(1)" not in page


def test_a_name_that_utf_8_cannot_encode_is_escaped_on_the_page(equilibrium, tmp_path, capsys):
    model = {name.replace("0.", "\udcff\ud800."): tensor for name, tensor in equilibrium["model"].items()}
    torch.save({**equilibrium, "model": model}, tmp_path / "ckpt.pt")
    assert main(["autopsy", str(tmp_path / "ckpt.pt"), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert r"\udcff\ud800" in page


def test_an_autopsy_of_a_fresh_network_is_an_autopsy():
    assert isinstance(gyro.autopsy({"model": network().state_dict()}), Autopsy)


@pytest.mark.parametrize("optimizer", [partial(SGD, lr=0.1), partial(torch.optim.Adagrad, lr=0.1)])
def test_an_optimizer_without_a_known_state_gives_norms_and_says_why_no_more(optimizer):
    model = network()
    stepping = optimizer(model.parameters())
    sum((p**2).sum() for p in model.parameters()).backward()
    stepping.step()
    text = str(gyro.autopsy({"model": model.state_dict(), "optimizer": stepping.state_dict()}))
    assert "cannot be reconstructed" in text


def test_a_layer_that_did_not_move_between_two_files_forgets_0_times_as_fast_as_in_equilibrium(equilibrium):
    later = deepcopy(equilibrium)
    for each in later["optimizer"]["state"].values():
        each["step"] = each["step"] + 40
    findings = [finding for finding in gyro.autopsy(equilibrium, later).findings if finding.kind == "drift"]
    assert findings[-1].sentence.startswith("0.weight and 1.weight forget 0 times as fast as in equilibrium")
