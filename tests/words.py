"""Prose of pages and docstrings: its paragraphs, its sentences, and whether a docstring begins with a verb."""

import ast
import re
import statistics
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Words that are not verbs, by themselves or by their ending, and verbs with such an ending.
NO_VERB = re.compile(
    r"(A|Accuracy|All|An|Angle|As|At|Base|Both|By|Course|Cross|Each|Effective|Every|Factor|First|For|From|How|If|In|Its"
    r"|Largest|Last|Layer|Least|Linear|Mean|Median|Most|No|Noise|Norm|Null|Of|On|Once|One|Over|Path|Peak|Point|Root"
    r"|Sixteen|Slope|So|Spearman|Standard|Tangent|The|Theory|This|Those|Three|To|Two|Value|What|When|Where|Whether|Which"
    r"|Who|Whole|Whose|Why|With|\w*(ance|ed|ence|ing|ity|ness|[^s]s|tion))"
)
VERBS_ALL_THE_SAME = {"Advance", "Balance", "Bring", "Embed", "Feed", "Partition", "Reference", "Seed", "Sequence"}
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
INLINE_CODE = re.compile(r"``[^`]+``|`[^`\n]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
MIN_WORDS = 3  # of a sentence. Headings and fragments of lists are shorter.


class Reading(NamedTuple):
    """What was counted in some text."""

    words: int
    semicolons: float  # per 1,000 words
    median_sentence: float  # words
    long_sentences: float  # share of sentences with more than 30 words


def read(texts: Iterable[str]) -> Reading:
    """Count words, semicolons and words per sentence of prose."""
    words = 0
    semicolons = 0
    lengths = []
    for text in texts:
        for sentence in SENTENCE_END.split(" ".join(text.split())):
            length = len(WORD.findall(sentence))
            words += length
            semicolons += sentence.count(";")
            if length >= MIN_WORDS:
                lengths.append(length)
    long = sum(length > 30 for length in lengths) / max(len(lengths), 1)
    return Reading(words, 1000 * semicolons / max(words, 1), statistics.median(lengths or [0]), long)


def paragraphs(page: str) -> Iterator[str]:
    """Yield the prose of a page: without code, tables, headings, directives and indented blocks."""
    text = LINK.sub(r"\1", INLINE_CODE.sub("code", FORMULA.sub("x", FENCE.sub("", page))))
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
        block = re.split(r"^\s*>>>", block, maxsplit=1, flags=re.MULTILINE)[0]
        lines = [line for line in block.splitlines() if not line.lstrip().startswith(("|", "#", "..", "<", ":"))]
        is_prose = bool(lines) and not lines[0].startswith("    ")
        if is_prose:
            yield re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", " ".join(lines))


def is_function(node: ast.AST) -> bool:
    """Return whether a docstring is of a function that reads as a verb, which a property does not."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def begins_with_verb(text: str) -> bool:
    """Return whether a docstring begins with a verb: a capitalised word that is no known other part of speech."""
    first = re.split(r"\W", text, maxsplit=1)[0]
    if not re.fullmatch(r"[A-Z][a-z]+", first):
        return False
    return first in VERBS_ALL_THE_SAME or not NO_VERB.fullmatch(first)
