"""Parameter groups without names, found again in the model's order by the shapes of their members.

Every group is a sequence of shapes. The model's weights are an interleaving of all groups and of weights without a
group. Finding it is hard in general (the shuffle problem). Groups with the same remaining shapes are interchangeable,
which keeps the usual cases small: one group per parameter or layer, decay and no decay. Large cases are refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]
# A place in a group: number of the group, number of the member.
Place = tuple[int, int]
# What is left of each unfinished group, as numbers of suffixes in ascending order.
Left = tuple[int, ...]
# For every partial interleaving of the weights so far, the choices for the next weight and what each leaves.
Level = Mapping[Left, Mapping[int, Left]]
# The choice to leave a weight out of all groups, and the suffix of a finished group. Other suffixes count from 0.
NONE = -1
# Entries of all partial interleavings: a few seconds.
MAX_WORK = 3_000_000


class AmbiguousGroupsError(Exception):
    """Several interleavings fit, and they differ in weights that matter."""


class Suffix(NamedTuple):
    """The rest of a group.

    head     its first shape
    tail     number of the suffix after that
    length   of the rest
    matters  whether a tensor of two or more dimensions is in it, or one of unknown shape
    """

    head: Shape | None
    tail: int
    length: int
    matters: bool


def interleave(shapes: Sequence[Shape], groups: Sequence[Sequence[Shape | None]]) -> list[Place | None] | None:
    """Return the place of each weight in a group, None for a weight in no group. Return None if nothing fits.

    Raises `AmbiguousGroupsError` if interleavings differ in tensors of two or more dimensions, or are too many. A shape
    of None fits every weight.

    >>> interleave([(8, 4), (8,), (2, 8), (2,)], [[(8, 4), (2, 8)], [(8,), (2,)]])
    [(0, 0), (1, 0), (0, 1), (1, 1)]
    """
    suffixes, cursors = _suffixes(groups)
    start = tuple(sorted(number for number in cursors if number != NONE))
    levels = _complete(_levels(shapes, groups, suffixes, start))
    if start not in levels[0]:
        return None
    for level in levels[:-1]:
        _check_same_answer(level, suffixes)
    places: list[Place | None] = []
    state = start
    for level in levels[:-1]:
        choice, state = next(iter(level[state].items()))
        if choice == NONE:
            places.append(None)
            continue
        group = cursors.index(choice)
        places.append((group, len(groups[group]) - suffixes[choice].length))
        cursors[group] = suffixes[choice].tail
    return places


def _suffixes(groups: Sequence[Sequence[Shape | None]]) -> tuple[list[Suffix], list[int]]:
    """Return all different suffixes of the groups, and for each group the number of the whole of it."""
    numbers: dict[Suffix, int] = {}
    wholes = []
    for group in groups:
        tail = NONE
        matters = False
        for length, head in enumerate(reversed(group), start=1):
            matters = matters or head is None or len(head) >= 2
            tail = numbers.setdefault(Suffix(head, tail, length, matters), len(numbers))
        wholes.append(tail)
    return list(numbers), wholes


def _levels(
    shapes: Sequence[Shape], groups: Sequence[Sequence[Shape | None]], suffixes: Sequence[Suffix], start: Left
) -> list[Level]:
    """Return all ways to go through the weights, without looking ahead."""
    never_left_out = _never_left_out(shapes, groups)
    states = {start}
    levels: list[Level] = []
    work = 0
    for done, shape in enumerate(shapes):
        level: dict[Left, dict[int, Left]] = {}
        for state in states:
            choices = {}
            if shape not in never_left_out and sum(suffixes[each].length for each in state) < len(shapes) - done:
                choices[NONE] = state
            for number in dict.fromkeys(state):
                if suffixes[number].head in (None, shape):
                    choices[number] = _after(state, number, suffixes[number].tail)
            level[state] = choices
            work += (1 + len(state)) * (1 + len(choices))
            if work > MAX_WORK:
                raise AmbiguousGroupsError
        levels.append(level)
        states = {onward for choices in level.values() for onward in choices.values()}
    return levels


def _never_left_out(shapes: Sequence[Shape], groups: Sequence[Sequence[Shape | None]]) -> set[Shape]:
    """Return the shapes that groups have as often as the model has."""
    members = Counter(shape for group in groups for shape in group)
    weights = Counter(shapes)
    return set() if None in members else {shape for shape in weights if weights[shape] == members[shape]}


def _after(state: Left, number: int, tail: int) -> Left:
    left = list(state)
    left.remove(number)
    return tuple(sorted([*left, tail] if tail != NONE else left))


def _complete(levels: Sequence[Level]) -> list[Level]:
    """Return the ways that lead to the end, where nothing is left of any group; the end is a level without choices."""
    complete: list[Level] = [{(): {}}]
    for level in reversed(levels):
        onward = {state: {choice: to for choice, to in level[state].items() if to in complete[-1]} for state in level}
        complete.append({state: choices for state, choices in onward.items() if choices})
    return complete[::-1]


def _check_same_answer(level: Level, suffixes: Sequence[Suffix]) -> None:
    """Raise `AmbiguousGroupsError` if a weight has several choices, and a weight with vectors depends on it."""
    options = {choice for choices in level.values() for choice in choices}
    mattering = {choice for choice in options if choice != NONE and suffixes[choice].matters}
    # Of two groups with the same rest either could be meant.
    interchangeable = any(
        state.count(choice) > 1 for state, choices in level.items() for choice in choices if choice in mattering
    )
    if mattering and (len(options) > 1 or interchangeable):
        raise AmbiguousGroupsError
