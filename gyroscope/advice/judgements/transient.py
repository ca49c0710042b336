"""Layers on the way to equilibrium: a fact, for training goes on all the while."""

from collections.abc import Iterator, Sequence

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.norm_state import settles_at
from gyroscope.advice.phrases import RECURSION, clause, span
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.run_view import RunView


def transient(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge a run: when its layers will have settled."""
    members = [view for view in views if view.norm_state == "transient"]
    if not members:
        return
    names = [view.name for view in members]
    now = members[0].history.steps[-1]
    steps = [settles_at(view.history) for view in members]
    distances = [view.history.distance for view in members]
    ratios = [float(distance[np.isfinite(distance)][-1]) for distance in distances]
    when = f"settled at about step {span(steps, 2)}"
    if max(steps) > limit.MAX_SETTLING_LENGTHS * (now + 1):
        when = f"not within {limit.MAX_SETTLING_LENGTHS:g} times as many steps"
    yield make_finding(
        "transient",
        "note",
        f"{clause(names, 'is', 'are')} on the way to equilibrium after {now + 1:,.0f} steps, at {span(ratios, 2)} "
        f"times its norm; at this rate {when}.",
        names,
        evidence={"settles_at": max(steps), "smallest_ratio": min(ratios), "largest_ratio": max(ratios)},
    )


def planned_transient(views: Sequence[PlanView]) -> Iterator[Finding]:
    """Judge a plan that is longer than the memory of layers which do not settle."""
    members = [view for view in views if view.norm_state == "far"]
    if members:
        names = [view.name for view in members]
        totals = [view.total_decay for view in members]
        sentence = (
            f"{clause(names, 'does', 'do')} not come within 10 % of equilibrium, though X = {span(totals, 2)}: the "
            "start is too far off."
        )
        yield make_finding(
            "transient", "note", sentence, names, formula=RECURSION, evidence={"total_decay": min(totals)}
        )
