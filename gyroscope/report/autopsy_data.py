"""An autopsy as plain data: what its text and its page show, and what `gyroscope autopsy --json` prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, TypeAlias, final

from gyroscope._json import dumps
from gyroscope.advice.findings import Findings
from gyroscope.advice.judgements.checkpoint_drift import LayerDrift
from gyroscope.advice.phrases import rule_text
from gyroscope.advice.thresholds import MIN_SHOWN_STANDARD_ERRORS
from gyroscope.report.layer_table import UNKNOWN, Column, LayerTable, heading, known, layer_table
from gyroscope.theory.law import safe_divide

# `gyroscope.checkpoint.checkpoint_layer.CheckpointLayer`, whose room is above this one.
CheckpointLayer: TypeAlias = Any

# Added to a rule whose angle a rotational optimizer uses.
NORMS_HELD = ", its angle at fixed norms"


@final
@dataclass(frozen=True)
class AutopsyData:
    """All that is shown of an autopsy: layers in the model's order, findings worst first."""

    name: str
    step: int | None
    layers: Sequence[CheckpointLayer]
    findings: Findings
    drifts: Sequence[LayerDrift] = ()

    @property
    def table(self) -> LayerTable:
        """The layers by family."""
        state = Column(
            "state", lambda _: nan, lambda layer, _: layer.facts(self.step).state, help="of norm and rotation"
        )
        return layer_table(self.layers, (*COLUMNS, state), _distance)

    @property
    def drift_table(self) -> LayerTable:
        """How far the layers moved since the first file, by family."""
        return layer_table(self.drifts, DRIFT_COLUMNS, lambda drift: drift.angle)

    @property
    def settings(self) -> list[str]:
        """Each rule with its settings, at the rates of the last step."""
        rules = [layer.rule for layer in self.layers if layer.rule is not None]
        return list(dict.fromkeys(rule_text(rule.plain) + NORMS_HELD * rule.keeps_norm for rule in rules))

    @property
    def title(self) -> str:
        """Title of a page."""
        after = f" after {self.step:,} steps" if self.step is not None else ""
        return f"Autopsy: {self.name}{after}"


def _rotation(layer: CheckpointLayer, digits: int) -> str:
    estimate = "" if layer.exact or not isfinite(layer.rotation) else "~"
    return estimate + known(layer.rotation, digits)


def _over_decay(layer: CheckpointLayer, value: float) -> float:
    return float(safe_divide(value, layer.rule.weight_decay)) if layer.rule is not None else nan


def _lambda(layer: CheckpointLayer, _: int) -> str:
    """Return λ_u/λ, or only its error if it is within two standard errors of 0."""
    value = _over_decay(layer, layer.lambda_u)
    error = _over_decay(layer, layer.lambda_u_error)
    if not isfinite(value):
        return UNKNOWN
    return known(value, 2) if abs(value) > MIN_SHOWN_STANDARD_ERRORS * error else f"± {known(error, 1)}"


def _distance(layer: CheckpointLayer) -> float:
    ratio = layer.rotation_ratio
    return max(ratio, 1 / ratio) if ratio > 0 else nan


COLUMNS = (
    Column(
        "rotation,\nrad", lambda layer: layer.rotation, _rotation, help="of the last step in radians (~ is an estimate)"
    ),
    Column("÷ equi-\nlibrium", lambda layer: layer.rotation_ratio, help="rotation over that of equilibrium"),
    Column("norm", lambda layer: layer.norm, help="after the step"),
    Column("÷ equi-\nlibrium", lambda layer: layer.norm_ratio, help="norm over that of equilibrium"),
    Column("spread", lambda layer: layer.spread, help="of the neurons' rotation over that of noise"),
    Column("s", lambda layer: layer.alignment, help="mean square of updates over that of noise"),
    Column(
        "λ_u/λ",
        lambda layer: _over_decay(layer, layer.lambda_u),
        _lambda,
        help="radial gradient over weight decay (± if it may be 0)",
    ),
    Column("dead", lambda layer: layer.dead or nan, is_step=True, help="vectors without a gradient"),
)
# The legend of the table. A ratio has the name of the column before it.
LEGEND = " ".join(f"{heading(column.title)}: {column.help}." for column in COLUMNS if not column.title.startswith("÷"))
DRIFT_COLUMNS = (
    Column("rotated\nby, rad", lambda drift: drift.angle, help="angle between the weights of the two files"),
    Column("norm ×", lambda drift: drift.norm_ratio, help="norm over that in the first file"),
    Column(
        "decay", lambda drift: drift.effective_decay, help="-ln of the share of the first file's weights that is left"
    ),
    Column(
        "÷ ex-\npected",
        lambda drift: float(safe_divide(drift.effective_decay, drift.expected_decay)),
        help="decay over that of the settings",
    ),
    Column("memory,\nsteps", lambda drift: drift.memory, infinite="∞", help="after which a direction is forgotten"),
)


def autopsy_json(autopsy: AutopsyData) -> str:
    """Return settings, findings, layers with every vector's rotation, and drifts. Non-finite numbers become null."""
    return dumps(
        {
            "name": autopsy.name,
            "step": autopsy.step,
            "summary": autopsy.findings.summary,
            "changes": autopsy.findings.changes,
            "findings": list(autopsy.findings),
            "layers": [_layer(layer, autopsy.step) for layer in autopsy.layers],
            "drifts": [{**vars(drift), "memory": drift.memory} for drift in autopsy.drifts],
        }
    )


def _layer(layer: CheckpointLayer, step: int | None) -> dict[str, Any]:
    values = {**vars(layer), "rule": None, "state": layer.facts(step).state}
    del values["options"]
    if layer.rule is not None:
        rule = layer.rule.plain
        values["rule"] = {"name": rule.name, **rule.settings, "keeps_norm": layer.keeps_norm}
    derived = ("rotation", "rotation_ratio", "norm_ratio", "spread")
    return {**values, **{name: getattr(layer, name) for name in derived}}
