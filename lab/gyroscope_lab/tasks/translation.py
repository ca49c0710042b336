"""Translation tasks, in characters: German number words into English ones, or two parallel text files.

Number words are made by rule and need no data set. German has the units before the tens, so the order changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gyroscope_lab.networks.transformer import PADDING
from gyroscope_lab.tasks.files import DataError, data_root, find, read_text

# Token that ends every sentence and begins a target, as in fairseq. Characters have the numbers after it.
END = 1
# Numbers below 10,000 with the same split in every run. With so few, a small network translates unseen ones after some
# hundred steps. With a million numbers it needs five times as many steps.
NUMBERS = 10_000
HELD_OUT = 500
SPLIT_SEED = 0

# Entry 0 is for round numbers.
GERMAN_ONES = [
    "", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
GERMAN_TENS = ["", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
ENGLISH_ONES = [
    "", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences and their translations, and the number of each character."""

    sources: Sequence[str]
    targets: Sequence[str]
    numbers: dict[str, int]

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return sources and targets of these pairs: two tensors (pairs, length), filled up by PADDING."""
        sources = [self._ids(self.sources[i]) for i in chosen]
        targets = [[END, *self._ids(self.targets[i])] for i in chosen]
        return _padded(sources), _padded(targets)

    def _ids(self, sentence: str) -> list[int]:
        return [*(self.numbers[character] for character in sentence), END]


@final
@dataclass(frozen=True, eq=False)
class TranslationTask:
    """Sentences for training, and held-out sentences."""

    train: Sentences
    validation: Sentences

    @property
    def vocabulary(self) -> int:
        """Number of different characters, plus padding and end."""
        return len(self.train.numbers) + 2

    @property
    def longest(self) -> int:
        """Number of characters of the longest sentence, with its end."""
        parts = (self.train, self.validation)
        return 1 + max(len(sentence) for part in parts for sentence in (*part.sources, *part.targets))


def load_translation(name: str, root: Path | None = None) -> TranslationTask:
    """Load `translation` (number words), or `translation:<folder>` with train.de, train.en, valid.de and valid.en.

    The files have one sentence per line, in UTF-8, compressed or not, as IWSLT'14 is usually prepared.
    """
    if name == "translation":
        return number_words()
    given = Path(name.removeprefix("translation:"))
    folder = given if given.is_dir() else data_root(root) / given
    return _task(_read_pair(folder, "train"), _read_pair(folder, "valid"))


@cache
def number_words() -> TranslationTask:
    """Return German number words with their English translation, for numbers below 10,000.

    >>> task = number_words()
    >>> len(task.train), len(task.validation), task.longest
    (9500, 500, 47)
    """
    drawn = torch.randperm(NUMBERS, generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    held_out = drawn[:HELD_OUT]
    learnt = drawn[HELD_OUT:]
    return _task(_spelt(learnt), _spelt(held_out))


def german(number: int) -> str:
    """Return the German word for a number from 0 to 999,999.

    >>> german(243), german(101_001)
    ('zweihundertdreiundvierzig', 'einhunderteintausendeins')
    """
    if number == 0:
        return "null"
    # One is "ein" before another word, and "eins" at the end of a word.
    return _german(number) + ("s" if number % 100 == 1 else "")


def _german(number: int) -> str:
    """Return a number in its form before another word. Empty for 0."""
    if number >= 1000:
        return _german(number // 1000) + "tausend" + _german(number % 1000)
    if number >= 100:
        return GERMAN_ONES[number // 100] + "hundert" + _german(number % 100)
    if number < 20:
        return GERMAN_ONES[number]
    ones = GERMAN_ONES[number % 10]
    return (f"{ones}und" if ones else "") + GERMAN_TENS[number // 10]


def english(number: int) -> str:
    """Return the English words for a number from 0 to 999,999.

    >>> english(243), english(101_001)
    ('two hundred and forty-three', 'one hundred and one thousand and one')
    """
    if number == 0:
        return "zero"
    words = []
    if number >= 1000:
        words += [english(number // 1000), "thousand"]
    if number % 1000 >= 100:
        words += [ENGLISH_ONES[number % 1000 // 100], "hundred"]
    below = number % 100
    if words and below:
        words.append("and")
    if below:
        words.append(_english_below_hundred(below))
    return " ".join(words)


def _english_below_hundred(number: int) -> str:
    if number < 20:
        return ENGLISH_ONES[number]
    ones = ENGLISH_ONES[number % 10]
    return ENGLISH_TENS[number // 10] + (f"-{ones}" if ones else "")


Pair = tuple[list[str], list[str]]


def _spelt(numbers: list[int]) -> Pair:
    return [german(number) for number in numbers], [english(number) for number in numbers]


def _read_pair(folder: Path, part: str) -> Pair:
    remedy = "put train.de, train.en, valid.de and valid.en there, one sentence per line"
    source, target = (find(folder, (), f"{part}.{language}", remedy) for language in ("de", "en"))
    sources = _lines(source)
    targets = _lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{str(source)!r} has {len(sources):,} lines and {str(target)!r} {len(targets):,}: each line must "
            "translate the line of the same number, so fetch both again"
        )
    return sources, targets


def _lines(path: Path) -> list[str]:
    # Not splitlines(), which also splits at Unicode characters that occur inside sentences.
    return read_text(path).removesuffix("\n").split("\n")


def _task(train: Pair, validation: Pair) -> TranslationTask:
    alphabet = sorted(
        {character for part in (train, validation) for side in part for line in side for character in line}
    )
    numbers = {character: number for number, character in enumerate(alphabet, END + 1)}
    return TranslationTask(Sentences(*train, numbers), Sentences(*validation, numbers))


def _padded(sentences: list[list[int]]) -> Tensor:
    rows = [torch.tensor(sentence) for sentence in sentences]
    return pad_sequence(rows, batch_first=True, padding_value=PADDING)
