"""The order of a model's parameters. Optimizers number parameters by it, but safetensors files do not keep it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gyroscope.checkpoint.files.folders import CONFIG, read_json
from gyroscope.checkpoint.files.matching import Member, UnknownOrderError, Weights, match_parameters
from gyroscope.model.parameters import clean_name

# A module, the names of its parameters in order, or the names of the parameters in each of the optimizer's groups.
Model = nn.Module | Sequence[str] | Sequence[Sequence[str]]
# All names of each parameter, in the model's order: a tied weight has several.
Order = Sequence[Sequence[str]]
# Most parameters that a model may create for each weight in the file. Tied weights are created before they are tied.
MADE_PER_WEIGHT = 4


def match_weights(
    weights: Weights,
    optimizers: Sequence[Mapping[str, Any]],
    model: Model | None,
    ordered: bool,
    folder: Path | None,
) -> tuple[Weights, dict[str, Member]]:
    """Return the weights, in the model's order if that is known, and the optimizer's member of each.

    `model` is the user's, `ordered` is whether the file has its weights in order, `folder` may have a config.json.
    """
    if model is None:
        try:
            return weights, match_parameters(weights, optimizers, ordered)
        except UnknownOrderError:
            order = None if folder is None else transformers_order(folder, len(weights))
            found = None if order is None else in_order(weights, order)
            if found is None:
                raise
            return found, match_parameters(found, optimizers)
    if not isinstance(model, nn.Module) and not all(isinstance(name, str) for name in model):
        keys = {clean_name(key): key for key in weights}
        names = [[keys.get(clean_name(name), name) for name in group] for group in model]
        return weights, match_parameters(weights, optimizers, names=names)
    order = order_of(model)  # type: ignore[arg-type]  # a sequence of names, as has just been asked
    found = in_order(weights, order)
    if found is None:
        raise ValueError(f"it is not a checkpoint of the given model: {_difference(weights, order)}")
    return found, match_parameters(found, optimizers)


def _difference(weights: Weights, order: Order) -> str:
    """Return a sentence with a name that only one of the two has."""
    held = {clean_name(key) for key in weights}
    lacking = [names[0] for names in order if not held.intersection(names)]
    if lacking:
        return f"the file has no {lacking[0]!r}"
    unknown = sorted(held - {name for names in order for name in names})
    return f"the model has no {unknown[0]!r}" if unknown else "a tied weight is in the file more than once"


def order_of(model: nn.Module | Sequence[str]) -> Order:
    """Return the order of a module's parameters, or of names that are in the model's order already.

    >>> tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> tied[1].weight = tied[0].weight
    >>> order_of(tied)
    [['0.weight', '1.weight']]
    """
    if not isinstance(model, nn.Module):
        return [[clean_name(name)] for name in model]
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(clean_name(name))
    return list(names.values())


def in_order(weights: Weights, order: Order) -> Weights | None:
    """Return the weights in this order, or None if it is not an order of these weights."""
    keys = {clean_name(key): key for key in weights}
    found = [key for names in order for key in [keys[name] for name in names if name in keys][:1]]
    if len(found) != len(order) or set(found) != set(weights):
        return None
    return {key: weights[key] for key in found}


def transformers_order(folder: Path, weights: int) -> Order | None:
    """Return the order of the model that config.json describes, or None if transformers cannot make that model.

    The installed library creates the model on the meta device. Code in the checkpoint's folder is never imported.
    """
    try:
        # An optional dependency that takes seconds to import.
        import transformers

        config = read_json(folder / CONFIG)
        model_class = getattr(transformers, config["architectures"][0])
        # A backbone by name would be searched on the network.
        if not issubclass(model_class, transformers.PreTrainedModel) or config.get("backbone"):
            return None
        with torch.device("meta"), _limited(MADE_PER_WEIGHT * weights + 100):
            return order_of(model_class(model_class.config_class.from_dict(config)))
    except Exception:  # not installed, an unknown class, settings of another version, or far more layers than weights
        return None


@contextmanager
def _limited(limit: int) -> Iterator[None]:
    """Raise ValueError if modules register too many parameters, because a file may name any number of layers."""
    made = 0

    def count(*_: Any) -> None:
        nonlocal made
        made += 1
        if made > limit:
            raise ValueError(f"more than {limit} parameters")

    hook = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
