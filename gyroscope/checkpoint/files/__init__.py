"""Files to parameters with their optimizer state.

This file recognises checkpoints by name and content. It does not import torch, so the command line starts fast.
"""

from pathlib import Path

SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar"}
# Files that make a folder a checkpoint: torch.distributed.checkpoint's index, or the Trainer's weights.
MARKS = (".metadata", "model.safetensors", "pytorch_model.bin")


def is_checkpoint(path: Path) -> bool:
    """Return whether a file or folder looks like a checkpoint and not like a run.

    >>> is_checkpoint(Path("runs/first")), is_checkpoint(Path("out/ckpt.pt"))
    (False, True)
    """
    if path.is_dir():
        return any((path / name).is_file() or (path / f"{name}.index.json").is_file() for name in MARKS)
    return path.suffix in SUFFIXES
