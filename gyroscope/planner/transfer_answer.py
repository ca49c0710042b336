"""A transfer from settings by name."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gyroscope._checks import check_positive
from gyroscope.advice.layer_families import join_words
from gyroscope.planner.rule_settings import RULE_OPTIONS, read_rule, rule_name
from gyroscope.planner.transfer_settings import SHAPE_STEPS, UNITS, check_tuned, read_scales, read_shape
from gyroscope.report.transfer_data import TransferData
from gyroscope.spelling import one_of
from gyroscope.theory import TransferRule, UpdateRule, transfer
from gyroscope.theory.transfer_rows import TransferRow, with_settings
from gyroscope.theory.transfer_rules import AXES, FAVOURED, check_family, compose, family_of, rule_named

if TYPE_CHECKING:
    from gyroscope.planner.transfer_run import MeasuredRun

# Norm of one weight vector of torch's Linear at the start: entries of variance 1/(3·fan_in).
TORCH_NORM = 3**-0.5


def answer_transfer(settings: Mapping[str, Any]) -> TransferData:
    """Check settings by name and transfer them. A ValueError quotes the wrong one and gives the remedy.

    >>> tuned = {"optimizer": "lion", "lr": 1e-4, "weight_decay": 1.0, "batch": "64", "samples": "1M"}
    >>> answer_transfer({**tuned, "to": "batch=256"}).row.name
    'tau'
    """
    source = _source(settings)
    rule = _tuned_rule(settings, source)
    base, to, unit = read_scales(settings, source)
    changed = [axis for axis in AXES if getattr(base, axis) != getattr(to, axis)]
    asked = _asked_rule(settings["rule"], rule, changed) if "rule" in settings else None
    norm = settings.get("init_norm", TORCH_NORM if source is None else source.initial_norm)
    check_positive("init_norm", norm)
    if source is None or "schedule" in settings or "warmup" in settings:
        schedule = read_shape(settings, base.steps)
    else:
        schedule = source.schedule(SHAPE_STEPS)
    options: dict[str, Any] = {"base": base, "to": to, "schedule": schedule, "initial_norm": norm}
    # Numbers far out of proportion overflow to infinity, which the table can show.
    with np.errstate(all="ignore"):
        moved = transfer(rule, **options)
        row = moved.recommended[0] if asked is None else transfer(rule, transfer_rules=[asked], **options).rows[0]
    _check_answer(row)
    return TransferData(moved, row, unit, schedule, is_asked=asked is not None, is_measured=source is not None)


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


def _asked_rule(text: str, rule: UpdateRule, changed: Sequence[str]) -> TransferRule:
    """Return the rule from a name, or the product from 'batch=tau,width=mup' and the favoured rule of other axes."""
    if "=" not in text:
        asked = rule_named(text)
        check_family(asked, rule)
        if changed and not set(asked.speaks_of) & set(changed):
            raise ValueError(
                f"the transfer rule {text!r} is not for this change. It is for {join_words(asked.speaks_of)}"
            )
        return asked
    given: dict[str, str] = {}
    for part in text.split(","):
        axis, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"--rule {part.strip()!r} is not of the form axis=rule, for example batch=tau,width=mup")
        # The length of a run has one rule, whatever it is counted in.
        axis = "tokens" if axis in UNITS else one_of("axis", axis, AXES)
        check_family(rule_named(name), rule)
        if axis in given:
            raise ValueError(f"--rule gives {axis} twice")
        given[axis] = name
    names = {**FAVOURED[family_of(rule)], **given}
    compose(names)  # raises if a rule is not for its axis, also for an axis that does not change
    return compose({axis: names[axis] for axis in changed}) if changed else rule_named("copy")


def _check_answer(row: TransferRow) -> None:
    """Raise if a rule gives no settings for this change."""
    if row.lr is None:
        raise ValueError(f"the transfer rule {row.name!r} gives no settings for this change: {row.note}")
