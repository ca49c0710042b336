"""A checkpoint to an autopsy: every layer in its last step, what it means, and how it is shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from gyroscope._checks import check_betas, check_fraction, check_non_negative, check_positive
from gyroscope.advice import Diagnosis
from gyroscope.advice.checkpoint_findings import checkpoint_findings
from gyroscope.checkpoint.checkpoint_layer import CheckpointLayer
from gyroscope.checkpoint.drift import LayerDrift, drifts
from gyroscope.checkpoint.files.formats import Checkpoint, ParameterState, open_checkpoint
from gyroscope.checkpoint.files.model_order import Model
from gyroscope.checkpoint.files.reading import refusing
from gyroscope.checkpoint.files.saved_optimizers import NAMES
from gyroscope.checkpoint.last_step.group_step import Asked, GroupStep, group_steps, rate_notes
from gyroscope.checkpoint.last_step.last_update import NOTHING
from gyroscope.checkpoint.last_step.measuring import measure
from gyroscope.checkpoint.layer_numbers import layer_numbers
from gyroscope.checkpoint.stored_layers import checkpoint_layers
from gyroscope.optimizers import GroupRuleFunction, Rules
from gyroscope.render.autopsy_page import autopsy_page
from gyroscope.render.autopsy_text import AutopsyText
from gyroscope.render.rendered import Rendered
from gyroscope.report.autopsy_data import AutopsyData, autopsy_json

Source = str | Path | Mapping[str, Any]


@final
@dataclass(frozen=True)
class Autopsy(Rendered):
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
        return checkpoint_findings(
            list(self.layers.values()),
            step=self.step,
            batch_size=self.batch_size,
            notes=self.notes,
            missing=self.missing,
            drifts=self.drifts,
        )

    def text(self, explain: bool = False) -> AutopsyText:
        """The autopsy for a rich console; `explain` adds the formula behind every sentence."""
        return AutopsyText(self._data, explain)

    def page(self) -> str:
        """The autopsy as the HTML of one page that opens from disk."""
        return autopsy_page(self._data)

    def json(self) -> str:
        """The autopsy as JSON, for programs."""
        return autopsy_json(self._data)

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
    model: Model | None = None,
    rules: Rules | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Autopsy:
    """What weights and optimizer state tell of the last step, layer by layer and neuron by neuron, from files alone.

    The rotation of the last step is exact for SGD with momentum, AdamW, Adam, RAdam, Adamax, RMSprop with momentum, and
    for rotational optimizers around them, Adam-S, Adam-SRT, SphericalAdam and k-Adam; it is an estimate for Nesterov's
    momentum, NAdam after its first thousands of steps, Lion, Muon, and SGD-MRT, whose layers are taken to be
    scale-invariant (`gyroscope.checkpoint.last_step.last_update`). Nothing in a file is executed. Weights and optimizer
    state are matched by name, or by order and shape (`gyroscope.checkpoint.files.matching`). Names and shapes decide
    which tensors have vectors (`gyroscope.model.by_name`).

    Args:
        checkpoints: a path, or a dictionary of state dicts such as {"model": …, "optimizer": …}. Of several, oldest
            first, the last is examined, and compared with the first.
        optimizer: adamw, adam, sgd, … as on the command line, if the file leaves it open. Or the name of a class in
            `rules`.
        lr: learning rate of the last step, of the first parameter group; the others keep their proportions.
        weight_decay: as torch has it, where the file does not say.
        betas: the same of Adam's and Lion's averages.
        momentum: the same of SGD and Muon.
        batch_size: examples of one step, for the noise scale.
        model: the module, or the names of its parameters in order, if the file does not keep the order in which the
            optimizer has them. Or the names of the parameters in each of the optimizer's groups.
        rules: the theory rule of the optimizer that wrote the file, if it is one of your own, {SignMomentum: function
            of the group}. A file does not name its optimizer: of several, `optimizer` names the class. Predictions
            follow the rule. The last step of such an optimizer is unknown.
        progress: called with the parameters done and those there are.
    """
    if not checkpoints:
        raise ValueError("no checkpoint: name a file, a folder or a dictionary of state dicts")
    own = None if optimizer in NAMES else own_rule(optimizer, rules)
    asked = _checked(None if own else optimizer, lr, weight_decay, betas, momentum, batch_size)
    asked = replace(asked, rule=own)
    opened = [open_checkpoint(source, model) for source in checkpoints]
    last = opened[-1]
    examined = _examine(last, asked, progress)
    name = " → ".join(checkpoint.name for checkpoint in opened)
    if len(opened) > 1:
        # The rate that a user gives is that of the last step.
        files = [(opened[0], replace(asked, lr=None)), (last, asked)]
        with refusing(name):
            rates = [[group.rate for group in group_steps(file, known)] for file, known in files]
            examined = replace(examined, drifts=drifts(opened[0], last, examined.layers, rates))
    return replace(examined, name=name, batch_size=batch_size)


def own_rule(optimizer: str | None, rules: Rules | None) -> GroupRuleFunction | None:
    """Return the rule of the user's class that wrote a file, or None if there is none of that name."""
    by_name = {cls.__name__: function for cls, function in (rules or {}).items()}
    if optimizer is None and len(by_name) > 1:
        names = " or ".join(map(repr, by_name))
        raise ValueError(f"rules has several optimizers: name the one that wrote the file, optimizer={names}")
    return by_name.get(optimizer) if optimizer is not None else next(iter(by_name.values()), None)


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


