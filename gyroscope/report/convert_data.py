"""A conversion to another optimizer as plain data: what its text and its JSON show."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, final

import numpy as np

from gyroscope._json import dumps
from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_families import join_words
from gyroscope.advice.phrases import format_number, rule_text
from gyroscope.report.transfer_data import Table, setting
from gyroscope.theory import Match, Schedule, UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.rules.muon import ADJUSTMENTS

# Shares of a run at which a converted schedule is shown.
SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
# Losses of the conversions on trial, written by tools/conversion_trials.py.
TRIALS_FILE = "conversion_trials.json"
INPUTS = ("fan_in", "unit_grad_norm", "shape")
# The two conventions in which Muon's learning rate is given. Keller Jordan's code has no name for its own.
MUON_CONVENTIONS = {
    "original": "torch's adjust_lr_fn original and for Keller Jordan's code",
    "match_rms_adamw": "torch's adjust_lr_fn match_rms_adamw",
}
QUANTITIES = {"memory": "memory", "norm": "norm", "rotation": "rotation per step"}


@final
@dataclass(frozen=True)
class Conversion:
    """Equivalent settings of another optimizer.

    rule      the tuned settings
    matches   for each layer the other rule, what it keeps and what differs
    layers    the given facts about the weights of each layer
    schedule  of the tuned run, or None
    """

    rule: UpdateRule
    matches: tuple[Match, ...]
    layers: tuple[Weights, ...]
    schedule: Schedule | None

    @property
    def match(self) -> Match:
        """The conversion of the first layer."""
        return self.matches[0]

    @property
    def answer(self) -> str:
        """The new settings in one sentence."""
        new = self.match.rule
        parts = []
        for name, value in new.settings.items():
            if len({str(each.rule.settings[name]) for each in self.matches}) > 1:
                parts.append(f"{name} by layer")
            elif value is True:
                parts.append(name)
            elif value is not None and value is not False:
                parts.append(f"{name} {setting(value) if isinstance(value, float) else value}")
        return f"Use {new.name}: {', '.join(parts)}."

    def sentences(self) -> Iterator[str]:
        """Yield what the new settings keep, what they change and what they depend on."""
        converted = self.match
        kept = [QUANTITIES[name] for name in QUANTITIES if name in converted.kept]
        yield f"They keep the {join_words(kept)} of {rule_text(self.rule)}." if kept else "They keep nothing exactly."
        changed = [f"{QUANTITIES[name]} by {format_number(ratio)}" for name, ratio in converted.differs.items()]
        if changed:
            yield f"They multiply the {join_words(changed)}."
        if converted.rule.keeps_norm:
            yield from self._start()
        if converted.schedule_power == 1:
            yield "Keep your schedule."
        else:
            yield f"Raise the multipliers of your schedule to the power {format_number(converted.schedule_power)}."
        if "unit_grad_norm" in (*self.rule.needs, *converted.rule.needs) and len(self.layers) == 1:
            yield "The gradient norm differs between layers, so give that of each layer: --unit-grad-norm 0.19,0.06."
        if self.rule.whole_matrix != converted.rule.whole_matrix and len(self.layers) == 1:
            yield "The answer is for matrices of this shape."
        yield from self._muon()
        yield self.trial

    def _start(self) -> Iterator[str]:
        """Yield the initial norms that the answer assumes."""
        if self.rule.keeps_norm:
            yield "Norms keep their initial values."
            return
        yield f"Norms keep their initial values, and the answer assumes those at which {self.rule.name} settles."
        if self.rule.needs == ("fan_in",):
            entry = float(self.rule.equilibrium(fan_in=1.0).norm or 0.0)
            below = entry / limit.GPT2_STD
            yield f"There the RMS entry of a weight is {setting(entry)}."
            if below > limit.SMALL_START:
                times = format_number(below, 2)
                yield f"A GPT that starts at {limit.GPT2_STD} keeps weights {times} times smaller, and loses."
        yield "Bring norms there by gyroscope.optim.to_equilibrium_ before you change the optimizer."

    def _muon(self) -> Iterator[str]:
        """Yield the conventions of Muon's learning rate, and what stays with the tuned optimizer."""
        new = self.match.rule
        convention = new.settings.get("adjust_lr_fn", "")
        if not convention or "adjust_lr_fn" in self.rule.settings:
            return
        if convention in MUON_CONVENTIONS:
            other = next(name for name in MUON_CONVENTIONS if name != convention)
            yield f"This lr is for {MUON_CONVENTIONS[convention]}."
            yield f"For {MUON_CONVENTIONS[other]} {self._muon_settings(new, convention, other)}."
        yield f"Embeddings, the head, biases and gains stay with {self.rule.name} at your settings."

    def _muon_settings(self, new: UpdateRule, convention: str, other: str) -> str:
        """Return the settings in the other convention, which have the same step and the same decay."""
        if len(self.layers) > 1:
            return f"add --set adjust_lr_fn={other}"
        rows, columns = self.layers[0].matrix
        factor = ADJUSTMENTS[convention](rows, columns) / ADJUSTMENTS[other](rows, columns)
        return f"use lr {setting(new.lr * factor)} and weight_decay {setting(new.weight_decay / factor)}"

    @property
    def trial(self) -> str:
        """The result of our trial of the conversion."""
        names = (self.rule.name, self.match.rule.name)
        trial = next((each for each in read_trials() if (each["from"], each["to"]) == names), None)
        if trial is None:
            return "No trial of ours supports this conversion yet."
        ends = [
            f"{abs(nats):g} {'below' if nats < 0 else 'above'} on {network}" for network, nats in trial["nats"].items()
        ]
        # The unit and the reference are written once.
        ends[0] = ends[0].replace(" ", " nats ", 1).replace(" on ", " tuned AdamW on ")
        return f"In our trial it ended {join_words(ends)} (n = {trial['n']})."

    @property
    def layer_table(self) -> Table:
        """The given facts about each layer and its settings."""
        names = [name for name in INPUTS if any(name in _given(weights) for weights in self.layers)]
        rows = []
        for weights, match in zip(self.layers, self.matches, strict=True):
            given = _given(weights)
            # A shape is a tuple, and the others are numbers.
            inputs = ["×".join(f"{value:g}" for value in np.atleast_1d(given.get(name, ()))) for name in names]
            rows.append([*inputs, setting(match.rule.lr), setting(match.rule.weight_decay)])
        return Table([*names, "lr", "weight decay"], rows)

    @property
    def schedule_rows(self) -> list[tuple[str, float, float]]:
        """Share of the run, multiplier of the tuned schedule, and of the converted one."""
        if self.schedule is None or self.match.schedule_power == 1:
            return []
        steps = np.array([int(share * self.schedule.steps) for share in SHARES])
        before = self.schedule(steps)
        after = self.match.schedule(self.schedule)(steps)
        shares = (f"{100 * share:g} %" for share in SHARES)
        return [(share, float(old), float(new)) for share, old, new in zip(shares, before, after, strict=True)]

    def json(self) -> str:
        """Return settings, what is kept, ratios and the schedule as JSON."""
        return dumps(
            {
                "from": {"name": self.rule.name, **self.rule.settings},
                "to": {"name": self.match.rule.name, **_match(self.match)},
                "inputs": {name: getattr(self.layers[0], name) for name in INPUTS},
                "layers": [
                    {**_given(weights), **_match(match)}
                    for weights, match in zip(self.layers, self.matches, strict=True)
                ],
                "schedule": [
                    {"share": share, "multiplier": old, "converted": new} for share, old, new in self.schedule_rows
                ],
                "sentences": [self.answer, *self.sentences()],
            }
        )


def read_trials() -> list[dict[str, Any]]:
    """Return the trials of conversions: both optimizers, the number of seeds, and nats above tuned AdamW by network."""
    return list(json.loads(files("gyroscope.report").joinpath(TRIALS_FILE).read_text(encoding="utf-8")))


def _match(match: Match) -> dict[str, Any]:
    return {
        "settings": match.rule.settings,
        "kept": match.kept,
        "ratios": match.ratios,
        "schedule_power": match.schedule_power,
    }


def _given(weights: Weights) -> dict[str, Any]:
    inputs = {name: getattr(weights, name) for name in INPUTS}
    return {name: value for name, value in inputs.items() if value is not None}
