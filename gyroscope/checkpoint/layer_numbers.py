"""A layer of a checkpoint in numbers: sums over its vectors beside the equilibrium of its rule."""

from dataclasses import replace
from typing import Any

import numpy as np

from gyroscope._types import Array
from gyroscope.checkpoint.checkpoint_layer import NAN, CheckpointLayer
from gyroscope.checkpoint.files.formats import ParameterState
from gyroscope.checkpoint.last_step.group_step import GroupStep
from gyroscope.checkpoint.last_step.inverse_step import StepSums, forces, radial_decay
from gyroscope.checkpoint.last_step.vector_measurement import VectorMeasurement
from gyroscope.model.measured import WatchedLayer
from gyroscope.theory import UpdateRule, signal


def layer_numbers(
    parameter: ParameterState, watched: WatchedLayer, measured: VectorMeasurement, group: GroupStep | None
) -> CheckpointLayer:
    """All that is known of a layer; without a group its norm alone."""
    shape = parameter.weight.shape
    fan_in = watched.split.fan_in(shape)
    sums = measured.sums
    layer = CheckpointLayer(
        watched.name,
        shape,
        parameter.group,
        watched.vector,
        watched.stop - watched.start,
        fan_in,
        norm=_mean(sums.ww) ** 0.5,
        non_finite=int(np.count_nonzero(measured.non_finite)),
    )
    if group is None:
        return layer
    lr = group.rate.value
    layer = replace(
        layer,
        rule=group.rule,
        exact=group.update.exact,
        error=group.update.error(shape),
        **_signal(parameter, measured, group),
    )
    if group.rule is not None:
        layer = replace(layer, **_equilibrium(group, measured, fan_in, shape))
    if group.update.direction is None and group.rule is not None and group.rule.whole_matrix:
        measured = replace(measured, sums=_muon_sums(sums, group.rule, shape))
    if not np.isfinite(measured.sums.uu).any() or not lr > 0:
        return layer
    return replace(layer, **_step(group, measured))


def _signal(parameter: ParameterState, measured: VectorMeasurement, group: GroupStep) -> dict[str, Any]:
    """κ² and s of the layer, and its vectors that have had no gradient."""
    if group.update.adam_betas is None or not np.isfinite(measured.first).any():
        momentum_gone = np.isfinite(measured.sums.uu) & (measured.sums.uu == 0)
        return {"dead": int(np.count_nonzero(momentum_gone))}
    beta1 = group.update.adam_betas[0]
    first = float(np.nansum(measured.first))
    second = float(np.nansum(measured.second))
    dead = int(np.count_nonzero(measured.second == 0))
    if not second > 0:
        return {"dead": dead}
    return {
        "signal_ratio": signal.signal_ratio(first, second, beta1, parameter.step),
        "alignment": signal.alignment(first, second, beta1, parameter.step),
        "dead": dead,
    }


def _equilibrium(group: GroupStep, measured: VectorMeasurement, fan_in: int, shape: tuple[int, ...]) -> dict[str, Any]:
    assert group.rule is not None
    with np.errstate(all="ignore"):
        eq = group.rule.equilibrium(
            fan_in=fan_in, unit_grad_norm=_unit_grad_norm(group, measured), shape=shape if len(shape) >= 2 else None
        )
    values = {"predicted_rotation": eq.angular_update, "predicted_norm": eq.norm, "timescale": eq.timescale}
    return {name: NAN if value is None else float(value) for name, value in values.items()}


def _unit_grad_norm(group: GroupStep, measured: VectorMeasurement) -> float | None:
    """RMS gradient norm times weight norm, from what the state remembers of gradients; None where it does not.

    Adam's v has it, together with L2 where that is in the gradient; Adam-S's is a mean over the entries of a vector.
    SGD's buffer has E‖g‖²/(1-α²) of white gradients, and of others what SMD's h is, which is what the norm depends on.
    """
    ww = _mean(measured.sums.ww)
    coupled = 0.0 if group.rule is None or group.rule.is_decoupled else float(group.settings.get("weight_decay") or 0.0)
    if group.update.adam_betas is not None:
        square = _mean(measured.second) - coupled**2 * ww
    elif "exp_avg_sq" in measured.kept:
        v = measured.kept["exp_avg_sq"] / (1 - float(group.settings["betas"][1]) ** measured.steps)
        square = measured.fan_in * _mean(v) - coupled**2 * ww
    elif "momentum_buffer" in group.update.keys:
        momentum = float(group.settings["momentum"])
        share = 1 - float(group.settings.get("dampening") or 0.0)
        square = (1 - momentum**2) * _mean(measured.sums.uu) / share**2
    else:
        return None
    product = square * ww
    return product**0.5 if np.isfinite(product) and product > 0 else None


def _muon_sums(sums: StepSums, rule: UpdateRule, shape: tuple[int, ...]) -> StepSums:
    """Muon's update has the length of its rule; where it points is not known, and nearly across."""
    update_rms = rule.equilibrium(shape=shape).update_rms
    assert update_rms is not None
    return StepSums(sums.ww, np.zeros_like(sums.ww), np.full_like(sums.ww, (float(update_rms) / rule.lr) ** 2))


def _step(group: GroupStep, measured: VectorMeasurement) -> dict[str, Any]:
    """Rotation, forces and λ_u of the last step."""
    lr = group.rate.value
    update = group.update
    values: dict[str, Any] = {
        "rotations": update.rotations(measured, lr),
        "rotation_range": tuple(_mean(update.rotations(measured, rate)) for rate in (group.rate.low, group.rate.high)),
    }
    # The formulas are of an update that is the momentum itself, with decay beside it or within.
    momentum_alone = group.update.exact and group.rule is not None and group.rule.alignment_power is not None
    if momentum_alone and group.rule is not None:
        decay = lr * update.decay
        total = measured.sums.before(lr, decay).total()
        settings = (lr, decay, group.rule.weight_decay, group.rule.momentum_factor)
        entries = len(measured.sums.ww) * measured.fan_in
        radial = radial_decay(total, entries, *settings)
        values |= {**vars(forces(total, *settings)), "lambda_u": radial.value, "lambda_u_error": radial.error}
    return values


def _mean(values: Array) -> float:
    """Mean over the vectors that have a value; NaN where none has."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else NAN
