"""A checkpoint to an autopsy: every layer in its last step, what it means, and how it is shown."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from rich.console import Console

from gyroscope._checks import check_betas, check_fraction, check_non_negative, check_positive
from gyroscope._files import write_text
from gyroscope._types import Array
from gyroscope.advice import Diagnosis
from gyroscope.advice.checkpoint_drift import LayerDrift, drift_findings
from gyroscope.advice.checkpoint_findings import checkpoint_findings
from gyroscope.advice.checkpoint_layer import NAN, CheckpointLayer
from gyroscope.advice.phrases import sig
from gyroscope.checkpoint.drift import drifts
from gyroscope.checkpoint.formats import Checkpoint, ParameterState, open_checkpoint
from gyroscope.checkpoint.last_rates import Rate, last_rate
from gyroscope.checkpoint.last_step import StepSums, angles, forces, radial_decay
from gyroscope.checkpoint.layers_by_name import checkpoint_layers
from gyroscope.checkpoint.measuring import VectorMeasurement, measure
from gyroscope.checkpoint.saved_optimizers import NAMES, LastUpdate, last_update, optimizer_name, rule_of_group
from gyroscope.model.measured import WatchedLayer
from gyroscope.render.autopsy_data import AutopsyData, autopsy_json
from gyroscope.render.autopsy_page import autopsy_page
from gyroscope.render.autopsy_text import AutopsyText
from gyroscope.theory import UpdateRule, signal

# Columns of a printed autopsy.
WIDTH = 140
Source = str | Path | Mapping[str, Any]


@final
@dataclass(frozen=True)
class Autopsy:
    """What a checkpoint tells of the run that wrote it, made by `gyro.autopsy`. Prints as text.

    name        of the file, and of those before it
    layers      by name, in the model's order
    step        steps that were taken; None where the file does not say
    drifts      of the layers since the file before, where there is one
    notes       what was assumed, as sentences without a full stop
    missing     layers of which something is unknown, and why
    batch_size  examples of one step, where given
    """

    name: str
    layers: Mapping[str, CheckpointLayer]
    step: int | None = None
    drifts: tuple[LayerDrift, ...] = ()
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] | None = None
    batch_size: float | None = None

    @cached_property
    def findings(self) -> Diagnosis:
        """What to think of it, worst first."""
        of_one = checkpoint_findings(
            list(self.layers.values()),
            step=self.step,
            batch_size=self.batch_size,
            notes=self.notes,
            missing=self.missing,
        )
        return Diagnosis([*of_one, *drift_findings(self.drifts)])

    def text(self, explain: bool = False) -> AutopsyText:
        """The autopsy for a rich console; `explain` adds the formula behind every sentence."""
        return AutopsyText(self._data, explain)

    def page(self) -> str:
        """The autopsy as the HTML of one page that opens from disk."""
        return autopsy_page(self._data)

    def html(self, path: str | Path) -> Path:
        """Write that page, and the directories above it."""
        write_text(path, self.page())
        return Path(path)

    def json(self) -> str:
        """The autopsy as JSON, for programs."""
        return autopsy_json(self._data)

    def __str__(self) -> str:
        buffer = io.StringIO()
        Console(file=buffer, width=WIDTH, highlight=False).print(self.text())
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    @property
    def _data(self) -> AutopsyData:
        return AutopsyData(self.name, self.step, list(self.layers.values()), self.findings, list(self.drifts))


def autopsy(
    *checkpoints: Source,
    optimizer: str | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    batch_size: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Autopsy:
    """What weights and optimizer state tell of the last step, layer by layer and neuron by neuron, from files alone.

    The rotation of the last step is exact for AdamW, Adam and SGD with momentum, and an estimate for Nesterov's
    momentum, Lion and Muon. Nothing in a file is executed. Weights and optimizer state are matched by name, or by order
    and shape; which tensors have vectors, their names and shapes decide (`gyroscope.checkpoint.layers_by_name`).

    Args:
        checkpoints: a path, or a dictionary of state dicts such as {"model": …, "optimizer": …}. Of several, oldest
            first, the last is examined, and compared with the first.
        optimizer: adamw, adam, sgd, lion, muon or nadam, where the file leaves it open.
        lr: learning rate of the last step, of the first parameter group; the others keep their proportions.
        weight_decay: as torch has it, where the file does not say.
        betas: the same of Adam's and Lion's averages.
        momentum: the same of SGD and Muon.
        batch_size: examples of one step, for the noise scale.
        progress: called with the parameters done and those there are.
    """
    if not checkpoints:
        raise ValueError("no checkpoint: name a file, a folder or a dictionary of state dicts")
    asked = _checked(optimizer, lr, weight_decay, betas, momentum, batch_size)
    opened = [open_checkpoint(source) for source in checkpoints]
    last = opened[-1]
    examined = _examine(last, asked, progress)
    name = " → ".join(checkpoint.name for checkpoint in opened)
    moved = drifts(opened[0], last, examined.layers) if len(opened) > 1 else ()
    return replace(examined, name=name, drifts=moved, batch_size=batch_size)


@final
@dataclass(frozen=True)
class Asked:
    """What the user says of a checkpoint."""

    optimizer: str | None
    lr: float | None
    settings: Mapping[str, Any]


def _checked(
    optimizer: str | None,
    lr: float | None,
    weight_decay: float | None,
    betas: tuple[float, float] | None,
    momentum: float | None,
    batch_size: float | None,
) -> Asked:
    if optimizer is not None and optimizer not in NAMES:
        raise ValueError(f"optimizer={optimizer!r} is unknown: choose one of {', '.join(NAMES)}")
    if lr is not None:
        check_positive("lr", lr)
    if weight_decay is not None:
        check_non_negative("weight_decay", weight_decay)
    if betas is not None:
        check_betas(betas)
    if momentum is not None:
        check_fraction("momentum", momentum)
    if batch_size is not None:
        check_positive("batch_size", batch_size)
    given = {"weight_decay": weight_decay, "betas": betas, "momentum": momentum}
    return Asked(optimizer, lr, {key: value for key, value in given.items() if value is not None})


@final
@dataclass(frozen=True)
class GroupStep:
    """The last step of a parameter group: its settings, rate, rule, and how the step is taken back."""

    settings: Mapping[str, Any]
    rate: Rate
    rule: UpdateRule | None
    update: LastUpdate

    def decay(self, lr: float) -> float:
        """Fraction of the weight that the step took away itself; 0 where decay is part of the update."""
        is_decoupled = self.rule is not None and self.rule.is_decoupled
        return lr * float(self.settings.get("weight_decay") or 0.0) if is_decoupled else 0.0


def _examine(checkpoint: Checkpoint, asked: Asked, progress: Callable[[int, int], None] | None) -> Autopsy:
    groups = _groups(checkpoint, asked)
    whole = [group.rule is not None and group.rule.whole_matrix for group in groups]
    settings = [group.settings for group in groups]
    parameters = _with_group(checkpoint.parameters, has_groups=bool(checkpoint.groups), one=bool(groups))
    chosen = list(checkpoint_layers(parameters, settings, whole))
    layers: dict[str, CheckpointLayer] = {}
    for done, (parameter, watched) in enumerate(chosen):
        group = groups[parameter.group] if parameter.group >= 0 else None
        update = group.update if group is not None else LastUpdate((), None, exact=False)
        measured = measure(parameter, watched[0].split, update)
        for each in watched:
            layers[each.name] = _layer(parameter, each, measured.part(each.start, each.stop), group)
        if progress is not None:
            progress(done + 1, len(chosen))
    if not layers:
        raise ValueError(f"{checkpoint.name!r} has no weights with vectors that turn")
    notes = _rate_notes(checkpoint, groups)
    return Autopsy(checkpoint.name, layers, checkpoint.step, notes=notes, missing=_missing(layers, checkpoint, groups))


def _with_group(parameters: Sequence[ParameterState], *, has_groups: bool, one: bool) -> list[ParameterState]:
    """Weights without an optimizer belong to the group that the user describes, if there is one."""
    return [replace(each, group=0) for each in parameters] if one and not has_groups else list(parameters)


def _groups(checkpoint: Checkpoint, asked: Asked) -> list[GroupStep]:
    if not checkpoint.groups:
        return _described_group(asked)
    first = float(checkpoint.groups[0].get("lr") or 0.0)
    groups = []
    for number, group in enumerate(checkpoint.groups):
        # The file's own settings count; the user fills what it lacks.
        settings = {**asked.settings, **{key: value for key, value in group.items() if value is not None}}
        saved = float(_number(settings.get("lr", 0.0)))
        members = [each for each in checkpoint.parameters if each.group == number and each.state]
        kept = set(members[0].state) if members else set()
        rate = _rate(checkpoint, number, saved, first, asked.lr, "initial_lr" in group)
        settings["lr"] = rate.value
        name = optimizer_name(settings, kept, asked.optimizer)
        groups.append(GroupStep(settings, rate, rule_of_group(name, settings), last_update(name, settings)))
    return groups


def _described_group(asked: Asked) -> list[GroupStep]:
    """The group of a file that has weights alone: what the user says, if that is enough for a prediction."""
    if asked.optimizer is None or asked.lr is None:
        return []
    settings = {"lr": asked.lr, "betas": (0.9, 0.999), "weight_decay": 0.0, "momentum": 0.9, **asked.settings}
    rule = rule_of_group(NAMES[asked.optimizer], settings)
    return [GroupStep(settings, Rate.known(asked.lr, "given"), rule, LastUpdate((), None, exact=False))]


def _number(value: Any) -> float:
    return float(value.load()) if hasattr(value, "load") else float(value)


def _rate(
    checkpoint: Checkpoint, number: int, saved: float, first: float, given: float | None, scheduled: bool
) -> Rate:
    if given is not None:
        return Rate.known(given * saved / first if first > 0 and saved > 0 else given, "given")
    return last_rate(saved, number, checkpoint.step, checkpoint.schedulers, checkpoint.extras, scheduled)


def _layer(
    parameter: ParameterState, watched: WatchedLayer, measured: VectorMeasurement, group: GroupStep | None
) -> CheckpointLayer:
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
        non_finite=int(np.count_nonzero(~np.isfinite(sums.ww))),
    )
    if group is None:
        return layer
    lr = group.rate.value
    layer = replace(layer, rule=group.rule, exact=group.update.exact, **_signal(parameter, measured, group))
    if group.rule is not None:
        layer = replace(layer, **_equilibrium(group, measured, fan_in, shape))
    if group.update.direction is None and group.rule is not None and group.rule.whole_matrix:
        sums = _muon_sums(sums, group.rule, shape)
    if not np.isfinite(sums.uu).any() or not lr > 0:
        return layer
    return replace(layer, **_step(group, sums, fan_in))


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
        "kappa2": signal.signal_ratio(first, second, beta1, parameter.step),
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

    Adam's v has it, together with L2 where that is in the gradient. SGD's buffer has E‖g‖²/(1-α²) of white gradients,
    and of others what SMD's h is, which is what the norm depends on.
    """
    ww = _mean(measured.sums.ww)
    if group.update.adam_betas is not None:
        coupled = 0.0 if group.rule is None or group.rule.is_decoupled else float(group.settings["weight_decay"])
        square = _mean(measured.second) - coupled**2 * ww
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


