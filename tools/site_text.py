"""The site as plain text for language models: llms.txt lists the pages, llms-full.txt contains them."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

REFERENCE = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
MAX_SUMMARY = 200
FIRST_SECTION = "Start"  # pages of the navigation that are in no section


def write(site: Path, stage: Path, name: str, summary: str, pages: list[tuple[str, str, str]]) -> None:
    """Write both files from the pages of a navigation: section, title and file of each."""
    docstring_of = package_docstrings("gyroscope")
    listed = [f"# {name}", "", f"> {summary}"]
    full = [f"# {name}", "", summary]
    last = ""
    for section, title, file in pages:
        text = with_docstrings((stage / file).read_text(encoding="utf-8"), docstring_of)
        if (section or FIRST_SECTION) != last:
            listed += ["", f"## {section or FIRST_SECTION}"]
            last = section or FIRST_SECTION
        listed.append(f"- [{title}]({address(file)}): {first_sentence(text)}")
        full += ["", f"<!-- {file} -->", text.strip()]
    (site / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n".join(full) + "\n", encoding="utf-8")


def address(file: str) -> str:
    """Return the page of a file. That of a README is the index of its folder."""
    return str(Path(file.replace("README.md", "index.md")).with_suffix(".html"))


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph."""
    paragraphs = [part.strip() for part in text.split("\n\n")]
    prose = next((part for part in paragraphs if part and not part.startswith(("#", "!", "<", "```", "|"))), "")
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    sentence = re.split(r"(?<=[.!?]) ", line, maxsplit=1)[0]
    return sentence if len(sentence) <= MAX_SUMMARY else sentence[:MAX_SUMMARY] + "…"


def with_docstrings(text: str, docstring_of: Callable[[str], str]) -> str:
    """Return a page of the reference with the docstrings of the names in it."""
    return REFERENCE.sub(lambda match: f"### {match[1]}\n\n{docstring_of(match[1])}\n", text)


def package_docstrings(name: str) -> Callable[[str], str]:
    """Return a function from a dotted name of a package to its docstring. The package is read, not imported."""
    griffe = import_module("griffe")  # comes with mkdocstrings, so only where the site is built
    package = griffe.load(name, search_paths=[str(Path(__file__).parent.parent)])

    def docstring_of(dotted: str) -> str:
        docstring = package[dotted.removeprefix(f"{name}.")].docstring
        return docstring.value if docstring else ""

    return docstring_of
