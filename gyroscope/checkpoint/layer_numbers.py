"""A layer of a checkpoint in numbers: sums over its vectors, and the equilibrium of its rule."""

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
from gyroscope.theory import Equilibrium, UpdateRule, signal
from gyroscope.theory.law import Weights, safe_divide


def layer_numbers(
    parameter: ParameterState,
    watched: WatchedLayer,
    measured: VectorMeasurement,
    group: GroupStep | None,
    steps: int | None,
) -> CheckpointLayer:
    """Return all numbers of a layer after so many steps. Without a group only the norm is known."""
    shape = parameter.weight.shape
    layer = CheckpointLayer(
        watched.name,
        shape,
        parameter.group,
        watched.vector,
        watched.stop - watched.start,
        watched.split.fan_in(shape),
        norm=_mean(measured.sums.ww) ** 0.5,
        non_finite=int(np.count_nonzero(measured.non_finite)),
    )
    if group is None:
        return layer
    layer = replace(
        layer,
        rule=group.rule,
        exact=group.update.exact,
        error=group.update.error(shape),
        peak_lr=group.run_rates.peak,
        sets_imbalance=group.settings.get("imbalance") is not None,
        **_signal(parameter, measured, group),
        **_equilibrium(group, measured, layer.fan_in, shape, steps),
    )
    if group.update.direction is None and group.rule is not None and group.rule.whole_matrix:
        measured = replace(measured, sums=_muon_sums(measured.sums, group.rule, shape))
    if not np.isfinite(measured.sums.uu).any() or not group.rate.value > 0:
        return layer
    return replace(layer, **_step(group, measured))


def _signal(parameter: ParameterState, measured: VectorMeasurement, group: GroupStep) -> dict[str, Any]:
    """Return κ² and s of the layer, and the number of vectors without a gradient."""
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


def _equilibrium(
    group: GroupStep, measured: VectorMeasurement, fan_in: int, shape: tuple[int, ...], steps: int | None
) -> dict[str, Any]:
    """Return the rotation at the last rate, norm and memory at the peak rate, and the run length."""
    weights = Weights(fan_in, _unit_grad_norm(group, measured), shape if len(shape) >= 2 else None)
    values: dict[str, Any] = {}
    if group.rule is not None:
        values["predicted_rotation"] = _settled(group.rule, weights).angular_update
    if group.peak_rule is not None:
        at_peak = _settled(group.peak_rule, weights)
        values |= {"predicted_norm": at_peak.norm, "timescale": at_peak.timescale}
    values = {name: NAN if value is None else float(value) for name, value in values.items()}
    rates = group.run_rates
    if steps is not None and values.get("timescale", NAN) > 0:
        # Decay per step is proportional to the learning rate.
        values["run_length"] = steps * float(safe_divide(rates.mean, rates.peak)) / values["timescale"]
        values["run_length_known"] = rates.certain
    return values


def _settled(rule: UpdateRule, weights: Weights) -> Equilibrium:
    with np.errstate(all="ignore"):
        return rule.equilibrium(fan_in=weights.fan_in, unit_grad_norm=weights.unit_grad_norm, shape=weights.shape)


def _unit_grad_norm(group: GroupStep, measured: VectorMeasurement) -> float | None:
    """Return RMS gradient norm times weight norm from the optimizer's state, or None if it is unknown.

    Adam's v has it, including L2 if that is in the gradient. Adam-S's v is a mean over the entries of a vector. SGD's
    buffer has E‖g‖²/(1-α²) of white gradients. Of other gradients it has SMD's h, on which the norm depends.
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
    """Return sums for Muon's update, which has the length of its rule and is taken to be orthogonal to the weight."""
    update_rms = rule.equilibrium(shape=shape).update_rms
    assert update_rms is not None
    return StepSums(sums.ww, np.zeros_like(sums.ww), np.full_like(sums.ww, (float(update_rms) / rule.lr) ** 2))


def _step(group: GroupStep, measured: VectorMeasurement) -> dict[str, Any]:
    """Return rotation, forces and λ_u of the last step."""
    lr = group.rate.value
    update = group.update
    values: dict[str, Any] = {
        "rotations": update.rotations(measured, lr),
        "rotation_range": tuple(_mean(update.rotations(measured, rate)) for rate in (group.rate.low, group.rate.high)),
    }
    # The formulas hold if the update is the momentum itself, with decay beside it or within.
    momentum_alone = group.update.exact and group.rule is not None and group.rule.alignment_power is not None
    if momentum_alone and group.rule is not None:
        decay = lr * update.decay
        total = measured.sums.before(lr, decay).total()
        settings = (lr, decay, group.rule.weight_decay, group.rule.momentum_factor)
        entries = len(measured.sums.ww) * measured.fan_in
        lambda_u, lambda_u_error = radial_decay(total, entries, *settings)
        values |= {**vars(forces(total, entries, *settings)), "lambda_u": lambda_u, "lambda_u_error": lambda_u_error}
    return values


def _mean(values: Array) -> float:
    """Return the mean over the vectors that have a value, or NaN if none has."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else NAN