def _step(group: GroupStep, sums: StepSums, fan_in: int) -> dict[str, Any]:
    """Rotation, forces and λ_u of the last step."""
    lr = group.rate.value
    decay = group.decay(lr)
    before = sums.before(lr, decay)
    values: dict[str, Any] = {
        "rotations": angles(before, lr, decay),
        "rotation_range": tuple(_mean_angle(group, sums, rate) for rate in (group.rate.low, group.rate.high)),
    }
    # The formulas are of an update that is the momentum itself, with decay beside it or within.
    momentum_alone = group.update.exact and group.rule is not None and group.rule.alignment_power is not None
    if momentum_alone and group.rule is not None:
        total = before.total()
        settings = (lr, decay, group.rule.weight_decay, group.rule.momentum_factor)
        entries = len(sums.ww) * fan_in
        radial = radial_decay(total, entries, *settings)
        values |= {**vars(forces(total, *settings)), "lambda_u": radial.value, "lambda_u_error": radial.error}
    return values


def _mean_angle(group: GroupStep, sums: StepSums, lr: float) -> float:
    decay = group.decay(lr)
    return _mean(angles(sums.before(lr, decay), lr, decay))


def _mean(values: Array) -> float:
    """Mean over the vectors that have a value; NaN where none has."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else NAN


def _rate_notes(checkpoint: Checkpoint, groups: Sequence[GroupStep]) -> tuple[str, ...]:
    """What is to be said of learning rates: nothing where they are known."""
    if not checkpoint.groups:
        return ()
    notes = []
    doubtful = [group.rate for group in groups if not group.rate.certain and group.rate.value > 0]
    for source in dict.fromkeys(rate.source for rate in doubtful):
        rates = [rate for rate in doubtful if rate.source == source]
        low = min(rate.low for rate in rates)
        high = max(rate.high for rate in rates)
        value = f"{sig(low)} to {sig(high)}" if sig(low) != sig(high) else sig(low)
        notes.append(f"The learning rate of the last step is taken as {value}, {source}; pass lr if it was another")
    return tuple(notes)


def _missing(
    layers: Mapping[str, CheckpointLayer], checkpoint: Checkpoint, groups: Sequence[GroupStep]
) -> dict[str, str]:
    reasons = {}
    for name, layer in layers.items():
        if layer.group < 0 or not checkpoint.groups:
            reasons[name] = "rotation: the file holds no optimizer state of it"
        elif groups[layer.group].rate.value == 0:
            reasons[name] = "rotation: the saved learning rate is 0, that of the step after; pass lr"
        elif not np.isfinite(layer.rotations).any() and not layer.non_finite:
            reasons[name] = "rotation: this optimizer's step cannot be taken back from its state"
    return reasons
