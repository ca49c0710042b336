"""What a plan or a checkpoint lacks, assumes or estimates."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import clause, listed, sig


def missing_input(missing: Mapping[str, str], what: str = "") -> Iterator[Finding]:
    """State which layers lack something, and why; `what` comes before each reason."""
    for reason in dict.fromkeys(missing.values()):
        names = [name for name, why in missing.items() if why == reason]
        yield make_finding("missing_input", "note", f"{clause(names, 'has', 'have')} no {what}{reason}.", names)


def assumptions(notes: Sequence[str]) -> Iterator[Finding]:
    """State what was assumed, each a sentence without a full stop."""
    for note in notes:
        yield make_finding("assumption", "note", f"{note}.")


def estimates(views: Sequence[CheckpointView]) -> Iterator[Finding]:
    """State which rotations of a checkpoint are estimates, and their error."""
    estimated = [view for view in views if not view.exact and isfinite(view.rotation)]
    errors = list(dict.fromkeys(view.error for view in estimated))
    # The error of Muon depends on the shape, so its layers share no single number.
    trial = "a layer" if len(errors) == 1 else "a layer of this size"
    for error in errors:
        names = [view.name for view in estimated if view.error == error]
        sentence = (
            f"The rotation of {listed(names)} is an estimate, for the file does not hold the last gradient: on trial "
            f"the mean of {trial} was within {sig(100 * error, 2)} %."
        )
        yield make_finding("assumption", "note", sentence, names, evidence={"error": error})
