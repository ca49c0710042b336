"""The data of a sweep's page, gathered from its folder, and the pages of its runs."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gyroscope
from gyroscope.render.run_page import page
from gyroscope.report import SWEEP_FILE, gather
from gyroscope.store import RunError
from gyroscope.store.database import FILE
from gyroscope.tools import write_text
from gyroscope_lab.sweeps.data import ArmData, Comparison, SettingData, SweepData, TrialData
from gyroscope_lab.sweeps.plan import read_sweep
from gyroscope_lab.sweeps.table import (
    Setting,
    best,
    compare,
    good_region,
    outcomes_of,
    problem_of,
    settings_of,
    width,
)
from gyroscope_lab.training.result import ROTATION

# Axes that are drawn before all others, horizontal first.
FIRST_DRAWN = ("lr", "weight_decay")
# Most pages of settings that are written, best settings first. Each is a file of one or two megabytes.
MOST_PAGES = 200


def gather_sweep(folder: Path) -> SweepData:
    """Return the data of a sweep, finished or not."""
    sweep = read_sweep(folder / SWEEP_FILE)
    outcomes = outcomes_of(sweep, folder)
    settings = settings_of(sweep, outcomes)
    drawn = drawn_axes(sweep.axes)
    keys = [tuple(value for name, value in each.settings.items() if name not in drawn) for each in settings]
    arms = {key: [each for each, own in zip(settings, keys, strict=True) if own == key] for key in dict.fromkeys(keys)}
    tops = [best(sweep, members) for members in arms.values()]
    good = [good_region(sweep, members) for members in arms.values()]
    top = best(sweep, settings)
    others = [name for name in sweep.axes if name not in drawn]
    return SweepData(
        name=folder.resolve().name,
        metric=sweep.metric,
        higher_is_better=sweep.higher_is_better,
        planned=len(sweep.trials),
        ended=len(outcomes),
        axes=sweep.axes,
        drawn=drawn,
        settings=[_setting(each, list(arms).index(key), good, top) for each, key in zip(settings, keys, strict=True)],
        arms=[
            ArmData(
                name=arm_name(others, key),
                best=_index(settings, tops[number]),
                good=len(good[number]),
                settings=len(members),
                widths=[found for axis in drawn if (found := width(sweep, members, axis)) is not None],
            )
            for number, (key, members) in enumerate(arms.items())
        ],
        comparisons=_comparisons(tops, top),
        best=_index(settings, top),
        gyroscope=gyroscope.__version__,
    )


def drawn_axes(axes: dict[str, list[Any]]) -> list[str]:
    """Return at most two numeric axes: learning rate and weight decay, else those with the most values.

    >>> drawn_axes({"optimizer": ["adamw", "sgd"], "batch_size": [32, 64, 128], "lr": [0.1, 0.2], "clip": [1, 2]})
    ['lr', 'batch_size']
    """
    numeric = [name for name, values in axes.items() if len(values) > 1 and all(map(_is_number, values))]
    first = {name: place for place, name in enumerate(FIRST_DRAWN)}
    return sorted(numeric, key=lambda name: (first.get(name, len(first)), -len(axes[name])))[:2]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def arm_name(axes: Sequence[str], values: Sequence[Any]) -> str:
    """Return the name of an arm: the values that its settings share. Text values appear without their axis.

    >>> arm_name(["optimizer"], ["adamw"]), arm_name(["optimizer", "clip"], ["adamw", 1.0])
    ('adamw', 'adamw, clip 1.0')
    """
    named = zip(axes, values, strict=True)
    # None means the optimizer's own default.
    words = [(axis, "default" if value is None else value) for axis, value in named]
    return ", ".join(
        value if isinstance(value, str) and value != "default" else f"{axis} {value}" for axis, value in words
    )


def _index(settings: Sequence[Setting], setting: Setting | None) -> int | None:
    return None if setting is None else settings.index(setting)


def _setting(setting: Setting, arm: int, good: Sequence[Sequence[Setting]], top: Setting | None) -> SettingData:
    ended = {each.trial.name: each for each in setting.outcomes}
    trials = []
    for trial in setting.trials:
        result = ended.get(trial.name)
        problem = "" if result is None else problem_of(result, setting.metric)
        value = nan if result is None or problem else result.scores[setting.metric]
        trials.append(TrialData(trial.config.seed, value, problem, result is not None, trial.name))
    return SettingData(
        settings=setting.settings,
        arm=arm,
        n=len(setting.values),
        mean=setting.mean,
        deviation=setting.deviation,
        interval=setting.interval,
        failures=setting.failures,
        p_best=nan if top is None or setting is top else compare(setting, top),
        good=any(setting is each for each in good[arm]),
        trials=trials,
    )


def _comparisons(tops: Sequence[Setting | None], top: Setting | None) -> list[Comparison]:
    """Compare the arm of the best setting with each other arm, each at its own best setting."""
    found = []
    for number, other in enumerate(tops):
        if top is not None and other is not None and other is not top:
            found.append(Comparison(tops.index(top), number, top.mean - other.mean, compare(top, other)))
    return found


def write_run_pages(sweep: SweepData, folder: Path, pages: Path) -> SweepData:
    """Write a page with the runs of each setting into `pages`, and return the sweep with the addresses of the pages.

    A page that is newer than its runs is kept. Settings without tracked rotation have no page.
    """
    known = sorted(
        (each for each in sweep.settings if each.n),
        key=lambda each: -each.mean if sweep.higher_is_better else each.mean,
    )
    written = {id(each) for each in known[:MOST_PAGES] if _write_page(each, folder, pages)}
    addressed = [
        replace(each, page=f"{quote(pages.name)}/{quote(_file_name(each))}") if id(each) in written else each
        for each in sweep.settings
    ]
    return replace(sweep, settings=addressed)


def _file_name(setting: SettingData) -> str:
    return f"{setting.trials[0].folder}.html"


def _write_page(setting: SettingData, folder: Path, pages: Path) -> bool:
    runs = [folder / trial.folder / ROTATION for trial in setting.trials if trial.ended]
    files = [run / FILE for run in runs if (run / FILE).is_file()]
    if not files:
        return False
    target = pages / _file_name(setting)
    if target.is_file() and target.stat().st_mtime_ns > max(file.stat().st_mtime_ns for file in files):
        return True
    try:
        write_text(target, page(gather([file.parent for file in files])))
    except RunError:  # a run too short for a single sample
        return False
    return True
