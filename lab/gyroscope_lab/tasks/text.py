"""Text tasks: characters or byte pairs as numbers, a fixed split, and random pieces for training."""

import sysconfig
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from gyroscope_lab.tasks.files import ROOT_VARIABLE, DataError, data_root, read_text

# Share of a text at its end that is held out, as in nanoGPT.
VALIDATION_SHARE = 0.1
# Characters that a text must have at least.
FEWEST = 1000
# Byte pairs of `bpe:<file>`, the characters among them. Tiny Shakespeare has 2.2 characters per byte pair then.
BYTE_PAIRS = 512
# Kinds of task names: the standard library, and files in characters or byte pairs.
TEXTS = ("stdlib", "text", "bpe")


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as numbers of characters or byte pairs, and the number of different ones."""

    ids: Tensor
    alphabet: int

    def batch(self, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random pieces of the text, and the character after each of theirs: two tensors (size, context)."""
        first = torch.randint(len(self.ids) - context, (size, 1), generator=generator)
        places = first + torch.arange(context)
        return self.ids[places], self.ids[places + 1]

    def split(self) -> tuple["Corpus", "Corpus"]:
        """Return the training part, and the last tenth for validation."""
        first = round((1 - VALIDATION_SHARE) * len(self.ids))
        return Corpus(self.ids[:first], self.alphabet), Corpus(self.ids[first:], self.alphabet)


def load_text(name: str, root: Path | None = None) -> Corpus:
    """Read `stdlib`, or `text:<file>` in characters, or `bpe:<file>` in byte pairs.

    The file is in UTF-8, compressed or not, here or in the folder of data sets.
    """
    if name == "stdlib":
        return standard_library()
    kind, _, file = name.partition(":")
    given = Path(file)
    in_root = data_root(root) / given
    path = given if given.is_file() else in_root
    if not path.is_file():
        raise DataError(
            f"no file {str(given)!r} here or in {str(in_root.parent)!r}: give a text in UTF-8 as {kind}:<file>, and "
            f"its folder by --data-root or {ROOT_VARIABLE}"
        )
    text = read_text(path)
    if len(text) < FEWEST:
        raise DataError(f"{str(path)!r} has {len(text)} characters: a text of at least {FEWEST:,} is needed")
    return byte_pairs(text) if kind == "bpe" else _numbered(text)


@lru_cache(maxsize=1)  # learning and encoding take 2 s, as long as many a training
def byte_pairs(text: str) -> Corpus:
    """Return a text in byte pairs (Sennrich et al. 2016) that are learnt from the whole of it, split as GPT-2 splits.

    A perplexity is one per byte pair then, as language models report it. Without the tokenizers package: DataError.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        raise DataError("bpe:<file> needs the tokenizers package: pip install tokenizers, or use text:<file>") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=BYTE_PAIRS, show_progress=False))
    return Corpus(torch.tensor(tokenizer.encode(text).ids), tokenizer.get_vocab_size())


@cache
def standard_library() -> Corpus:
    """Return the source of Python's standard library, modules in the order of their names: millions of characters.

    A few characters are common, and dozens are so rare that training meets them only once.

    >>> text = standard_library()
    >>> len(text.ids) > 1_000_000, text.alphabet > 96
    (True, True)
    """
    folder = sysconfig.get_path("stdlib")
    files = sorted(Path(folder).glob("*.py"))
    source = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    if not source:
        raise DataError(f"no source of the standard library in {folder!r}: install it as .py files, or use text:<file>")
    return _numbered(source)


def _numbered(text: str) -> Corpus:
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    present = np.bincount(codes) > 0
    numbers = np.cumsum(present) - 1  # of each code among those that occur
    return Corpus(torch.from_numpy(numbers[codes]), int(present.sum()))
