"""What a diagnosis is made of: verdicts, each a sentence with its numbers and a remedy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final, overload

Severity = Literal["bad", "warn", "note", "good"]
MARKS: dict[Severity, str] = {"bad": "✗", "warn": "!", "note": "•", "good": "✓"}
"""By which a terminal tells verdicts apart; in the order from worst to best."""

KINDS = (
    "unstable_betas",
    "fell_out",
    "weak_decay",
    "transient",
    "over_rotation",
    "layer_imbalance",
    "neuron_imbalance",
    "dead_vectors",
    "frozen_entries",
    "scale_sensitive",
    "not_measured",
    "too_short",
    "well",
)
"""Every kind of verdict, in the order in which those of one severity are said."""


@final
@dataclass(frozen=True)
class Verdict:
    """One finding: what is so, in which layers, with the numbers behind it, and what to do about it."""

    kind: str
    severity: Severity
    sentence: str
    remedy: str = ""
    layers: tuple[str, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{MARKS[self.severity]} {self.sentence}" + (f"\n  → {self.remedy}" if self.remedy else "")


@final
class Diagnosis(Sequence[Verdict]):
    """All verdicts on a run, worst first; prints as plain text.

    >>> print(Diagnosis([Verdict("well", "good", "All is well."), Verdict("transient", "warn", "Not yet.", "Wait.")]))
    ! Not yet.
      → Wait.
    ✓ All is well.
    """

    def __init__(self, verdicts: Iterable[Verdict]) -> None:
        severities = list(MARKS)
        self._verdicts = sorted(verdicts, key=lambda v: (severities.index(v.severity), KINDS.index(v.kind)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of verdicts, in the same order."""
        return tuple(verdict.kind for verdict in self._verdicts)

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | Sequence[Verdict]:
        return self._verdicts[index]

    def __len__(self) -> int:
        return len(self._verdicts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Diagnosis) and self._verdicts == other._verdicts

    def __hash__(self) -> int:
        return hash(self.kinds)

    def __str__(self) -> str:
        return "\n".join(map(str, self._verdicts))

    def __repr__(self) -> str:
        return f"Diagnosis({self._verdicts!r})"
