"""The order of a model's parameters. Optimizers number parameters by it, but safetensors files do not keep it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from gyroscope.checkpoint.files.matching import Member, UnknownOrderError, match_parameters
from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.checkpoint.files.trainer_folder import CONFIG, read_json
from gyroscope.model.parameters import clean_name

# A module, the names of its parameters in order, or the names of the parameters in each of the optimizer's groups.
Model = nn.Module | Sequence[str] | Sequence[Sequence[str]]
# All names of each parameter, in the model's order: a tied weight has several.
Order = Sequence[Sequence[str]]
Weights = dict[str, StoredTensor]
# Parameters that a model may make for each weight in the file: tied weights are made before they are tied.
MADE_PER_WEIGHT = 4


@final
@dataclass(frozen=True, eq=False)
class WeightOrder:
    """The known sources of the model's order.

    model   as the user passed it
    kept    whether the file has its weights in the model's order
    folder  where a config.json may be
    """

    model: Model | None = None
    kept: bool = True
    folder: Path | None = None

    def match(
        self, file: str, weights: Weights, optimizers: Sequence[Mapping[str, Any]]
    ) -> tuple[Weights, dict[str, Member]]:
        """Return the weights, in the model's order if that is known, and the optimizer's member of each."""
        if self.model is None:
            return self._match_unaided(file, weights, optimizers)
        if not isinstance(self.model, nn.Module) and not all(isinstance(name, str) for name in self.model):
            keys = {clean_name(key): key for key in weights}
            names = [[keys.get(clean_name(name), name) for name in group] for group in self.model]
            return weights, match_parameters(file, _shapes(weights), optimizers, names=names)
        order = order_of(self.model)  # type: ignore[arg-type]  # a sequence of names, as has just been asked
        ordered = in_order(weights, order)
        if ordered is None:
            raise ValueError(f"{file!r} is not a checkpoint of the given model: {_difference(weights, order)}")
        return ordered, match_parameters(file, _shapes(ordered), optimizers)

    def _match_unaided(
        self, file: str, weights: Weights, optimizers: Sequence[Mapping[str, Any]]
    ) -> tuple[Weights, dict[str, Member]]:
        try:
            return weights, match_parameters(file, _shapes(weights), optimizers, ordered=self.kept)
        except UnknownOrderError:
            order = None if self.folder is None else transformers_order(self.folder, len(weights))
            ordered = None if order is None else in_order(weights, order)
            if ordered is None:
                raise
            return ordered, match_parameters(file, _shapes(ordered), optimizers)


def _shapes(weights: Weights) -> dict[str, tuple[int, ...]]:
    return {key: each.shape for key, each in weights.items()}


def _difference(weights: Weights, order: Order) -> str:
    """Return a name that only one of the two has."""
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

    The model is made on the meta device, by the installed library. Code beside the weights is never imported.
    """
    if not (folder / CONFIG).is_file():
        return None
    config = read_json(folder / CONFIG)
    try:
        # An optional dependency, and seconds to import.
        import transformers

        with torch.device("meta"), _limited(MADE_PER_WEIGHT * weights + 100):
            return order_of(_make(transformers, config))
    except Exception:  # not installed, an unknown class, settings of another version, or far more layers than weights
        return None


def _make(transformers: Any, config: Mapping[str, Any]) -> nn.Module:
    model_class = getattr(transformers, config["architectures"][0])
    if not issubclass(model_class, transformers.PreTrainedModel) or config.get("backbone"):
        # A backbone by name would be looked up in the network.
        raise ValueError("this model cannot be made from its settings alone")
    model: nn.Module = model_class(model_class.config_class.from_dict(dict(config)))
    return model


@contextmanager
def _limited(most: int) -> Iterator[None]:
    """Raise ValueError when modules register more than so many parameters: a file may ask for any number of layers."""
    made = 0

    def count(*_: Any) -> None:
        nonlocal made
        made += 1
        if made > most:
            raise ValueError(f"more than {most} parameters")

    hook = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
