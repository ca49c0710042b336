"""A transfer from settings by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gyroscope._checks import check_positive
from gyroscope.planner.rule_settings import RULE_OPTIONS, read_rule, rule_name
from gyroscope.planner.transfer_settings import SHAPE_STEPS, check_tuned, read_scales, read_shape
from gyroscope.report.transfer_data import TransferData
from gyroscope.spelling import one_of
from gyroscope.theory import Transfer, UpdateRule, transfer
from gyroscope.theory.scaling import with_settings
from gyroscope.theory.transfer_rules import RULES, check_family, family_of

if TYPE_CHECKING:
    from gyroscope.planner.transfer_run import MeasuredRun

# Norm of one weight vector of torch's Linear at the start: entries of variance 1/(3·fan_in).
TORCH_NORM = 3**-0.5


def answer_transfer(settings: Mapping[str, Any]) -> TransferData:
    """Check settings by name and transfer them. A ValueError quotes the wrong one and gives the remedy.

    >>> tuned = {"optimizer": "lion", "lr": 1e-4, "weight_decay": 1.0, "batch": "64", "samples": "1M"}
    >>> [row.name for row in answer_transfer({**tuned, "to": "batch=256"}).chosen]
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
    if only is not None:
        _check_answer(moved, only)
    return TransferData(moved, unit, schedule, only)


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


def _check_answer(moved: Transfer, name: str) -> None:
    """Raise if a rule gives no settings for this change."""
    row = next(row for row in moved.rows if row.name == name)
    if row.lr is None:
        raise ValueError(f"the transfer rule {name!r} gives no settings for this change: {row.note}")
