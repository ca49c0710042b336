"""Folders of the Hugging Face Trainer: weights, optimizer.pt, scheduler.pt, trainer_state.json and config.json."""

import json
from pathlib import Path
from typing import Any

from gyroscope.checkpoint.files.reading import is_safetensors, read_file

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def read_trainer_folder(path: Path) -> tuple[dict[str, Any], bool]:
    """Read the tree in a folder, and return whether its weights are in the model's order."""
    files = _weight_files(path)
    if not files:
        raise ValueError(
            f"{str(path)!r} is no checkpoint: it has neither .metadata of torch.distributed.checkpoint nor "
            "model.safetensors or pytorch_model.bin of the Trainer"
        )
    weights = {key: value for file in files for key, value in _dictionary(file).items()}
    tree: dict[str, Any] = {"model": weights}
    for key, name in (("optimizer", "optimizer.pt"), ("scheduler", "scheduler.pt")):
        if (path / name).is_file():
            tree[key] = read_file(path / name)
    if (path / "trainer_state.json").is_file():
        tree |= read_json(path / "trainer_state.json")
    # safetensors sorts names, and torch.save keeps the order of a state dict.
    return tree, not any(map(is_safetensors, files))


def _weight_files(path: Path) -> list[Path]:
    for name in WEIGHTS:
        if (path / name).is_file():
            return [path / name]
        # A large model is in several files, with an index of which tensor is where.
        index = path / f"{name}.index.json"
        if index.is_file():
            places = read_json(index).get("weight_map", {}).values()
            return [path / Path(str(file)).name for file in dict.fromkeys(places)]
    return []


def _dictionary(file: Path) -> dict[str, Any]:
    tree = read_file(file)
    return tree if isinstance(tree, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """Read the dictionary in a JSON file. Return an empty one for other values."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {str(path)!r}: {error}") from None
    return value if isinstance(value, dict) else {}
