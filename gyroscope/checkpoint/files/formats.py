"""The parts of a checkpoint, recognised by structure and name: weights, optimizer state, schedulers and the step.

A checkpoint is a plain dictionary of torch.save in any nesting (nanoGPT's, Lightning's, our own), or a folder of the
Hugging Face Trainer or of torch.distributed.checkpoint.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any, final

from gyroscope.checkpoint.files.folders import read_folder
from gyroscope.checkpoint.files.model_order import Model, match_weights
from gyroscope.checkpoint.files.reading import StoredTensor, read_file, refusing, stored
from gyroscope.model.parameters import clean_name

# Keys of weights, the likeliest first. "" is the file itself.
WEIGHT_KEYS = ("model", "state_dict", "model_state_dict", "module", "net", "network", "weights", "params", "")
# Levels of nesting that are searched.
DEEPEST = 4
# Tensors that a state dict has beside parameters.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked", "inv_freq", "masked_bias")
# Keys of the number of steps that were taken.
STEP_KEYS = ("iter_num", "global_step", "step", "steps", "iteration", "num_updates")
EXTRAS = ("config", "iter_num", "log_history", "global_step", "last_step_lr")


@final
@dataclass(frozen=True, eq=False)
class ParameterState:
    """A weight in a checkpoint with its optimizer state."""

    name: str
    weight: StoredTensor
    group: int = -1  # -1 without an optimizer
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int | None:
        """Number of updates of this weight, which Adam counts. None if unknown."""
        return self.count("step")

    def count(self, name: str) -> int | None:
        """Return a count in the state, or None if there is none."""
        count = self.state.get(name)
        if isinstance(count, StoredTensor) and prod(count.shape) == 1:
            count = float(count.load())
        return int(count) if isinstance(count, int | float) and isfinite(count) and count >= 0 else None


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The contents of a file or folder."""

    name: str  # of the file
    parameters: Sequence[ParameterState]  # weights with their optimizer state, in the model's order
    groups: Sequence[Mapping[str, Any]]  # the optimizer's settings, without the parameters. Empty without an optimizer
    schedulers: Sequence[Mapping[str, Any]]  # states of torch's schedulers
    extras: Mapping[str, Any]  # nanoGPT's config, the Trainer's log
    step: int | None  # number of steps that were taken, None if unknown


def open_checkpoint(source: str | Path | Mapping[str, Any], model: Model | None = None) -> Checkpoint:
    """Open a checkpoint by its path, or a dictionary of state dicts. A ValueError names what is missing.

    `model` gives the order of the optimizer's weights if the file does not.
    """
    if isinstance(source, Mapping):
        with refusing("state dicts"):
            return _checkpoint("state dicts", stored(source), model)
    path = Path(source)
    if not path.exists():
        raise ValueError(f"there is no {str(path)!r}: name a checkpoint file, or a folder of one")
    with refusing(str(path)):
        tree, ordered = read_folder(path) if path.is_dir() else (read_file(path), True)
        return _checkpoint(path.name or str(path), tree, model, ordered, path)


def _checkpoint(
    name: str, tree: Any, model: Model | None, ordered: bool = True, folder: Path | None = None
) -> Checkpoint:
    nodes = dict(_nodes(tree))
    optimizers = [node for node in nodes.values() if _is_optimizer(node)]
    weights = _weights(nodes)
    ordered = ordered and not _is_sorted(weights)
    weights, members = match_weights(weights, optimizers, model, ordered, folder)
    parameters = []
    for key, weight in weights.items():
        parameter = ParameterState(clean_name(key), weight)
        if key in members:
            group, _, state = members[key]
            parameter = replace(parameter, group=group, state=state)
        parameters.append(parameter)
    settings = [_settings(group, node) for node in optimizers for group in node["param_groups"]]
    top = tree if isinstance(tree, Mapping) else {}
    extras = {key: top[key] for key in EXTRAS if key in top}
    schedulers = [node for node in nodes.values() if _is_scheduler(node)]
    return Checkpoint(name, parameters, settings, schedulers, extras, _step(top, parameters))


