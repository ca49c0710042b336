"""Measure how the project's English reads, beside other libraries: `python -m tools.words [NAME=FOLDER …]`.

    python -m tools.words optax=/tmp/optax coverage=/tmp/coverage

For docstrings of functions it counts how many begin with a verb. For every text it counts words, semicolons per 1,000
words, and words per sentence. Code, tables, links and formulas are left out. A folder is read for its Python files and,
if it has any, its pages (.md, .rst). Nothing is imported.
"""

import ast
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
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
SKIPPED_FOLDERS = {"tests", "test", "testing", "build", "node_modules", "assets", "__pycache__"}


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


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the modules of a package, without its tests."""
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).parts
        if (
            not SKIPPED_FOLDERS & set(inner[:-1])
            and not path.stem.endswith("_test")
            and not path.stem.startswith("test_")
        ):
            yield path


def docstrings(folder: Path) -> Iterator[tuple[ast.AST, str]]:
    """Yield everything in a package that has a docstring, with it."""
    for path in python_files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield node, text


def is_function(node: ast.AST) -> bool:
    """Return whether a docstring is of a function that reads as a verb, which a property does not."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def begins_with_verb(text: str) -> bool:
    """Return whether a docstring begins with a verb: a capitalised word that is not known to be another part of speech.

    >>> [begins_with_verb(text) for text in ("Return a sum.", "The sum.", "Rotation of a layer.", "`x` of a layer.")]
    [True, False, False, False]
    """
    first = re.split(r"\W", text, maxsplit=1)[0]
    if not re.fullmatch(r"[A-Z][a-z]+", first):
        return False
    return first in VERBS_ALL_THE_SAME or not NO_VERB.fullmatch(first)


def verb_share(folder: Path) -> tuple[float, int]:
    """Return the share of function docstrings that begin with a verb, and their number. Properties are left out."""
    begins = [begins_with_verb(text) for node, text in docstrings(folder) if is_function(node)]
    return sum(begins) / max(len(begins), 1), len(begins)


def pages(folder: Path) -> Iterator[str]:
    """Yield the prose of the pages in a folder."""
    for path in sorted([*folder.rglob("*.md"), *folder.rglob("*.rst")]):
        if not SKIPPED_FOLDERS & set(path.relative_to(folder).parts[:-1]):
            yield from paragraphs(path.read_text(encoding="utf-8", errors="replace"))


def help_texts() -> Iterator[str]:
    """Yield the help of every command and option."""
    import typer

    from gyroscope.cli import app

    waiting = [typer.main.get_command(app)]
    while waiting:
        command = waiting.pop()
        yield command.help or ""
        yield from (getattr(option, "help", None) or "" for option in command.params)
        waiting += getattr(command, "commands", {}).values()


def finding_texts() -> Iterator[str]:
    """Yield the sentences of findings, summaries and remedies: the strings in `gyroscope/advice` that are prose."""
    for path in python_files(ROOT / "gyroscope" / "advice"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) not in described:
                yield from sentence_of(node)


def sentence_of(node: ast.AST) -> Iterator[str]:
    """Yield a string of some words, its placeholders as one word each."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    else:
        return
    if len(text.split()) > MIN_WORDS and "\n" not in text:
        yield text


def row(name: str, reading: Reading) -> str:
    """Return a line of the table."""
    return (
        f"| {name} | {reading.words:,} | {reading.semicolons:.1f} | {reading.median_sentence:.0f} | "
        f"{reading.long_sentences:.0%} |"
    )


def own_rows() -> Iterator[str]:
    """Yield the lines of this project."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield row("gyroscope README", read(paragraphs(readme)))
    theory = {ROOT / "docs" / "theory.md"}
    site = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in theory]
    yield row("gyroscope site", read(part for path in site for part in paragraphs(path.read_text(encoding="utf-8"))))
    yield row("gyroscope docs/theory.md", read(paragraphs(theory.pop().read_text(encoding="utf-8"))))
    yield row("gyroscope help", read(help_texts()))
    yield row("gyroscope findings", read(finding_texts()))
    for package in (ROOT / "gyroscope", ROOT / "lab" / "gyroscope_lab"):
        prose = (part for _, text in docstrings(package) for part in paragraphs(text))
        yield row(f"{package.name} docstrings", read(prose))


def other_rows(name: str, folder: Path) -> Iterator[str]:
    """Yield the lines of another library."""
    text = list(pages(folder))
    if text:
        yield row(f"{name} pages", read(text))
    yield row(f"{name} docstrings", read(part for _, doc in docstrings(folder) for part in paragraphs(doc)))


def main() -> None:
    """Print both tables."""
    others = {name: Path(folder) for name, _, folder in (argument.partition("=") for argument in sys.argv[1:])}
    lines = ["| text | words | semicolons per 1,000 words | median words of a sentence | over 30 words |"]
    lines += ["|---|---|---|---|---|", *own_rows()]
    for name, folder in others.items():
        lines += other_rows(name, folder)
    lines += ["", "| function docstrings of | begin with a verb | number |", "|---|---|---|"]
    packages = {"gyroscope": ROOT / "gyroscope", "gyroscope_lab": ROOT / "lab" / "gyroscope_lab", **others}
    for name, folder in packages.items():
        share, number = verb_share(folder)
        lines.append(f"| {name} | {share:.0%} | {number:,} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
