"""Files that are no checkpoints, or damaged, or hostile: one sentence each, and nothing is executed."""

import os
import pickle
import struct
import time
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

import gyroscope as gyro
from gyroscope.cli import main
from tests.checkpoint.training import network


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
    assert "this file was not written by torch.save or safetensors" in sentence(capsys, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("These are my notes on training.\n" * 100)
    assert "this file was not written by torch.save or safetensors" in sentence(capsys, tmp_path / "text.pt")
    (tmp_path / "random.pt").write_bytes(bytes(range(256)) * 64)
    assert "this file was not written by torch.save or safetensors" in sentence(capsys, tmp_path / "random.pt")


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


def test_text_with_a_flipped_bit_is_damage_of_a_file_that_is_named(tmp_path, capsys):
    folder = tmp_path / "dcp"
    folder.mkdir()
    # A pickled text whose first byte continues a character that never began.
    (folder / ".metadata").write_bytes(pickle.dumps("weight", protocol=2).replace(b"weight", b"\x94eight"))
    assert f"{str(folder)!r} is truncated or damaged" in sentence(capsys, folder)


def test_a_folder_without_a_checkpoint_says_what_it_lacks(tmp_path, capsys):
    assert "neither .metadata" in sentence(capsys, tmp_path)


def test_damaged_safetensors_are_refused(tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    save_file(network().state_dict(), file)
    whole = file.read_bytes()
    for damaged in (whole[:4], whole[:40], whole[:-8], struct.pack("<Q", 2**60) + whole[8:], b"\0" * 64):
        file.write_bytes(damaged)
        assert "damaged" in sentence(capsys, file)
    header = b'{"a":{"dtype":"F5","shape":[2,2],"data_offsets":[0,2]}}'
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    assert "F5" in sentence(capsys, file)
    for shape in (b"[-2,-2]", b"[1e400]", b"[[2]]", b"4"):
        header = b'{"a":{"dtype":"F32","shape":' + shape + b',"data_offsets":[0,16]}}'
        file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 16)
        assert "damaged" in sentence(capsys, file)
    for header in (b'{"a": nonsense', b"[" * 100_000, b"[1, 2]"):
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        assert "damaged" in sentence(capsys, file)


def test_shared_lists_are_read_once_and_not_once_per_path(tmp_path, capsys):
    """Forty lists, each with the next one twice, are 2⁴⁰ paths. A thousand times the next one, four deep, are 10¹²."""
    doubled: list = [1.0]
    for _ in range(40):
        doubled = [doubled, doubled]
    wide: list = [1.0]
    for _ in range(4):
        wide = [wide] * 1000
    torch.save({"a": doubled, "b": wide}, tmp_path / "shared.pt")
    start = time.perf_counter()
    assert "has no weights" in sentence(capsys, tmp_path / "shared.pt")
    torch.save({**saved(), "a": doubled, "b": wide}, tmp_path / "whole.pt")
    assert len(gyro.autopsy(tmp_path / "whole.pt").layers) == 6
    assert time.perf_counter() - start < 10


def test_a_tensor_that_repeats_a_few_bytes_without_end_is_refused(tmp_path, capsys):
    torch.save({"w": torch.ones(1).expand(10**6, 10**6)}, tmp_path / "expanded.pt")
    assert "repeats 4 bytes" in sentence(capsys, tmp_path / "expanded.pt")
    torch.save({"w": torch.ones(1, 8).expand(16, 8)}, tmp_path / "small.pt")
    assert gyro.autopsy(tmp_path / "small.pt").layers["w"].norm == pytest.approx(8**0.5)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, capsys):
    file = tmp_path / "bomb.pt"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb/data.pkl", "w") as part:
        for _ in range(200):
            part.write(bytes(2**20))
    start = time.process_time()
    assert "its parts are compressed" in sentence(capsys, file)
    assert time.process_time() - start < 0.2


ODD_STATES = {
    "a complex step": {"step": torch.tensor(1j)},
    "a complex moment": {"exp_avg": torch.ones(48, 32, dtype=torch.complex64)},
    "a moment that is text": {"exp_avg": "x"},
    "a moment without values": {"exp_avg": torch.empty(48, 32, device="meta")},
    "a sparse moment": {"exp_avg": torch.ones(48, 32).to_sparse()},
    "whole numbers for a moment": {"exp_avg_sq": torch.ones(48, 32, dtype=torch.int64)},
    "a step beyond all numbers": {"step": 10**400},
    "a list for a step": {"step": [1]},
}


@pytest.mark.parametrize("name", ODD_STATES)
def test_an_odd_state_is_an_answer_or_a_sentence(name, tmp_path, capsys):
    state = saved()
    state["optimizer"]["state"][0] |= ODD_STATES[name]
    torch.save(state, tmp_path / "odd.pt")
    code = main(["autopsy", str(tmp_path / "odd.pt")])
    assert code in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


