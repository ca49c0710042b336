"""Docstrings as the reference shows them: doctests as blocks of code, aligned lists as lists of arguments."""

import re

DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: {2,}|: )(\S.*)$")
CONTINUED = re.compile(r"^ {2,}(\S.*)$")
MIN_ENTRIES = 2


def readable(text: str, arguments: set[str]) -> str:
    """Return a docstring with fenced doctests, and with a heading above each aligned list."""
    paragraphs = re.split(r"\n\n+", text)
    listed = "\n\n".join(as_list(paragraph, arguments) for paragraph in paragraphs)
    return DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", listed)


def as_list(paragraph: str, arguments: set[str]) -> str:
    """Return a paragraph as a section if it is an aligned list, otherwise as it is."""
    entries: list[tuple[str, str]] = []
    for line in paragraph.splitlines():
        entry = ENTRY.match(line)
        continued = CONTINUED.match(line)
        if entry:
            entries.append((entry[1], entry[2]))
        elif continued and entries:
            name, words = entries[-1]
            entries[-1] = (name, f"{words} {continued[1]}")
        else:
            return paragraph
    rows = [(name, words) for names, words in entries for name in names.split(", ")]
    known = [name.lstrip("*") in arguments for name, _ in rows]
    is_one_argument = len(entries) == 1 and all(known) and "  " in paragraph
    if len(entries) < MIN_ENTRIES and not is_one_argument:
        return paragraph
    if ": " in paragraph.split("\n")[0] and not all(known):  # prose with a colon
        return paragraph
    return "\n".join(["Args:" if any(known) else "Attributes:", *(f"    {name}: {words}" for name, words in rows)])
