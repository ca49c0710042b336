"""Findings about a plan, a run or a checkpoint: each a sentence with its numbers, layers and remedy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, final

from gyroscope._text import printable

Severity = Literal["bad", "warn", "note", "good"]
# Mark of each severity in a terminal, from worst to best.
MARKS: dict[Severity, str] = {"bad": "✗", "warn": "!", "note": "•", "good": "✓"}

# Kinds of judgements, in the order in which findings of one severity are listed.
KINDS = (
    "diverged",
    "incident",
    "rising_loss",
    "unstable_betas",
    "fell_out",
    "short_memory",
    "stopped",
    "missed_angle",
    "transient",
    "over_rotation",
    "fast_rotation",
    "layer_imbalance",
    "neuron_imbalance",
    "dead_vectors",
    "frozen_entries",
    "scale_sensitive",
    "missing_input",
    "not_measured",
    "too_short",
    "assumption",
    "drift",
    "recipe",
    "off_prediction",
    "well",
)


@final
@dataclass(frozen=True)
class Remedy:
    """What to change. `trial` names the experiment that tested it, and is empty if training stays the same."""

    text: str = ""
    trial: str = ""


NOTHING = Remedy()


@final
@dataclass(frozen=True)
class Finding:
    """One statement about some layers of a plan or of a run, and what to do about it.

    kind      what is stated, one of `KINDS`
    severity  bad, warn, note or good
    sentence  the statement, with numbers and units
    remedy    what to change, from `gyroscope.advice.remedies`, or empty
    formula   the equation behind the numbers, empty if they were measured
    layers    full names of the layers, empty for the whole run
    evidence  the numbers of the sentence by name
    trial     the experiment that tested the remedy or the statement on real training, or empty
    mark      the label on a time axis at `evidence["step"]`, empty if the finding is not an event
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
        return printable(f"{MARKS[self.severity]} {self.sentence}" + (f"\n  → {self.remedy}" if self.remedy else ""))


def make_finding(
    kind: str,
    severity: Severity,
    sentence: str,
    layers: Iterable[Any] = (),
    remedy: Remedy = NOTHING,
    *,
    evidence: Mapping[str, float] | None = None,
    formula: str = "",
    mark: str = "",
    trial: str = "",
) -> Finding:
    """Return a finding with the text of its remedy, and the trial of that or of the statement.

    layers  by name, or as objects that have one

    >>> make_finding("fast_rotation", "warn", "b is fast.", ["b"], Remedy("Lower the learning rate.")).remedy
    'Lower the learning rate.'
    """
    names = tuple(getattr(layer, "name", layer) for layer in layers)
    return Finding(kind, severity, sentence, remedy.text, formula, names, evidence or {}, remedy.trial or trial, mark)


@final
class Diagnosis(tuple[Finding, ...]):
    """All findings about a plan, a run or a checkpoint, worst first. Prints as plain text, the summary first.

    summary  two to four statements: whether equilibrium is reached, weight decay, balance, and what to change

    >>> findings = [Finding("well", "good", "All is well."), Finding("transient", "warn", "Not yet.", "Wait.")]
    >>> print(Diagnosis(findings, ("Nothing to change.",)))
    Nothing to change.
    <BLANKLINE>
    ! Not yet.
      → Wait.
    ✓ All is well.
    """

    summary: tuple[str, ...]

    def __new__(cls, findings: Iterable[Finding], summary: Iterable[str] = ()) -> Self:
        """Order the findings: by severity, then by kind."""
        severities = list(MARKS)
        ranked = sorted(findings, key=lambda each: (severities.index(each.severity), KINDS.index(each.kind)))
        diagnosis = super().__new__(cls, ranked)
        diagnosis.summary = tuple(summary)
        return diagnosis

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the findings, in the same order."""
        return tuple(finding.kind for finding in self)

    def __str__(self) -> str:
        head = [*self.summary, ""] if self.summary else []
        return printable("\n".join([*head, *map(str, self)]))
