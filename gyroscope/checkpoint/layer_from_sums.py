"""A layer of a checkpoint in numbers: sums over its vectors, and the equilibrium of its rule."""

from dataclasses import replace
from typing import Any

import numpy as np

from gyroscope.checkpoint.checkpoint_layer import NAN, CheckpointLayer, mean_known
from gyroscope.checkpoint.files.formats import ParameterState
from gyroscope.checkpoint.last_step.group_step import GroupStep
from gyroscope.checkpoint.last_step.inverse_step import StepSums, VectorMeasurement, radial_decay
from gyroscope.model.measured import WatchedLayer
from gyroscope.theory import UpdateRule, signal
from gyroscope.theory.law import safe_divide


def layer_from_sums(
    parameter: ParameterState,
    watched: WatchedLayer,
    measured: VectorMeasurement,
    group: GroupStep | None,
    steps: int | None,
) -> CheckpointLayer:
    """Return all numbers of a layer after `steps` steps. Without a group only the norm is known."""
    shape = parameter.weight.shape
    layer = CheckpointLayer(
        watched.name,
        shape,
        parameter.group,
        watched.vector,
        watched.stop - watched.start,
        watched.split.fan_in(shape),
        norm=mean_known(measured.sums.ww) ** 0.5,
        non_finite=int(np.count_nonzero(measured.non_finite)),
    )
    if group is None:
        return layer
    layer = replace(
        layer,
        rule=group.rule,
        exact=group.update.exact,
        error=group.update.error(shape),
        peak_lr=group.rates.peak,
        options=_options(group),
        **_signal(parameter, measured, group),
        **_equilibrium(group, measured, layer.fan_in, shape, steps),
    )
    if group.update.direction is None and group.rule is not None and group.rule.whole_matrix:
        measured = replace(measured, sums=_muon_sums(measured.sums, group.rule, shape))
    if not np.isfinite(measured.sums.uu).any() or not group.rates.last > 0:
        return layer
    return replace(layer, **_step(group, measured))


def _options(group: GroupStep) -> dict[str, Any]:
    """Return the options of a group, with the name of its optimizer as a run stores it."""
    name = "" if group.spec is None else group.spec.path.rpartition(".")[2]
    return {**group.settings, **({"optimizer": name} if name else {})}


def _signal(parameter: ParameterState, measured: VectorMeasurement, group: GroupStep) -> dict[str, Any]:
    """Return s of the layer, and the number of vectors without a gradient."""
    if group.update.adam_betas is None or not np.isfinite(measured.moments[0]).any():
        return {"dead": int(np.count_nonzero(measured.sums.uu == 0))}
    beta1 = group.update.adam_betas[0]
    first, second = map(float, np.nansum(measured.moments, axis=1))
    dead = int(np.count_nonzero(measured.moments[1] == 0))
    if not second > 0:
        return {"dead": dead}
    return {
        "alignment": signal.alignment(first, second, beta1, parameter.step),
        "dead": dead,
    }


def _equilibrium(
    group: GroupStep, measured: VectorMeasurement, fan_in: int, shape: tuple[int, ...], steps: int | None
) -> dict[str, Any]:
    """Return the rotation at the last rate, norm and memory at the peak rate, and the run length."""
    weights: dict[str, Any] = {
        "fan_in": fan_in,
        "unit_grad_norm": _unit_grad_norm(group, measured),
        "shape": shape if len(shape) >= 2 else None,
    }
    values: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        if group.rule is not None:
            values["predicted_rotation"] = group.rule.equilibrium(**weights).angular_update
        if group.peak_rule is not None:
            at_peak = group.peak_rule.equilibrium(**weights)
            values |= {"predicted_norm": at_peak.norm, "timescale": at_peak.timescale}
    values = {name: NAN if value is None else float(value) for name, value in values.items()}
    rates = group.rates
    if steps is not None and values.get("timescale", NAN) > 0:
        # Decay per step is proportional to the learning rate.
        values["run_length"] = steps * float(safe_divide(rates.mean, rates.peak)) / values["timescale"]
        values["run_length_known"] = rates.mean_known
    return values


def _unit_grad_norm(group: GroupStep, measured: VectorMeasurement) -> float | None:
    """Return RMS gradient norm times weight norm from the optimizer's state, or None if it is unknown.

    Adam's v has it, including L2 if that is in the gradient. SGD's buffer has E‖g‖²/(1-α²) if gradients are white. For
    other gradients it has SMD's h, on which the norm depends.
    """
    ww = mean_known(measured.sums.ww)
    coupled = 0.0 if group.rule is None or group.rule.is_decoupled else float(group.settings.get("weight_decay") or 0.0)
    if group.update.adam_betas is not None:
        square = mean_known(measured.moments[1]) - coupled**2 * ww
    elif "momentum_buffer" in group.update.keys:
        momentum = float(group.settings["momentum"])
        share = 1 - float(group.settings.get("dampening") or 0.0)
        square = (1 - momentum**2) * mean_known(measured.sums.uu) / share**2
    else:
        return None
    product = square * ww
    return product**0.5 if np.isfinite(product) and product > 0 else None


def _muon_sums(sums: StepSums, rule: UpdateRule, shape: tuple[int, ...]) -> StepSums:
    """Return sums for Muon's update, which has the length of its rule and is assumed to be orthogonal to the weight."""
    update_rms = rule.equilibrium(shape=shape).update_rms
    assert update_rms is not None
    return StepSums(sums.ww, np.zeros_like(sums.ww), np.full_like(sums.ww, (float(update_rms) / rule.lr) ** 2))


def _step(group: GroupStep, measured: VectorMeasurement) -> dict[str, Any]:
    """Return rotation, forces and λ_u of the last step."""
    lr = group.rates.last
    update = group.update
    values: dict[str, Any] = {"rotations": update.rotations(measured)}
    # The formulas hold if the update is the momentum itself, with decoupled decay or L2.
    if update.exact and group.rule is not None and group.rule.alignment_power is not None:
        decay = lr * update.decay
        total = measured.sums.before(lr, decay).total()
        entries = len(measured.sums.ww) * measured.fan_in
        settings = (entries, lr, decay, group.rule.weight_decay, group.rule.momentum_factor)
        values["lambda_u"], values["lambda_u_error"] = radial_decay(total, *settings)
    return values
