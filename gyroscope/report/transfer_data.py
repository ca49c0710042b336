"""A transfer as plain data: what its text and its JSON show."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from gyroscope.advice import thresholds as limit
from gyroscope.advice.phrases import format_number, rule_text
from gyroscope.theory import Scale, Schedule, Transfer
from gyroscope.theory.transfer_rows import TransferRow
from gyroscope.theory.transfer_rules import AXES


class Table(NamedTuple):
    """A table of a transfer: its header, and the cells of its rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@final
@dataclass(frozen=True)
class TransferData:
    """All that is shown of a transfer.

    transfer  every rule applied to the change of scale
    row       the answer: the recommended row, or that of the rule that the user asked for
    unit      what lengths are given in: tokens, samples or steps
    schedule  shape of the learning rate over both runs
    is_asked  whether the user asked for a rule
    is_measured  whether the tuned settings were read from a run
    """

    transfer: Transfer
    row: TransferRow
    unit: str
    schedule: Schedule
    is_asked: bool
    is_measured: bool = False

    @cached_property
    def ratios(self) -> dict[str, float]:
        """The factor of each axis that changes."""
        values = {axis: (getattr(self.transfer.base, axis), getattr(self.transfer.to, axis)) for axis in AXES}
        return {axis: after / before for axis, (before, after) in values.items() if before not in (None, after)}

    @property
    def settings(self) -> list[str]:
        """The tuned run and the new one, a line for each."""
        return [f"from: {self.tuned}", f"to:   {self._scale(self.transfer.to)}"]

    @property
    def tuned(self) -> str:
        """The tuned settings, their schedule and their scale."""
        schedule = self.schedule
        warmup = (
            f", warmup {format_number(100 * schedule.warmup / schedule.steps)} % of the run" if schedule.warmup else ""
        )
        settings = f"{rule_text(self.transfer.rule.plain)}, {schedule.name} schedule{warmup}"
        return f"{settings}, {self._scale(self.transfer.base)}"

    def _scale(self, scale: Scale) -> str:
        length = f"{amount(scale.steps)} steps"
        if self.unit != "steps":
            length = f"{amount(scale.tokens)} {self.unit}, {length}"
        # A run whose length is in steps may have no batch, which is then 1.
        is_open = self.unit == "steps" and self.transfer.base.batch == self.transfer.to.batch == 1
        sizes = [length] if is_open else [f"batch {amount(scale.batch)}", length]
        sizes += [
            f"{name} {format_number(value, 4)}"
            for name, value in (("width", scale.width), ("depth", scale.depth))
            if value
        ]
        return ", ".join(sizes + ([f"{amount(scale.params)} parameters"] if scale.params else []))

    def axis_name(self, axis: str) -> str:
        """Return the name of an axis in the user's unit."""
        # A run whose length is in steps has more samples if its batch is larger.
        of_length = "samples" if self.unit == "steps" and self.ratios.get("batch", 1) != 1 else self.unit
        return of_length if axis == "tokens" else axis

    def is_silent(self, row: TransferRow) -> bool:
        """Return whether a rule is silent on all axes that change."""
        return bool(self.ratios) and set(row.silent_on) == set(self.ratios)

    @property
    def rules(self) -> Table:
        """The tuned run and every rule in numbers, with a note in the last column."""
        # Line breaks for the narrow columns of a terminal.
        quantities = ("rotation,\nmrad", f"memory,\n{self.unit}", "memory,\n% of run", "run\nlength", "RMS\nentry")
        header = ("rule", "lr", "weight\ndecay", *quantities, "first\nsteps ×", "note")
        tuned = ["tuned run", *self._numbers(self.transfer.tuned, self.transfer.base), ""]
        answer = ["answer", *self._numbers(self.row, self.transfer.to), ""]
        others = [row for row in self.transfer.rows if not self.is_silent(row)]
        rows = [[row.name, *self._numbers(row, self.transfer.to), row.note] for row in others]
        return Table(header, [tuned, answer, *rows])

    @property
    def notes(self) -> dict[str, list[str]]:
        """The rules that share a note, by the note."""
        notes: dict[str, list[str]] = {}
        for name, *_, note in self.rules.rows:
            if note:
                notes.setdefault(note, []).append(name)
        return notes

    @property
    def published(self) -> list[TransferRow]:
        """The rows of published rules that cover a part of the change and give settings."""
        return [row for row in self.transfer.rows if row.lr and row.name != "copy" and not self.is_silent(row)]

    def _numbers(self, row: TransferRow, scale: Scale) -> list[str]:
        memory = row.memory
        in_unit = memory / scale.batch if memory is not None and self.unit == "steps" else memory
        return [
            setting(row.lr),
            setting(row.weight_decay),
            _known(row.rotation, 1e3),
            "–" if in_unit is None else amount(in_unit),
            _known(memory, 100 / scale.tokens),
            _known(row.run_length),
            _known(row.rms_entry),
            _known(row.start_over_rotation, digits=2),
        ]


def amount(value: float) -> str:
    """Return a large number with its suffix.

    >>> amount(5e5), amount(1.234e10), amount(600)
    ('500K', '12.3B', '600')
    """
    # Only from ten thousand, because 2,048 is a usual width and 2K is not.
    for least, unit, suffix in ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "K")):
        if value >= least:
            return f"{format_number(value / unit)}{suffix}"
    return format_number(value, 4)


def setting(value: float | None) -> str:
    """Return a learning rate or a weight decay as people write it.

    >>> setting(0.00045), setting(0.026666), setting(0.0), setting(None)
    ('4.5e-4', '0.0267', '0', '–')
    """
    if value is None:
        return "–"
    text = format_number(value)
    if 0 < float(f"{value:.3g}") < limit.SCIENTIFIC_BELOW:
        digits, power = f"{value:.2e}".split("e")
        text = f"{float(digits):g}e{int(power)}"
    return text


def _known(value: float | None, factor: float = 1.0, digits: int = 3) -> str:
    return "–" if value is None else format_number(factor * value, digits)
