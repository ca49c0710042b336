"""An extension of griffe that makes docstrings readable in the reference (see `tools/docstring_text.py`)."""

from collections.abc import Iterator
from typing import Any

import griffe

from tools.docstring_text import readable


class ReadableDocstrings(griffe.Extension):
    """Rewrites the docstrings of a package after it was loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite every docstring of a package."""
        for documented in walk(pkg):
            if documented.docstring is not None:
                documented.docstring.value = readable(documented.docstring.value, arguments(documented))


def walk(documented: griffe.Object) -> Iterator[griffe.Object]:
    """Yield an object and everything that is defined in it."""
    yield documented
    for member in documented.members.values():
        if isinstance(member, griffe.Object):
            yield from walk(member)


def arguments(documented: griffe.Object) -> set[str]:
    """Return the names of the arguments of a function or a class."""
    if isinstance(documented, griffe.Function | griffe.Class):
        return {parameter.name for parameter in documented.parameters}
    return set()
