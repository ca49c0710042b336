"""The autopsy of a checkpoint: every layer in its last step, the findings, and how they are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, final

import numpy as np

from gyroscope._checks import check_betas, check_fraction, check_non_negative, check_positive
from gyroscope.advice import Findings
from gyroscope.advice.checkpoint_findings import checkpoint_findings
from gyroscope.advice.judgements.checkpoint_drift import LayerDrift
from gyroscope.checkpoint.checkpoint_layer import CheckpointLayer, checkpoint_layers
from gyroscope.checkpoint.drift import drifts
from gyroscope.checkpoint.files.formats import Checkpoint, open_checkpoint
from gyroscope.checkpoint.files.model_order import Model
from gyroscope.checkpoint.files.reading import refusing
from gyroscope.checkpoint.files.saved_optimizers import NAMES
from gyroscope.checkpoint.last_step.group_step import GroupStep, StepRequest, group_steps, rate_notes
from gyroscope.checkpoint.last_step.last_update import NOTHING
from gyroscope.checkpoint.last_step.measuring import measure
from gyroscope.checkpoint.layer_from_sums import layer_from_sums
from gyroscope.optimizers import GroupRuleFunction, Rules
from gyroscope.render.autopsy_document import autopsy_document
from gyroscope.render.rendered import Document, Rendered
from gyroscope.report.autopsy_data import AutopsyData, autopsy_json

Source = str | Path | Mapping[str, Any]


# Checks of the user's arguments.
CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "lr": check_positive,
    "weight_decay": check_non_negative,
    "betas": lambda _, betas: check_betas(betas),
    "momentum": check_fraction,
}


@final
@dataclass(frozen=True)
class Autopsy(Rendered):
    """The autopsy of a checkpoint, made by `gyro.autopsy`. It prints as text.

    name        of the file, and of earlier files
    layers      by name, in the model's order
    step        number of steps that were taken, None if unknown
    drifts      of the layers since the first file, if there are several
    notes       assumptions, as sentences without a full stop
    missing     reasons why something is unknown, by layer
    """

    name: str
    layers: Mapping[str, CheckpointLayer]
    step: int | None = None
    drifts: tuple[LayerDrift, ...] = ()
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] | None = None

    @cached_property
    def findings(self) -> Findings:
        """The findings, worst first."""
        layers = self.layers.values()
        return checkpoint_findings(
            [layer.facts(self.step) for layer in layers],
            lost={layer.name: layer.non_finite / layer.vectors for layer in layers},
            embeddings=[layer.name for layer in layers if layer.is_embedding],
            errors={layer.name: layer.error for layer in layers if not layer.exact and isfinite(layer.rotation)},
            notes=self.notes,
            missing=self.missing,
            drifts=self.drifts,
        )

    def document(self) -> Document:
        """Return the autopsy for people."""
        return autopsy_document(self._data)

    def json(self) -> str:
        """Return the autopsy as JSON, for programs."""
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
    model: Model | None = None,
    rules: Rules | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Autopsy:
    """Reconstruct the last step from weights and optimizer state, layer by layer and neuron by neuron.

    The rotation of the last step is exact for SGD with momentum, AdamW, Adam and rotational optimizers around them. It
    is an estimate for Nesterov's momentum, Lion and Muon, and unknown for other optimizers. Equilibrium norms and the
    run length are those of the peak learning rate (`CheckpointLayer`). Nothing in a file is executed.
    Weights and optimizer state are matched by name, or by order and shape (`files.matching`). Names and shapes decide
    which tensors have vectors (`gyroscope.model.by_name`).

    Args:
        checkpoints: a path, or a dictionary of state dicts such as {"model": …, "optimizer": …}. The last of several,
            oldest first, is examined and compared with the first.
        optimizer: adamw, adam, sgd, … as on the command line, if the file does not determine it. Or the name of a class
            in `rules`.
        lr: learning rate of the last step, of the first parameter group. The others keep their proportions.
        weight_decay: as in torch, if the file lacks it.
        betas: the same for Adam's and Lion's averages.
        momentum: the same for SGD and Muon.
        model: the module, or the names of its parameters in order, if the file does not keep the optimizer's order. Or
            the names of the parameters in each of the optimizer's groups.
        rules: the theory rule of your own optimizer, {SignMomentum: function of the group}. A file does not name its
            optimizer, so `optimizer` names the class if there are several. Predictions follow the rule. The last step
            of such an optimizer is unknown.
        progress: called with the number of parameters done and their total.
    """
    if not checkpoints:
        raise ValueError("no checkpoint: name a file, a folder or a dictionary of state dicts")
    own = None if optimizer in NAMES else own_rule(optimizer, rules)
    settings = {"weight_decay": weight_decay, "betas": betas, "momentum": momentum}
    for option, value in {"lr": lr, **settings}.items():
        if value is not None:
            CHECKS[option](option, value)
    known = {option: value for option, value in settings.items() if value is not None}
    asked = StepRequest(None if own else optimizer, lr, known, own)
    opened = [open_checkpoint(source, model) for source in checkpoints]
    last = opened[-1]
    with refusing(last.name):
        groups = group_steps(last, asked)
        _check_state(last, groups, asked)
        layers = _examine(last, groups, progress)
    name = " → ".join(checkpoint.name for checkpoint in opened)
    moved: tuple[LayerDrift, ...] = ()
    if len(opened) > 1:
        with refusing(name):
            # A learning rate that a user passes is that of the last file.
            before = group_steps(opened[0], replace(asked, lr=None))
            moved = drifts(opened[0], last, layers, [before, groups])
    notes = rate_notes(groups)
    return Autopsy(name, layers, last.step, moved, notes, _missing(layers, last, groups))


def own_rule(optimizer: str | None, rules: Rules | None) -> GroupRuleFunction | None:
    """Return the rule of the user's class that wrote a file, or None if the user names none."""
    by_name = {cls.__name__: function for cls, function in (rules or {}).items()}
    if optimizer is None and len(by_name) > 1:
        names = " or ".join(map(repr, by_name))
        raise ValueError(f"rules has several optimizers: name the one that wrote the file, optimizer={names}")
    if optimizer is not None and optimizer not in by_name:
        raise ValueError(f"optimizer={optimizer!r} is unknown: choose one of {', '.join([*NAMES, *by_name])}")
    return by_name[optimizer] if optimizer is not None else next(iter(by_name.values()), None)


