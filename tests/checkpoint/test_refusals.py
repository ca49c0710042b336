"""Files that are no checkpoints, or damaged, or hostile: one sentence each, and nothing is executed."""

import os
import pickle
import struct
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

import gyroscope as gyro
from gyroscope.cli import main
from tests.checkpoint.training import network, write_safetensors


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def saved(model=None, make=torch.optim.AdamW):
    model = network() if model is None else model
    optimizer = make(model.parameters(), weight_decay=0.1)
    sum((p**2).sum() for p in model.parameters()).backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def sentence(capsys, *arguments) -> str:
    """What the command line says of bad input: one line, and exit code 2."""
    assert main(["autopsy", *map(str, arguments)]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "Traceback" not in text
    return text


def test_a_missing_file_an_empty_file_and_a_text_are_named(tmp_path, capsys):
    assert "there is no" in sentence(capsys, tmp_path / "none.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    assert "is no checkpoint" in sentence(capsys, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("These are my notes on training.\n" * 100)
    assert "is no checkpoint" in sentence(capsys, tmp_path / "text.pt")
    (tmp_path / "random.pt").write_bytes(bytes(range(256)) * 64)
    assert "is no checkpoint" in sentence(capsys, tmp_path / "random.pt")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_file_is_called_so(share, tmp_path, capsys):
    file = tmp_path / "ckpt.pt"
    torch.save(saved(), file)
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert "truncated or damaged" in sentence(capsys, file)


def test_pickled_code_is_named_and_not_executed(tmp_path, capsys):
    trap = tmp_path / "executed"
    torch.save({**saved(), "extra": Hostile(trap)}, tmp_path / "new.pt")
    assert "pickled code" in sentence(capsys, tmp_path / "new.pt")
    torch.save({**saved(), "extra": Hostile(trap)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "pickled code" in sentence(capsys, tmp_path / "old.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Hostile(trap)))
    sentence(capsys, tmp_path / "plain.pkl")
    assert not trap.exists()


def test_a_whole_pickled_model_is_refused_with_a_remedy(tmp_path, capsys):
    torch.save(nn.Linear(4, 4), tmp_path / "model.pt")
    assert "model.state_dict()" in sentence(capsys, tmp_path / "model.pt")


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_folder_with_code_with_parts_missing_or_truncated_is_refused(tmp_path, capsys):
    folder = tmp_path / "dcp"
    save(saved(), checkpoint_id=folder)
    data = next(folder.glob("*.distcp"))
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    assert "truncated or damaged" in sentence(capsys, folder)
    data.unlink()
    assert "cannot read" in sentence(capsys, folder)
    trap = tmp_path / "executed"
    (folder / ".metadata").write_bytes(pickle.dumps(Hostile(trap)))
    assert "pickled code" in sentence(capsys, folder)
    (folder / ".metadata").write_bytes(b"\x80\x04 nothing")
    assert "truncated or damaged" in sentence(capsys, folder)
    assert not trap.exists()


def test_a_folder_without_a_checkpoint_says_what_it_lacks(tmp_path, capsys):
    assert "neither .metadata" in sentence(capsys, tmp_path)


def test_damaged_safetensors_are_refused(tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    write_safetensors(file, network().state_dict())
    whole = file.read_bytes()
    for damaged in (whole[:4], whole[:40], whole[:-8], struct.pack("<Q", 2**60) + whole[8:], b"\0" * 64):
        file.write_bytes(damaged)
        assert "damaged" in sentence(capsys, file)
    header = b'{"a":{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]}}'
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    assert "F4" in sentence(capsys, file)
    for shape in (b"[-2,-2]", b"[1e400]", b"[[2]]", b"4"):
        header = b'{"a":{"dtype":"F32","shape":' + shape + b',"data_offsets":[0,16]}}'
        file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 16)
        assert "damaged" in sentence(capsys, file)
    for header in (b'{"a": nonsense', b"[" * 100_000, b"[1, 2]"):
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        assert "damaged" in sentence(capsys, file)


def test_files_of_other_frameworks_are_called_no_checkpoints(tmp_path, capsys):
    np.savez(tmp_path / "weights.npz", w=np.ones((3, 3)))
    np.save(tmp_path / "weights.npy", np.ones((3, 3)))
    (tmp_path / "weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    (tmp_path / "weights.gguf").write_bytes(b"GGUF" + bytes(200))
    for file in tmp_path.iterdir():
        assert "is no checkpoint that torch.save or safetensors wrote" in sentence(capsys, file)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", "high"),
        ("lr", float("nan")),
        ("weight_decay", -1.0),
        ("betas", "abc"),
        ("betas", (0.9,)),
        ("betas", (0.9, 1.5)),
        ("betas", [(0.9, 0.99), (0.9, None)]),
    ],
)
def test_a_setting_that_is_none_is_quoted(option, value, tmp_path, capsys):
    state = saved()
    state["optimizer"]["param_groups"][0][option] = value
    torch.save(state, tmp_path / "odd.pt")
    text = sentence(capsys, tmp_path / "odd.pt")
    assert f"the optimizer's {option} " in text
    assert repr(value) in text


def test_state_that_is_not_finite_is_a_finding_and_gives_no_number():
    state = saved()
    state["optimizer"]["state"][0]["exp_avg"][3, 5] = float("nan")
    autopsy = gyro.autopsy(state)
    assert autopsy.findings[0].kind == "diverged"
    assert autopsy.findings[0].evidence == {"vectors": 1.0}
    assert np.flatnonzero(np.isnan(autopsy.layers["0.weight"].rotations)).tolist() == [3]
    state["optimizer"]["state"][0]["exp_avg_sq"][:] = float("nan")
    assert gyro.autopsy(state).findings[0].evidence == {"vectors": 48.0}


@pytest.mark.parametrize("count", [-3, float("nan"), torch.ones(3), None])
def test_adam_without_a_count_of_its_steps_gives_no_rotation(count):
    state = saved()
    for each in state["optimizer"]["state"].values():
        each["step"] = count
    autopsy = gyro.autopsy(state)
    assert all(np.isnan(layer.rotation) and layer.norm > 0 for layer in autopsy.layers.values())
    assert "cannot be taken back" in str(autopsy)


@pytest.mark.parametrize("change", [{"params": 7}, {"params": [[0], [1]]}])
def test_groups_that_are_none_are_no_optimizer(change):
    state = saved()
    state["optimizer"]["param_groups"][0] |= change
    assert "no optimizer state" in str(gyro.autopsy(state))


def test_a_second_moment_or_a_radius_of_another_shape_is_refused_by_name():
    state = saved()
    state["optimizer"]["state"][0]["exp_avg_sq"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"exp_avg_sq of '0.weight' has the shape \(3, 3\), the weight \(48, 32\)"):
        gyro.autopsy(state)
    state = saved(make=partial(gyro.optim.RotationalAdamW, lr=1e-2))
    state["optimizer"]["state"][0]["radius"] = torch.ones(7)
    with pytest.raises(ValueError, match=r"radius of '0.weight' has the shape \(7,\), its vectors are 48"):
        gyro.autopsy(state)


def test_a_schedule_of_another_library_under_torchs_names_is_not_followed():
    state = saved()
    state["scheduler"] = {"last_epoch": 5, "_last_lr": [1], "base_lrs": ["x"], "T_max": 0, "eta_min": 0}
    assert "which a schedule has set for the next step" in " ".join(gyro.autopsy(state).notes)


def test_state_of_another_shape_is_refused_by_name(tmp_path):
    state = saved()
    state["optimizer"]["param_groups"][0]["param_names"] = list(state["model"])
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7, 3)
    with pytest.raises(ValueError, match=r"state of '0.weight' has the shape \(7, 3\), the weight \(48, 32\)"):
        gyro.autopsy(state)


def test_an_optimizer_of_more_parameters_than_weights_is_refused():
    state = saved()
    del state["model"]["0.bias"]
    with pytest.raises(ValueError, match="not of one model"):
        gyro.autopsy(state)


@pytest.mark.parametrize("tree", [{}, {"a": 1}, {"model": {"b": torch.ones(3)}}, {"x": torch.ones(3, 3).long()}])
def test_a_dictionary_without_weights_is_refused(tree):
    with pytest.raises(ValueError, match="holds no weights"):
        gyro.autopsy(tree)


def test_two_sets_of_weights_under_unknown_names_are_refused_and_known_names_win():
    weights = {"w": torch.ones(4, 4)}
    with pytest.raises(ValueError, match=r"several sets of weights \(student, teacher\)"):
        gyro.autopsy({"student": weights, "teacher": dict(weights)})
    assert list(gyro.autopsy({"ema": {"w": torch.zeros(2, 2)}, "model": weights}).layers) == ["w"]


def test_an_adam_without_its_kind_of_decay_is_asked_for_by_name(capsys, tmp_path):
    state = saved()
    del state["optimizer"]["param_groups"][0]["decoupled_weight_decay"]
    torch.save(state, tmp_path / "old.pt")
    assert "--optimizer adamw" in sentence(capsys, tmp_path / "old.pt")
    assert gyro.autopsy(state, optimizer="adamw").layers["0.weight"].rule.name == "AdamW"
    assert gyro.autopsy(state, optimizer="adam").layers["0.weight"].rule.name == "AdamL2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adagrad"}, "optimizer='adagrad' is unknown"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"betas": (0.9,)}, "betas="),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_bad_settings_are_quoted(settings, message):
    with pytest.raises(ValueError, match=message):
        gyro.autopsy(saved(), **settings)


def test_no_checkpoint_at_all_is_a_sentence():
    with pytest.raises(ValueError, match="no checkpoint"):
        gyro.autopsy()
