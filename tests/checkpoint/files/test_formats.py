"""Checkpoints in the forms people have: each gives the last step as the tracker measured it."""

import argparse
import json
import math
import time
from copy import deepcopy
from functools import partial
from pathlib import Path

import gyroscope_lab as lab
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import gyroscope as gyro
from tests.checkpoint.training import STEPS, assert_same_rotation, network, train

ADAMW = partial(AdamW, lr=1e-2, weight_decay=0.1)


def by_dimension(model: nn.Module) -> list[dict]:
    """nanoGPT's two groups."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


NANOGPT = {"learning_rate": 1e-2, "decay_lr": True, "warmup_iters": 10, "lr_decay_iters": 100, "min_lr": 1e-3}


def nanogpt_rate(it: int) -> float:
    if it < 10:
        return 1e-2 * (it + 1) / 11
    return 1e-3 + 0.5 * (1 + math.cos(math.pi * (it - 10) / 90)) * (1e-2 - 1e-3)


def test_nanogpts_checkpoint_with_its_schedule_one_step_back(tmp_path):
    def set_rate(step, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = nanogpt_rate(step)

    trained = train(tmp_path / "run", partial(AdamW, lr=1e-2), groups=by_dimension, every_step=set_rate)
    set_rate(STEPS, trained.optimizer)  # train.py does this before it saves
    state = {
        "model": {f"_orig_mod.{name}": value for name, value in trained.model.state_dict().items()},
        "optimizer": trained.optimizer.state_dict(),
        "model_args": {"n_layer": 2},
        "iter_num": STEPS,
        "best_val_loss": torch.tensor(1.5),
        "config": NANOGPT,
    }
    torch.save(state, tmp_path / "ckpt.pt")
    autopsy = gyro.autopsy(tmp_path / "ckpt.pt")
    assert_same_rotation(autopsy, trained)
    assert autopsy.step == STEPS
    assert autopsy.layers["0.weight"].rule.lr == pytest.approx(nanogpt_rate(STEPS - 1))
    assert not autopsy.notes


def test_lightnings_checkpoint_with_its_scheduler_and_hyper_parameters(tmp_path):
    trained = train(tmp_path / "run", ADAMW, partial(CosineAnnealingLR, T_max=100))
    state = {
        "epoch": 3,
        "global_step": STEPS,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": trained.model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {},
        "optimizer_states": [trained.optimizer.state_dict()],
        "lr_schedulers": [trained.scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": argparse.Namespace(width=48),
    }
    torch.save(state, tmp_path / "last.ckpt")
    autopsy = gyro.autopsy(tmp_path / "last.ckpt")
    assert_same_rotation(autopsy, trained)
    assert autopsy.layers["0.weight"].rule.lr == pytest.approx(trained.lr, rel=1e-6)


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "two files"])
def test_a_folder_of_the_trainer_with_the_rate_from_its_log(weights, tmp_path):
    linear = partial(LambdaLR, lr_lambda=lambda step: 1 - step / 100)
    trained = train(tmp_path / "run", ADAMW, linear, groups=by_dimension)
    folder = tmp_path / "checkpoint-60"
    folder.mkdir()
    tensors = trained.model.state_dict()
    if weights == "model.safetensors":
        save_file(tensors, folder / weights)
    elif weights == "pytorch_model.bin":
        torch.save(tensors, folder / weights)
    else:
        names = list(tensors)
        parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
        for file, members in parts.items():
            save_file({name: tensors[name] for name in members}, folder / file)
        index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(trained.optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(trained.scheduler.state_dict(), folder / "scheduler.pt")
    log = [{"loss": 2.3, "learning_rate": 1e-2 * (1 - step / 100), "step": step} for step in (20, 40, 60)]
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": STEPS, "log_history": log, "max_steps": 100}))
    # safetensors sorts names, and the two blocks have equal shapes.
    model = None if weights == "pytorch_model.bin" else network()
    assert_same_rotation(gyro.autopsy(folder, model=model), trained)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimizer", [ADAMW, partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-2)])
@pytest.mark.parametrize("form", ["names", "numbers"])
def test_a_folder_of_torch_distributed_checkpoint(form, optimizer, tmp_path):
    trained = train(tmp_path / "run", optimizer)
    model, state = trained.model.state_dict(), trained.optimizer.state_dict()
    if form == "names":
        model, state = get_state_dict(trained.model, trained.optimizer)
    save({"model": model, "optimizer": state, "step": STEPS}, checkpoint_id=tmp_path / "dcp")
    autopsy = gyro.autopsy(tmp_path / "dcp")
    assert_same_rotation(autopsy, trained)
    assert autopsy.step == STEPS


@pytest.mark.slow
def test_our_own_checkpoint_of_the_lab(tmp_path):
    config = lab.TrainConfig(task="digits", model="mlp", optimizer="adamw", steps=30, schedule="constant", lr=1e-3)
    lab.train(config, tmp_path)
    file = sorted((tmp_path / "checkpoints").glob("*.pt"))[-1]
    autopsy = gyro.autopsy(file)
    assert autopsy.step == 30
    assert all(0 < layer.rotation < 0.1 and layer.exact for layer in autopsy.layers.values())


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "rotational-adamw", "rotational-sgd", "hyperball", "adamh"])
def test_a_lab_checkpoint_tells_the_last_step_of_a_schedule_by_the_rate_that_it_was_taken_with(optimizer, tmp_path):
    config = lab.TrainConfig(
        task="digits",
        model="mlp:width=16",
        optimizer=optimizer,
        steps=12,
        warmup=4,
        schedule="linear",
        sample_every=1,
    )
    with lab.train(config, tmp_path).run() as run:
        measured = {name: run.series(name, "angular_update")[-1] for name in run.layers}
    newest, before = sorted((tmp_path / "checkpoints").glob("*.pt"))[::-1]
    autopsy = gyro.autopsy(newest)
    assert not autopsy.notes  # nothing is assumed about the rate
    for name, angle in measured.items():
        tolerance = 1e-4 if autopsy.layers[name].exact else 0.15
        assert autopsy.layers[name].rotation == pytest.approx(angle, rel=tolerance), name
    assert gyro.autopsy(before, newest).drifts[0].steps == 12 - int(before.stem.removeprefix("step-"))


def test_a_lab_checkpoint_of_an_older_version_says_that_the_saved_rate_is_the_next_steps(tmp_path):
    config = lab.TrainConfig(task="digits", model="mlp:width=16", optimizer="adamw", steps=12, track=False)
    lab.train(config, tmp_path)
    state = torch.load(sorted((tmp_path / "checkpoints").glob("*.pt"))[0], weights_only=True)
    del state["last_step_lr"]
    assert "which a schedule set for the next step" in " ".join(gyro.autopsy(state).notes)


def test_names_in_the_optimizers_groups_decide_before_order(tmp_path):
    named = lambda model: list(reversed(list(model.named_parameters())))  # noqa: E731
    trained = train(tmp_path, ADAMW, groups=named)
    state = {"net": trained.model.state_dict(), "opt": trained.optimizer.state_dict()}
    assert_same_rotation(gyro.autopsy(state), trained)


def test_an_order_that_is_not_the_models_is_refused_without_names(tmp_path):
    trained = train(tmp_path, ADAMW, groups=lambda model: list(reversed(list(model.parameters()))))
    with pytest.raises(ValueError, match="or in the same order"):
        gyro.autopsy({"model": trained.model.state_dict(), "optimizer": trained.optimizer.state_dict()})


def test_equal_shapes_in_two_groups_are_refused_as_ambiguous():
    layers = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(3)])
    groups = [{"params": [layers[0].weight, layers[2].weight]}, {"params": [layers[1].weight]}]
    optimizer = AdamW(groups)
    torch.stack([(layer.weight**2).sum() for layer in layers]).sum().backward()
    optimizer.step()
    state = {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}
    with pytest.raises(ValueError, match="cannot be assigned to weights"):
        gyro.autopsy(state)
    by_group = gyro.autopsy(state, model=[["0.weight", "2.weight"], ["1.weight"]])
    named = deepcopy(state)
    for group, names in zip(named["optimizer"]["param_groups"], (["0.weight", "2.weight"], ["1.weight"]), strict=True):
        group["param_names"] = names
    for name, layer in gyro.autopsy(named).layers.items():
        np.testing.assert_array_equal(by_group.layers[name].rotations, layer.rotations)
    with pytest.raises(ValueError, match=r"groups have \[2, 1\] parameters, and \[1, 2\] names"):
        gyro.autopsy(state, model=[["0.weight"], ["1.weight", "2.weight"]])


def test_a_dictionary_that_safetensors_has_sorted_is_not_taken_for_the_models_order(tmp_path):
    model = nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in ("query", "key", "value")})
    optimizer = AdamW(model.parameters())
    torch.stack([n * (p**4).sum() for n, p in enumerate(model.parameters(), start=1)]).sum().backward()
    optimizer.step()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    sorted_by_name = {"model": load_file(tmp_path / "model.safetensors"), "optimizer": optimizer.state_dict()}
    with pytest.raises(ValueError, match=r"several weights have the shape \(8, 8\)"):
        gyro.autopsy(sorted_by_name)
    in_order = gyro.autopsy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}).layers
    for name, layer in gyro.autopsy(sorted_by_name, model=model).layers.items():
        np.testing.assert_array_equal(layer.rotations, in_order[name].rotations)


def test_many_groups_without_names_are_told_apart_by_shape_or_refused_within_a_second():
    """One group per parameter, as learning rates by layer make them: 2ⁿ ways to fill n of them."""
    for widths, equal in ((range(8, 88), False), ([8] * 80, True)):
        layers = nn.ModuleList([nn.Linear(8, width) for width in widths])
        optimizer = AdamW([{"params": [p], "lr": 1e-3 / n} for n, p in enumerate(layers.parameters(), start=1)])
        torch.stack([(p**2).sum() for p in layers.parameters()]).sum().backward()
        optimizer.step()
        state = {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}
        start = time.perf_counter()
        if equal:
            with pytest.raises(ValueError, match="cannot be assigned to weights"):
                gyro.autopsy(state)
        else:
            autopsy = gyro.autopsy(state, lr=1e-3)
            assert [layer.rule.lr for layer in autopsy.layers.values()] == pytest.approx(
                [1e-3 / n for n in range(1, 160, 2)]
            )
        assert time.perf_counter() - start < 10


def test_a_tied_weight_counts_once_and_buffers_are_no_parameters():
    model = nn.ModuleDict(
        {
            "wte": nn.Embedding(11, 8),
            "conv": nn.Conv2d(1, 8, 3),
            "bn": nn.BatchNorm2d(8),
            "head": nn.Linear(8, 11, bias=False),
        }
    )
    model["head"].weight = model["wte"].weight
    optimizer = AdamW(model.parameters(), weight_decay=0.1)
    sum((p**2).sum() for p in model.parameters()).backward()
    optimizer.step()
    autopsy = gyro.autopsy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert list(autopsy.layers) == ["wte.weight", "conv.weight"]
    assert autopsy.layers["wte.weight"].is_embedding


def test_fused_queries_keys_and_values_are_three_layers_in_rows_and_in_hugging_faces_columns():
    for shape in ((24, 8), (8, 24)):
        weights = {"h.0.c_attn.weight": torch.randn(shape), "h.0.c_proj.weight": torch.randn(8, 8)}
        autopsy = gyro.autopsy({"model": weights}, optimizer="adamw", lr=1e-3, weight_decay=0.1)
        assert list(autopsy.layers)[:3] == [f"h.0.c_attn.weight[{part}]" for part in "qkv"]
        rows = weights["h.0.c_attn.weight"] if shape == (24, 8) else weights["h.0.c_attn.weight"].T
        keys = autopsy.layers["h.0.c_attn.weight[k]"]
        assert keys.norm == pytest.approx(float((rows[8:16] ** 2).sum(1).mean() ** 0.5), rel=1e-6)


def test_state_dicts_in_memory_are_left_as_they_are(tmp_path: Path):
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gyro.autopsy({"model": model.state_dict()})
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
