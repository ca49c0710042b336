"""An autopsy as plain data: what its text and its page show, and what `gyroscope autopsy --json` prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, final

from gyroscope._json import dumps
from gyroscope.advice.findings import Finding
from gyroscope.advice.layer_view import CheckpointView, DriftView
from gyroscope.advice.phrases import rule_text, sig
from gyroscope.advice.thresholds import MIN_SHOWN_STANDARD_ERRORS, MIN_SIGNAL_RATIO
from gyroscope.theory.law import over

HEADER = ("layer", "rotation", "÷ pred.", "norm", "÷ pred.", "spread", "κ²", "s", "λ_u/λ", "tangent", "dead")
DRIFT_HEADER = ("layer", "turned by", "norm ×", "decay", "÷ expected", "memory")
# What a reader of the table may ask.
LEGEND = (
    "rotation of the last step in radians (~ an estimate) and norm after it, each also over that of equilibrium; "
    "spread of the neurons' rotation over that of noise; κ²: signal over noise in one batch; s: mean square of updates "
    "over that of noise; λ_u/λ: radial gradient over weight decay, ± where it may be 0"
)
# After a rule whose angle a rotational optimizer takes.
NORMS_HELD = ", its angle at norms that are held"
MORE = (
    "; tangent: part of the push along the weights that gradients orthogonal to them explain; dead: without a gradient"
)


@final
@dataclass(frozen=True)
class AutopsyData:
    """All that is shown of an autopsy: layers in the model's order, findings worst first."""

    name: str
    step: int | None
    layers: Sequence[CheckpointView]
    findings: Sequence[Finding]
    drifts: Sequence[DriftView] = ()

    @property
    def settings(self) -> list[str]:
        """Each rule with its settings, at the rates of the last step."""
        rules = [layer.rule for layer in self.layers if layer.rule is not None]
        return list(dict.fromkeys(rule_text(rule.plain) + NORMS_HELD * rule.keeps_norm for rule in rules))

    @property
    def title(self) -> str:
        """Of a page."""
        after = f" after {self.step:,} steps" if self.step is not None else ""
        return f"Autopsy: {self.name}{after}"


def layer_row(layer: CheckpointView) -> list[str]:
    """A layer under `HEADER`."""
    estimate = "" if layer.exact or not isfinite(layer.rotation) else "~"
    decay = layer.rule.weight_decay if layer.rule is not None else float("nan")
    share = layer.explained_share
    return [
        layer.name,
        estimate + _number(layer.rotation),
        _number(layer.rotation_ratio),
        _number(layer.norm),
        _number(layer.norm_ratio),
        _number(layer.spread, 2),
        # Below the threshold an estimate is scatter, and would be read as a number.
        f"< {MIN_SIGNAL_RATIO:g}" if layer.signal_ratio < MIN_SIGNAL_RATIO else _number(layer.signal_ratio, 2),
        _number(layer.alignment, 2),
        _lambda(layer, decay),
        f"{100 * share:.0f} %" if isfinite(share) else "–",
        str(layer.dead) if layer.dead else "",
    ]


def _lambda(layer: CheckpointView, decay: float) -> str:
    """λ_u/λ; of a value within two standard errors of 0 the error alone, for one step says no more."""
    value = float(over(layer.lambda_u, decay))
    error = float(over(layer.lambda_u_error, decay))
    if not isfinite(value):
        return "–"
    return sig(value, 2) if abs(value) > MIN_SHOWN_STANDARD_ERRORS * error else f"± {sig(error, 1)}"


def drift_row(drift: DriftView) -> list[str]:
    """A layer under `DRIFT_HEADER`."""
    ratio = float(over(drift.effective_decay, drift.expected_decay))
    values = (drift.angle, drift.norm_ratio, drift.effective_decay, ratio, drift.memory)
    return [drift.name, *(_number(value) for value in values)]


def _number(value: float, digits: int = 3) -> str:
    return sig(value, digits) if isfinite(value) else "–"


def autopsy_json(autopsy: AutopsyData) -> str:
    """Settings, findings, layers with every vector's rotation, and drifts; what is not finite becomes null."""
    return dumps(
        {
            "name": autopsy.name,
            "step": autopsy.step,
            "verdict": list(autopsy.findings),
            "layers": [_layer(layer) for layer in autopsy.layers],
            "drifts": [{**vars(drift), "memory": drift.memory} for drift in autopsy.drifts],
        }
    )


def _layer(layer: CheckpointView) -> dict[str, Any]:
    values = {**vars(layer), "rule": None}
    if layer.rule is not None:
        rule = layer.rule.plain
        values["rule"] = {"name": rule.name, **rule.settings, "keeps_norm": layer.keeps_norm}
    derived = ("rotation", "rotation_ratio", "norm_ratio", "spread", "explained_share")
    return {**values, **{name: getattr(layer, name) for name in derived}}