def _examine(
    checkpoint: Checkpoint, groups: Sequence[GroupStep], progress: Callable[[int, int], None] | None
) -> dict[str, CheckpointLayer]:
    parameters = checkpoint.parameters
    if groups and not checkpoint.groups:
        # Weights without an optimizer are in the group that the user describes.
        parameters = [replace(each, group=0) for each in parameters]
    chosen = list(checkpoint_layers(parameters, [group.settings for group in groups], groups))
    layers: dict[str, CheckpointLayer] = {}
    for done, (parameter, watched) in enumerate(chosen):
        group = groups[parameter.group] if parameter.group >= 0 else None
        measured = measure(parameter, watched[0].split, group.update if group is not None else NOTHING)
        for each in watched:
            part = measured.part(each.start, each.stop)
            layers[each.name] = layer_from_sums(parameter, each, part, group, checkpoint.step)
        if progress is not None:
            progress(done + 1, len(chosen))
    if not layers:
        raise ValueError("it has no weights with vectors that rotate")
    return layers


def _check_state(checkpoint: Checkpoint, groups: Sequence[GroupStep], asked: StepRequest) -> None:
    """Raise ValueError if the file does not have the state of the optimizer that the user names."""
    if asked.optimizer is None or not checkpoint.groups:
        return
    for parameter in checkpoint.parameters:
        keys = groups[parameter.group].update.keys if parameter.group >= 0 else ()
        if parameter.state and keys and not any(key in parameter.state for key in keys):
            raise ValueError(
                f"it was not written with optimizer={asked.optimizer!r}, which keeps "
                f"{', '.join(keys)}: the state of {parameter.name!r} has {', '.join(map(str, parameter.state))}"
            )


def _missing(
    layers: Mapping[str, CheckpointLayer], checkpoint: Checkpoint, groups: Sequence[GroupStep]
) -> dict[str, str]:
    reasons = {}
    for name, layer in layers.items():
        if layer.group < 0 or not checkpoint.groups:
            reasons[name] = "rotation: the file has no optimizer state for it"
        elif groups[layer.group].rates.last == 0:
            reasons[name] = "rotation: the saved learning rate is 0, which belongs to the next step. Pass lr"
        elif not np.isfinite(layer.rotations).any() and not layer.non_finite:
            reasons[name] = f"rotation: {groups[layer.group].update.unknown}"
    return reasons