ODD_FILES = {
    "weights without values": lambda: {"w": torch.empty(10**6, 10**6, device="meta")},
    "sparse weights": lambda: {"w": torch.ones(4, 4).to_sparse()},
    "a scheduler of words": lambda: {**saved(), "s": {"last_epoch": 3, "_last_lr": "ab", "base_lrs": {"a": 1}}},
    "a chain of numbers": lambda: {**saved(), "s": {"_schedulers": [1, None], "_last_lr": [0.1]}},
    "a log of words": lambda: {**saved(), "log_history": [{"learning_rate": "x", "step": "y"}], "global_step": 3},
    "a step count beyond all numbers": lambda: {**saved(), "iter_num": 10**400},
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_an_odd_file_is_an_answer_or_a_sentence(name, tmp_path, capsys):
    torch.save(ODD_FILES[name](), tmp_path / "odd.pt")
    code = main(["autopsy", str(tmp_path / "odd.pt")])
    assert code in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_lists_that_are_nested_50000_deep_are_a_sentence(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "deep.pt", "w") as archive:
        archive.writestr("deep/data.pkl", b"\x80\x02" + b"]" * 50_001 + b"a" * 50_000 + b".")
        archive.writestr("deep/version", b"3\n")
    assert "RecursionError" in sentence(capsys, tmp_path / "deep.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("storage_data", {"a": 1}),
        ("storage_data", {}),
        ("state_dict_metadata", {"model.0.weight": 3}),
        ("planner_data", {"model.0.weight": 7}),
        ("planner_data", {"model.0.weight": ()}),
    ],
)
def test_wrong_types_in_the_index_of_a_distributed_folder_are_an_answer_or_a_sentence(part, value, tmp_path, capsys):
    folder = tmp_path / "dcp"
    save(saved(), checkpoint_id=folder)
    index = pickle.loads((folder / ".metadata").read_bytes())
    current = getattr(index, part)
    setattr(index, part, {**current, **value} if value and part != "storage_data" else value)
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    assert main(["autopsy", str(folder)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_an_optimizer_that_keeps_another_state_than_the_file_has_is_refused_by_name(tmp_path, capsys):
    torch.save(saved(), tmp_path / "adamw.pt")
    text = sentence(capsys, tmp_path / "adamw.pt", "--optimizer", "sgd")
    assert "was not written with optimizer='sgd', which keeps momentum_buffer" in text
    assert "exp_avg" in text


def test_files_of_other_frameworks_are_called_no_checkpoints(tmp_path, capsys):
    np.savez(tmp_path / "weights.npz", w=np.ones((3, 3)))
    np.save(tmp_path / "weights.npy", np.ones((3, 3)))
    (tmp_path / "weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    (tmp_path / "weights.gguf").write_bytes(b"GGUF" + bytes(200))
    for file in tmp_path.iterdir():
        assert "this file was not written by torch.save or safetensors" in sentence(capsys, file)


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
    assert autopsy.findings[0].evidence == {"worst_share": 1 / 48}
    assert np.flatnonzero(np.isnan(autopsy.layers["0.weight"].rotations)).tolist() == [3]
    state["optimizer"]["state"][0]["exp_avg_sq"][:] = float("nan")
    assert gyro.autopsy(state).findings[0].evidence == {"worst_share": 1.0}


@pytest.mark.parametrize("count", [-3, float("nan"), torch.ones(3), None])
def test_adam_without_a_count_of_its_steps_gives_no_rotation(count):
    state = saved()
    for each in state["optimizer"]["state"].values():
        each["step"] = count
    autopsy = gyro.autopsy(state)
    assert all(np.isnan(layer.rotation) and layer.norm > 0 for layer in autopsy.layers.values())
    assert "cannot be reconstructed" in str(autopsy)


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
    with pytest.raises(ValueError, match=r"radius of '0.weight' has the shape \(7,\), the weight 48 vectors"):
        gyro.autopsy(state)


def test_a_schedule_of_another_library_under_torchs_names_is_not_followed():
    state = saved()
    state["scheduler"] = {"last_epoch": 5, "_last_lr": [1], "base_lrs": ["x"], "T_max": 0, "eta_min": 0}
    assert "which a schedule set for the next step" in " ".join(gyro.autopsy(state).notes)


def test_state_of_another_shape_is_refused_by_name(tmp_path):
    state = saved()
    state["optimizer"]["param_groups"][0]["param_names"] = list(state["model"])
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7, 3)
    with pytest.raises(ValueError, match=r"state of '0.weight' has the shape \(7, 3\), the weight \(48, 32\)"):
        gyro.autopsy(state)


def test_an_optimizer_of_more_parameters_than_weights_is_refused():
    state = saved()
    del state["model"]["0.bias"]
    with pytest.raises(ValueError, match="not from the same model"):
        gyro.autopsy(state)


@pytest.mark.parametrize("tree", [{}, {"a": 1}, {"model": {"b": torch.ones(3)}}, {"x": torch.ones(3, 3).long()}])
def test_a_dictionary_without_weights_is_refused(tree):
    with pytest.raises(ValueError, match="has no weights"):
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
    ],
)
def test_bad_settings_are_quoted(settings, message):
    with pytest.raises(ValueError, match=message):
        gyro.autopsy(saved(), **settings)


def test_no_checkpoint_at_all_is_a_sentence():
    with pytest.raises(ValueError, match="no checkpoint"):
        gyro.autopsy()
