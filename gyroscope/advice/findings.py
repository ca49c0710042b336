"""What advice consists of: findings about a plan or a run, each a sentence with its numbers, layers and remedy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final, overload

Severity = Literal["bad", "warn", "note", "good"]
# Mark of each severity in a terminal, from worst to best.
MARKS: dict[Severity, str] = {"bad": "✗", "warn": "!", "note": "•", "good": "✓"}

# Kinds of judgements, in the order in which those of one severity are listed.
KINDS = (
    "diverged",
    "incident",
    "rising_loss",
    "unstable_betas",
    "fell_out",
    "short_memory",
    "transient",
    "over_rotation",
    "fast_rotation",
    "layer_imbalance",
    "neuron_imbalance",
    "dead_vectors",
    "frozen_entries",
    "aligned_updates",
    "scale_sensitive",
    "missing_input",
    "not_measured",
    "too_short",
    "assumption",
    "signal",
    "drift",
    "off_prediction",
    "well",
)
# Kinds of statements in a plan that judge nothing; all are notes.
FACTS = ("rotation", "memory", "norm", "start", "total_decay", "settles", "stability", "equivalent")


@final
@dataclass(frozen=True)
class Remedy:
    """What to change. `trial` names the experiment that tried it; empty for what changes nothing about training."""

    text: str = ""
    trial: str = ""


NOTHING = Remedy()


@final
@dataclass(frozen=True)
class Finding:
    """One statement about some layers of a plan or of a run, with what follows from it.

    kind      what is stated, one of `KINDS` or `FACTS`
    severity  bad, warn, note or good
    sentence  the statement, with numbers and units
    remedy    what to change, from `gyroscope.advice.remedies`; empty where nothing has to change
    formula   the equation behind the numbers; empty where they were measured
    layers    the layers it is about; empty where it is about the whole run
    evidence  the numbers of the sentence by name
    trial     the section of results/advice.md that shows what the remedy did to real training; empty where it does not
              change training
    mark      what a time axis calls it at `evidence["step"]`; empty where it is no event
    """

    kind: str
    severity: Severity
    sentence: str
    remedy: str = ""
    formula: str = ""
    layers: tuple[str, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    trial: str = ""
    mark: str = ""

    def __str__(self) -> str:
        return f"{MARKS[self.severity]} {self.sentence}" + (f"\n  → {self.remedy}" if self.remedy else "")


def make_finding(
    kind: str,
    severity: Severity,
    sentence: str,
    layers: Iterable[str] = (),
    remedy: Remedy = NOTHING,
    *,
    evidence: Mapping[str, float] | None = None,
    formula: str = "",
    mark: str = "",
) -> Finding:
    """Return a finding with the text and the trial of its remedy.

    >>> make_finding("fast_rotation", "warn", "b is fast.", ["b"], Remedy("Lower the learning rate.")).remedy
    'Lower the learning rate.'
    """
    return Finding(kind, severity, sentence, remedy.text, formula, tuple(layers), evidence or {}, remedy.trial, mark)


@final
class Diagnosis(Sequence[Finding]):
    """All findings about a plan or a run, worst first; prints as plain text.

    >>> print(Diagnosis([Finding("well", "good", "All is well."), Finding("transient", "warn", "Not yet.", "Wait.")]))
    ! Not yet.
      → Wait.
    ✓ All is well.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        severities = list(MARKS)
        self._findings = sorted(findings, key=lambda f: (severities.index(f.severity), KINDS.index(f.kind)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the findings, in the same order."""
        return tuple(finding.kind for finding in self._findings)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Diagnosis) and self._findings == other._findings

    def __hash__(self) -> int:
        return hash(self.kinds)

    def __str__(self) -> str:
        return "\n".join(map(str, self._findings))

    def __repr__(self) -> str:
        return f"Diagnosis({self._findings!r})"