def _nodes(
    node: Any, path: str = "", depth: int = 0, entered: set[int] | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every dictionary of a tree that may be a part of a checkpoint, with the path of keys to it."""
    entered = set() if entered is None else entered
    if isinstance(node, Mapping):
        yield path, node
    # The contents of a part are not searched, and an object that occurs many times is searched once.
    is_part = isinstance(node, Mapping) and (_is_optimizer(node) or _is_scheduler(node))
    if depth == DEEPEST or id(node) in entered or is_part or not isinstance(node, Mapping | list):
        return
    entered.add(id(node))
    for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
        if isinstance(value, Mapping | list):
            yield from _nodes(value, f"{path}.{key}" if path else str(key), depth + 1, entered)


def _is_optimizer(node: Mapping[str, Any]) -> bool:
    groups = node.get("param_groups")
    state = node.get("state")
    return (
        isinstance(state, Mapping)
        and all(isinstance(each, Mapping) for each in state.values())
        and isinstance(groups, list)
        and all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)
        and all(isinstance(key, int | str) for group in groups for key in group["params"])
    )


def _is_scheduler(node: Mapping[str, Any]) -> bool:
    is_chain = isinstance(node.get("_schedulers"), list)  # whose parts are not the schedule, so they are not searched
    return (isinstance(node.get("last_epoch"), int) or is_chain) and ("_last_lr" in node or "base_lrs" in node)


def _settings(group: Mapping[str, Any], optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group, and the mark that `gyro.optim.follow` leaves in the state of its optimizer."""
    settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return settings | {key: optimizer[key] for key in ("follows_base",) if key in optimizer}


def _is_state_dict(node: Mapping[str, Any]) -> bool:
    tensors = [value for value in node.values() if isinstance(value, StoredTensor)]
    return any(len(each.shape) >= 2 and each.dtype.is_floating_point for each in tensors) and all(
        isinstance(key, str) for key in node
    )


def _weights(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredTensor]:
    """Return the one dictionary of named tensors, with parameters only, and a tied weight once."""
    found = {path: node for path, node in nodes.items() if _is_state_dict(node)}
    if not found:
        raise ValueError("it has no weights: there is no dictionary of named tensors with two or more dimensions")
    named = [path for key in WEIGHT_KEYS for path in found if path.rpartition(".")[2] == key]
    if not named and len(found) > 1:
        raise ValueError(
            f"it has several sets of weights ({', '.join(found)}): pass one with its optimizer, "
            'gyro.autopsy({"model": …, "optimizer": …})'
        )
    chosen = found[named[0] if named else next(iter(found))]
    weights: dict[str, StoredTensor] = OrderedDict() if isinstance(chosen, OrderedDict) else {}
    seen: set[tuple[int, int] | None] = set()
    for key, value in chosen.items():
        if not isinstance(value, StoredTensor) or not value.dtype.is_floating_point or key.endswith(BUFFERS):
            continue
        if value.memory_address is None or value.memory_address not in seen:
            weights[key] = value
        seen.add(value.memory_address)
    return weights


def _is_sorted(weights: Mapping[str, StoredTensor]) -> bool:
    """Return whether names are in alphabetical order, as in safetensors files, and not in a module's order."""
    return not isinstance(weights, OrderedDict) and len(weights) > 1 and list(weights) == sorted(weights)


def _step(top: Mapping[str, Any], parameters: Sequence[ParameterState]) -> int | None:
    """Return Adam's own count if there is one, because a file may count batches instead of steps."""
    counts = [count for count in (each.step for each in (*parameters[:1], *parameters[-1:])) if count is not None]
    if counts:
        return max(counts)
    values = [top[key] for key in STEP_KEYS if isinstance(top.get(key), int)]
    return int(values[0]) if values else None
