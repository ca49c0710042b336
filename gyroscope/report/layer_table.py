"""Tables of layers in which a family, such as h.*.attn.c_proj, is one row with the range of its numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isinf, isnan, nan
from typing import Any, final

from gyroscope.advice import thresholds
from gyroscope.advice.layer_families import group_families, short_labels
from gyroscope.advice.phrases import format_number

UNKNOWN = "–"
# Significant digits in a range. Members of a family differ in the third digit by chance.
RANGE_DIGITS = 2


@final
@dataclass(frozen=True)
class Column:
    """A column of a table of layers.

    title     heading, with a line break if a narrow terminal needs one
    value     number of a layer, by which members of a family are ordered. NaN if it is unknown
    text      cell of a layer, given the number of digits, if it is not only the number
    infinite  cell if the number is infinite
    is_step   whether the number is shown to its last digit
    help      what the number is, for a tooltip
    is_ratio  whether the usual number is 1, so that a page highlights numbers far from it
    """

    title: str
    value: Callable[[Any], float]
    text: Callable[[Any, int], str] | None = None
    infinite: str = UNKNOWN
    is_step: bool = False
    help: str = ""
    is_ratio: bool = False

    def is_off(self, layer: Any) -> bool:
        """Return whether the number of a layer is far from the usual one."""
        value = self.value(layer) if self.is_ratio else nan
        return value > thresholds.MAX_USUAL_RATIO or value < 1 / thresholds.MAX_USUAL_RATIO

    def cell(self, layer: Any, digits: int = 3) -> str:
        """Return the cell of one layer."""
        if self.text is not None:
            return self.text(layer, digits)
        value = self.value(layer)
        if isinf(value):
            return self.infinite
        return f"{value:,.0f}" if self.is_step and not isnan(value) else known(value, digits)

    def range(self, members: Sequence[Any]) -> str:
        """Return the cells of the smallest and the largest member, or the distinct cells if they are words."""
        ordered = sorted((each for each in members if not isnan(self.value(each))), key=self.value)
        if not ordered:
            return ", ".join(dict.fromkeys(map(self.cell, members)))
        low = self.cell(ordered[0], RANGE_DIGITS)
        high = self.cell(ordered[-1], RANGE_DIGITS)
        # A dash before a minus sign would be read as another minus.
        return low if low == high else f"{low}{' to ' if '-' in (low[0], high[0]) else '–'}{high}"


@final
@dataclass(frozen=True)
class FamilyRow:
    """One row of a table: a family or a single layer.

    layers    full names
    cells     text, the name first
    values    the largest number in each cell, by which a page sorts, NaN in cells of words
    off       places of numbers that are far from the usual one
    distance  of the worst layer
    members   rows of a family's members
    """

    layers: Sequence[str]
    cells: Sequence[str]
    values: Sequence[float]
    off: Sequence[int]
    distance: float
    members: Sequence["FamilyRow"] = ()


@final
@dataclass(frozen=True)
class LayerTable:
    """A table of layers, in the order of the model. `helps` has a tooltip for each column."""

    header: Sequence[str]
    helps: Sequence[str]
    rows: Sequence[FamilyRow]


def layer_table(
    layers: Sequence[Any],
    columns: Sequence[Column],
    distance: Callable[[Any], float],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> LayerTable:
    """Return the table of layers. Empty columns are left out.

    layers    objects with a name
    columns   what is shown of each
    distance  factor by which a layer differs from the usual, 1 or more. It is largest for the worst member of a family
    shapes    by name, if they are known
    """
    by_name = {layer.name: layer for layer in layers}
    labels = short_labels(list(by_name))
    families = group_families(list(by_name), {name: tuple(shape) for name, shape in (shapes or {}).items()})
    # Rows of single layers show their label. A family also shows the shape of its members.
    has_shapes = shapes is not None and len(families) < len(by_name)
    first = 1 + has_shapes

    def row_of(label: str, members: Sequence[Any], cells: Sequence[str], worst: str = "") -> FamilyRow:
        shape = ["×".join(map(str, (shapes or {}).get(members[0].name, ())))] if has_shapes else []
        values = [_largest(column.value(member) for member in members) for column in columns]
        off = [first + place for place, column in enumerate(columns) if any(map(column.is_off, members))]
        return FamilyRow(
            [member.name for member in members],
            [label, *shape, *cells, worst],
            [nan] * first + values + [nan],
            off,
            _largest(map(distance, members)),
        )

    def layer_row(layer: Any) -> FamilyRow:
        return row_of(labels[layer.name], [layer], [column.cell(layer) for column in columns])

    rows = []
    for family in families:
        members = [by_name[name] for name in family.members]
        if len(members) == 1:
            rows.append(layer_row(members[0]))
            continue
        worst = _worst(members, distance)
        named = labels[worst.name] if worst is not None else ""
        row = row_of(str(family), members, [column.range(members) for column in columns], named)
        rows.append(replace(row, members=[layer_row(member) for member in members]))
    shape_help = ["shape of the weight"] if has_shapes else []
    header = ["layer", *(["shape"] if has_shapes else []), *(column.title for column in columns), "worst"]
    helps = ["name", *shape_help, *(column.help for column in columns), "the layer furthest from the usual"]
    return _without_empty_columns(LayerTable(header, helps, rows))


def _largest(values: Iterable[float]) -> float:
    return max((value for value in values if not isnan(value)), default=nan)


def heading(title: str) -> str:
    """Return the title of a column in one line.

    >>> heading("÷ pre-\\ndicted")
    '÷ predicted'
    """
    return " ".join(title.split("\n")).replace("- ", "")


def known(value: float | None, digits: int = 3) -> str:
    """Return a number, or a dash if it is unknown or infinite.

    >>> known(0.012345), known(None), known(float("nan"))
    ('0.0123', '–', '–')
    """
    return format_number(value, digits) if value is not None and isfinite(value) else UNKNOWN


def _worst(members: Sequence[Any], distance: Callable[[Any], float]) -> Any | None:
    """Return the member furthest from the usual, or None if all members are alike."""
    ranked = sorted((layer for layer in members if isfinite(distance(layer))), key=distance)
    is_named = ranked and distance(ranked[-1]) > thresholds.MIN_NAMED_RATIO * distance(ranked[0])
    return ranked[-1] if is_named else None


def _without_empty_columns(table: LayerTable) -> LayerTable:
    cells = [row.cells for row in table.rows]
    kept = [place for place in range(len(table.header)) if any(row[place] not in ("", UNKNOWN) for row in cells)]

    def chosen(row: FamilyRow) -> FamilyRow:
        return replace(
            row,
            cells=[row.cells[place] for place in kept],
            values=[row.values[place] for place in kept],
            off=[kept.index(place) for place in row.off if place in kept],
            members=list(map(chosen, row.members)),
        )

    header, helps = ([texts[place] for place in kept] for texts in (table.header, table.helps))
    return LayerTable(header, helps, list(map(chosen, table.rows)))
