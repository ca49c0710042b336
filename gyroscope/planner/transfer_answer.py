"""A transfer from settings by name, with the warmup that its start needs, as it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from gyroscope._checks import check_positive
from gyroscope.planner.rule_settings import RULE_OPTIONS, read_rule, rule_name
from gyroscope.planner.transfer_settings import SHAPE_STEPS, check_tuned, read_scales, read_shape
from gyroscope.render.rendered import Document, Rendered
from gyroscope.render.transfer_document import transfer_document
from gyroscope.report.transfer_data import NeededWarmup, TransferData
from gyroscope.report.transfer_sentences import transfer_json
from gyroscope.spelling import one_of
from gyroscope.theory import Transfer, UpdateRule, transfer
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import SHORTEST_RUN, InitialLayer, needed_warmups
from gyroscope.theory.scaling import TransferRow, with_settings
from gyroscope.theory.transfer_rules import RULES, check_family, family_of

if TYPE_CHECKING:
    from gyroscope.planner.transfer_run import MeasuredRun

# Steps of a run whose tenth is searched for a warmup, so that the answer takes no more than a moment.
MAX_SEARCHED_RUN = 20_000
# Norm of one weight vector of torch's Linear at the start: entries of variance 1/(3·fan_in).
TORCH_NORM = 3**-0.5


@final
@dataclass(frozen=True)
class TransferAnswer(Rendered):
    """Settings for another scale, shown as text, as a page or as JSON."""

    data: TransferData

    def document(self) -> Document:
        """Return the answer for people. `explain` adds the sources of the rules."""
        return transfer_document(self.data)

    def json(self) -> str:
        """Return the answer as JSON, for programs."""
        return transfer_json(self.data)


def answer_transfer(settings: Mapping[str, Any]) -> TransferAnswer:
    """Check settings by name and transfer them. A ValueError quotes the wrong one and gives the remedy.

    >>> tuned = {"optimizer": "lion", "lr": 1e-4, "weight_decay": 1.0, "batch": "64", "samples": "1M"}
    >>> [row.name for row in answer_transfer({**tuned, "to": "batch=256"}).data.chosen]
    ['tau']
    """
    source = _source(settings)
    rule = _tuned_rule(settings, source)
    base, to, unit = read_scales(settings, source)
    only = settings.get("rule")
    if only is not None:
        by_name = {each.name: each for each in RULES}
        check_family(by_name[one_of("transfer rule", only, by_name)], rule)
    norm = settings.get("init_norm", TORCH_NORM if source is None else source.initial_norm)
    check_positive("init_norm", norm)
    if source is None or "schedule" in settings or "warmup" in settings:
        schedule = read_shape(settings, base.steps)
    else:
        schedule = source.schedule(SHAPE_STEPS)
    # Numbers far out of proportion overflow to infinity, which the table can show.
    with np.errstate(all="ignore"):
        moved = transfer(rule, base=base, to=to, schedule=schedule, initial_norm=norm)
        chosen = moved.recommended if only is None else (_asked_row(moved, only),)
        needed = {row.name: _needed_warmup(moved, row, norm) for row in chosen}
    warmups = {name: warmup for name, warmup in needed.items() if warmup is not None}
    check = None
    if "check" in settings:
        from gyroscope.planner.transfer_run import check_run  # reading a run takes longer than to answer

        check = check_run(moved, settings["check"], only)
    return TransferAnswer(TransferData(moved, unit, schedule, only, warmups, check))


def _source(settings: Mapping[str, Any]) -> "MeasuredRun | None":
    """Return the run that the settings come from, or None if an optimizer is named."""
    if ("source" in settings) == ("optimizer" in settings):
        raise ValueError("name the tuned optimizer, for example adamw, or the tuned run by --from, but not both")
    if "source" not in settings:
        return None
    from gyroscope.planner.transfer_run import read_run  # an answer without a run does not need the store

    return read_run(settings["source"])


def _tuned_rule(settings: Mapping[str, Any], source: "MeasuredRun | None") -> UpdateRule:
    options = {key: settings[key] for key in RULE_OPTIONS if key in settings}
    rule = (
        read_rule(rule_name(settings["optimizer"]), options) if source is None else with_settings(source.rule, options)
    )
    check_tuned(rule.plain, settings if source is None else rule.plain.settings)
    family_of(rule)  # raises if no transfer rule covers the optimizer
    return rule


def _asked_row(moved: Transfer, name: str) -> TransferRow:
    row = next(row for row in moved.rows if row.name == name)
    if row.lr is None:
        raise ValueError(f"the transfer rule {name!r} gives no settings for this change: {row.note}")
    return row


def _needed_warmup(moved: Transfer, row: TransferRow, norm: float) -> NeededWarmup | None:
    """Return the warmup that a row's start needs, or None if inputs are missing."""
    width = moved.to.width
    if width is None or row.start_over_rotation is None:
        return None
    rule = row.applied_to(moved.rule)
    rows = round(width) if rule.whole_matrix else 1
    weights = Weights.checked(fan_in=width, shape=(rows, round(width)) if rule.whole_matrix else None)
    layer = InitialLayer("hidden", weights, norm * rows**0.5)
    steps = max(round(min(moved.to.steps, MAX_SEARCHED_RUN)), 1)
    return NeededWarmup(needed_warmups(rule, steps, [layer])[0], max(steps // SHORTEST_RUN, 1))
