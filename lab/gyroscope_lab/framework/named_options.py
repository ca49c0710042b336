"""Names with options after a colon, of networks and optimizers: `gpt:layers=6,width=384`."""

import json

Options = dict[str, int | float | bool | str]


def split_options(text: str) -> tuple[str, Options]:
    """Return the name and the options: numbers, true and false, or words.

    >>> split_options("k-adam:k=3,strategy=naive,coupled=true")
    ('k-adam', {'k': 3, 'strategy': 'naive', 'coupled': True})
    """
    name, _, listed = text.partition(":")
    options: Options = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(f"{text!r}: write options as {name}:option=value,…, because {part!r} is not of that form")
        options[key] = _value(value)
    return name, options


def _value(text: str) -> int | float | bool | str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
