"""Findings about a plan, a run or a checkpoint: each a sentence with its numbers, layers and remedy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self, final

from gyroscope._text import printable

Severity = Literal["bad", "warn", "note", "good"]
# Mark of each severity in a terminal, from worst to best.
MARKS: dict[Severity, str] = {"bad": "✗", "warn": "!", "note": "•", "good": "✓"}

# Kinds of findings, in the order in which findings of one severity are listed.
KINDS = (
    "diverged",
    "incident",
    "rising_loss",
    "unstable_betas",
    "stopped",
    "small_norms",
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
    "off_prediction",
    "well",
)


@final
@dataclass(frozen=True)
class Remedy:
    """What to change.

    text     a sentence
    changes  settings in the words of a training configuration, such as {"lr": "×0.3"}, empty if training stays the same
    trial    the experiment that tested it, or empty
    """

    text: str = ""
    changes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    trial: str = ""

    def __post_init__(self) -> None:
        """Freeze the changes."""
        object.__setattr__(self, "changes", MappingProxyType(dict(self.changes)))


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
    trial     the experiment that tested the remedy on real training, or empty
    mark      the label on a time axis at `evidence["step"]`, empty if the finding is not an event
    changes   settings that the remedy changes, for a program to apply
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
    changes: Mapping[str, Any] = field(default_factory=dict)

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
) -> Finding:
    """Return a finding with its remedy.

    layers  by name, or as objects that have one

    >>> make_finding("fast_rotation", "warn", "b is fast.", ["b"], Remedy("Lower the learning rate.")).remedy
    'Lower the learning rate.'
    """
    names = tuple(getattr(layer, "name", layer) for layer in layers)
    return Finding(
        kind,
        severity,
        sentence,
        remedy.text,
        formula,
        names,
        evidence or {},
        remedy.trial,
        mark,
        dict(remedy.changes),
    )


@final
class Findings(tuple[Finding, ...]):
    """All findings about a plan, a run or a checkpoint, worst first. Prints as plain text, the summary first.

    summary  at most three statements: what to change, why, and the state that training is in

    >>> fast = Finding("fast_rotation", "warn", "Too fast.", "Slow down.")
    >>> print(Findings([Finding("well", "good", "All is well."), fast], ("Slow down.",)))
    Slow down.
    <BLANKLINE>
    ! Too fast.
      → Slow down.
    ✓ All is well.
    """

    summary: tuple[str, ...]

    def __new__(cls, findings: Iterable[Finding], summary: Iterable[str] = ()) -> Self:
        """Order the findings: by severity, then by kind."""
        severities = list(MARKS)
        ranked = sorted(findings, key=lambda each: (severities.index(each.severity), KINDS.index(each.kind)))
        ordered = super().__new__(cls, ranked)
        ordered.summary = tuple(summary)
        return ordered

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the findings, in the same order."""
        return tuple(finding.kind for finding in self)

    @property
    def changes(self) -> dict[str, Any]:
        """What to change, as settings that a program can apply, empty if no finding asks for a change.

        They are those of the first finding that has any. Others may have the same cause, so judge again after them.

        >>> slower = Finding("fast_rotation", "warn", "Too fast.", "Slow down.", changes={"lr": "×0.3"})
        >>> Findings([slower]).changes
        {'lr': '×0.3'}
        """
        return dict(next((finding.changes for finding in self if finding.changes), {}))

    def __str__(self) -> str:
        head = [*self.summary, ""] if self.summary else []
        return printable("\n".join([*head, *map(str, self)]))
