"""Text that is on every machine: the source of Python's own standard library, character by character."""

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as numbers of characters, and how many different characters there are."""

    ids: Tensor
    alphabet: int

    def batch(self, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random pieces of the text, and the character that follows each of theirs: two tensors (size, context)."""
        first = torch.randint(len(self.ids) - context, (size, 1), generator=generator)
        places = first + torch.arange(context)
        return self.ids[places], self.ids[places + 1]


@cache
def standard_library() -> Corpus:
    """The modules of the standard library, in the order of their names: some millions of characters.

    A few characters are common, and dozens are so rare that training has them once and not again.

    >>> text = standard_library()
    >>> len(text.ids) > 1_000_000, text.alphabet > 96
    (True, True)
    """
    folder = sysconfig.get_path("stdlib")
    files = sorted(Path(folder).glob("*.py"))
    source = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    if not source:
        raise ValueError(f"no source of the standard library in {folder!r}: install it as .py files")
    codes = np.frombuffer(source.encode("utf-32-le"), dtype=np.uint32)
    present = np.bincount(codes) > 0
    numbers = np.cumsum(present) - 1  # of each code among those that occur
    return Corpus(torch.from_numpy(numbers[codes]), int(present.sum()))