def _examine(checkpoint: Checkpoint, asked: Asked, progress: Callable[[int, int], None] | None) -> Autopsy:
    with refusing(checkpoint.name):
        groups = group_steps(checkpoint, asked)
        _check_state(checkpoint, groups, asked)
        settings = [group.settings for group in groups]
        parameters = _with_group(checkpoint.parameters, has_groups=bool(checkpoint.groups), one=bool(groups))
        chosen = list(checkpoint_layers(parameters, settings, groups))
    layers: dict[str, CheckpointLayer] = {}
    for done, (parameter, watched) in enumerate(chosen):
        group = groups[parameter.group] if parameter.group >= 0 else None
        update = group.update if group is not None else NOTHING
        with refusing(checkpoint.name):
            measured = measure(parameter, watched[0].split, update)
            for each in watched:
                layers[each.name] = layer_numbers(parameter, each, measured.part(each.start, each.stop), group)
        if progress is not None:
            progress(done + 1, len(chosen))
    if not layers:
        raise ValueError(f"{checkpoint.name!r} has no weights with vectors that turn")
    notes = rate_notes(checkpoint, groups)
    return Autopsy(checkpoint.name, layers, checkpoint.step, notes=notes, missing=_missing(layers, checkpoint, groups))


def _check_state(checkpoint: Checkpoint, groups: Sequence[GroupStep], asked: Asked) -> None:
    """Raise ValueError if the optimizer that the user names keeps another state than the file has."""
    if asked.optimizer is None or not checkpoint.groups:
        return
    for parameter in checkpoint.parameters:
        keys = groups[parameter.group].update.keys if parameter.group >= 0 else ()
        if parameter.state and keys and not any(key in parameter.state for key in keys):
            raise ValueError(
                f"{checkpoint.name!r} was not written with optimizer={asked.optimizer!r}, which keeps "
                f"{', '.join(keys)}: the state of {parameter.name!r} has {', '.join(map(str, parameter.state))}"
            )


def _with_group(parameters: Sequence[ParameterState], *, has_groups: bool, one: bool) -> list[ParameterState]:
    """Weights without an optimizer belong to the group that the user describes, if there is one."""
    return [replace(each, group=0) for each in parameters] if one and not has_groups else list(parameters)


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
            reasons[name] = f"rotation: {groups[layer.group].update.unknown}"
    return reasons
