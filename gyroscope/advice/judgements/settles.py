"""Layers of a plan that settle, that an optimizer holds at their norms, or that grow at a known rotation."""

from collections.abc import Iterator, Sequence
from math import exp

from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.phrases import RECURSION, clause, span, step_span
from gyroscope.advice.plan_view import PlanView

KEPT_NORM = "cos∠(w_0, w_T) = e^-X with X = Σ a_t of the rule whose angle is taken (docs/theory.md)"


def settles(views: Sequence[PlanView]) -> Iterator[Finding]:
    """Judge layers that reach their equilibrium."""
    members = [view for view in views if view.norm_state == "settled"]
    if not members:
        return
    names = [view.name for view in members]
    totals = [view.total_decay for view in members]
    after = [(view.prediction.settled_at or 0) + 1 for view in members]
    share = span([100 * count / members[0].prediction.schedule.steps for count in after], 2)
    yield make_finding(
        "well",
        "good",
        f"{clause(names, 'settles', 'settle')} after {step_span(after)} step{'' if max(after) == 1 else 's'} "
        f"({share} % of the run) and then {'turns' if len(names) == 1 else 'turn'} {_rotation(members)} rad per step; "
        f"X = {span(totals, 2)}.",
        names,
        formula=RECURSION,
        evidence={"total_decay": min(totals), "settled_at": max(after) - 1.0},
    )


def keeps_norm(views: Sequence[PlanView]) -> Iterator[Finding]:
    """State how far layers turn whose norms are held, and what the plain rule would do from the same start."""
    if not views:
        return
    names = [view.name for view in views]
    totals = [view.total_decay for view in views]
    base = views[0].rule.plain.name
    how = " by the equilibrium angle from the first step"
    if views[0].norm_state == "follows base":
        how = f" as {base} would from the same initial norms"
    sentence = (
        f"{clause(names, 'keeps its norm', 'keep their norms')} and {'turns' if len(names) == 1 else 'turn'}{how}"
    )
    if min(totals) > 0:
        left = span([100 * exp(-total) for total in totals], 2)
        sentence += f"; over the run X = {span(totals, 2)}, so {left} % of the initial direction is left"
    sentence += "."
    speeds = [speed for view in views if (speed := view.prediction.base_speed) is not None]
    # Hyperball: the angle is lr, and no weight decay says what is forgotten.
    if speeds and min(totals) > 0:
        sentence += f" {base} would turn {span(speeds, 2)} times as fast on average, from the same initial norms."
    yield make_finding("well", "note", sentence, names, formula=KEPT_NORM, evidence={"total_decay": min(totals)})


def grows(views: Sequence[PlanView]) -> Iterator[Finding]:
    """State how fast layers turn whose steps are relative to their norms, and what becomes of these."""
    members = [view for view in views if view.norm_state == "grows"]
    if not members:
        return
    names = [view.name for view in members]
    factor = span([float(view.forecast.norm[-1] / view.forecast.initial_norm) for view in members], 3)
    sentence = (
        f"{clause(names, 'turns', 'turn')} {_rotation(members)} rad per step at any norm, which no decay holds: it "
        f"ends at {factor} times its start."
    )
    total = min(view.total_decay for view in members)
    yield make_finding(
        "well", "note", sentence, names, formula=members[0].rule.angle_formula, evidence={"total_decay": total}
    )


def _rotation(views: Sequence[PlanView]) -> str:
    return span(float(view.forecast.equilibrium_angular_update.max()) for view in views)
