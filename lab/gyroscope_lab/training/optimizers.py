"""Optimizers by name, made for a model. All of them get the same parameter groups."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope.geometry import Split
from gyroscope.optimizers import COMMANDS, OptimizerSpec
from gyroscope.spelling import one_of
from gyroscope.theory import AdamW
from gyroscope_lab.framework.named_options import Options, split_options
from gyroscope_lab.training.config import TrainConfig

Group = dict[str, Any]
# RE's Algorithm 1, which the papers' experiments repeat. Here a rotational optimizer has this form, unless the options
# after its name say otherwise: rotational-adamw:update_average=noise,norms=settling.
ALGORITHM_1: dict[str, Any] = {"update_average": "plain", "norms": "fixed"}
# The last layer of every network here.
HEAD = r"^head\.weight$"


@dataclass(frozen=True)
class OptimizerChoice:
    """An optimizer class with its default settings."""

    make: Callable[..., Optimizer | list[Optimizer]]
    lr: float
    weight_decay: float

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options among betas and momentum that it takes."""
        return tuple(name for name in ("betas", "momentum") if name in signature(self.make).parameters)


def _choices() -> dict[str, OptimizerChoice]:
    # Combinations of optimizers that only the lab has. Muon has AdamW's settings, because its lr is adjusted to AdamW.
    arranged = {
        "muon": OptimizerChoice(_muon_and_adamw, 1e-3, 0.1),
        "rotational-adam-l2": OptimizerChoice(_special_variant, 1e-3, 0.1),
        "imbalanced-adamw": OptimizerChoice(_imbalanced, 1e-3, 0.1),
        "hyperball": OptimizerChoice(_hyperball, 1e-2, 0.0),
        "adamh": OptimizerChoice(_adamh, 1e-2, 0.0),
        "muonh": OptimizerChoice(_muonh, 1e-2, 0.0),
    }
    known = {name: _known(spec) for name, spec in COMMANDS.items() if name not in arranged}
    return known | arranged


def _known(spec: OptimizerSpec) -> OptimizerChoice:
    """Return an optimizer of the library's table with its typical settings."""
    settings = dict(spec.typical)
    lr = settings.pop("lr")
    weight_decay = settings.pop("weight_decay")
    settings |= ALGORITHM_1 if spec.keeps_norms else {}
    make = partial(spec.load(), **settings) if settings else spec.load()
    return OptimizerChoice(make, lr, weight_decay)


def make_optimizers(config: TrainConfig, model: nn.Module) -> list[Optimizer]:
    """Return the optimizer that a config names. Weights rotate and decay, and other parameters do neither.

    The list has one optimizer. Muon is followed by AdamW for the parameters that Muon does not take.
    """
    name, options = split_options(config.optimizer)
    choice = _choice(name)
    moments = {"betas": config.betas, "momentum": config.momentum}
    given = {key: value for key, value in moments.items() if value is not None}
    for key in given:
        if key not in choice.options:
            raise ValueError(f"{name} has no {key!r}: it takes {', '.join(['lr', 'weight_decay', *choice.options])}")
    _check_options(name, choice, options)
    lr = choice.lr if config.lr is None else config.lr
    decay = choice.weight_decay if config.weight_decay is None else config.weight_decay
    embeddings = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    overrides: dict[str, Any] = {
        rf"^{name}\.weight$": {"weight_decay": decay} for name in embeddings if config.decay_embeddings
    }
    if not config.turn_head:
        overrides |= {HEAD: {"granularity": "none"}}
    granularity: Any = options.get("granularity", "neuron")
    groups = gyro.param_groups(model, weight_decay=decay, granularity=granularity, overrides=overrides)
    made = choice.make(groups, lr=lr, weight_decay=decay, **given, **options)
    return [made] if isinstance(made, Optimizer) else made


def _check_options(name: str, choice: OptimizerChoice, options: Options) -> None:
    """Raise ValueError for an option after the colon that the class lacks or that the config has itself."""
    taken = {"params", "groups", "lr", "weight_decay", "betas", "momentum"}
    known = [key for key in signature(choice.make).parameters if key not in taken]
    for key in options:
        if key not in known:
            raise ValueError(f"unknown option {key!r} of {name}: it has {', '.join(known) or 'none'}")


def _choice(name: str) -> OptimizerChoice:
    choices = _choices()
    return choices[one_of("optimizer", name, choices)]


def _hyperball(
    groups: list[Group], *, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> Optimizer:
    """Return tangent Hyperball for each neuron."""
    inner = torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, betas=betas)
    return gyro.optim.Rotational(inner, mode="hyperball", tangent=True)


def _adamh(
    groups: list[Group],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    plain_lr: float = 3e-3,
) -> Optimizer:
    """Return Hyperball around AdamW for hidden weights, as published. Others take AdamW's step at `plain_lr`."""
    hidden = _selected(groups, lambda group, name, _: _is_hidden(group, name))
    rest = _selected(groups, lambda group, name, _: not _is_hidden(group, name))
    plain = [{**group, "granularity": "none", "lr": plain_lr} for group in rest]
    inner = torch.optim.AdamW([*hidden, *plain], lr=lr, weight_decay=weight_decay, betas=betas)
    return gyro.optim.Rotational(inner, mode="hyperball")


def _muonh(
    groups: list[Group],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.999),
    plain_lr: float = 3e-3,
) -> list[Optimizer]:
    """Return Hyperball around Muon for hidden matrices, as published. Others take AdamW's step at `plain_lr`."""
    muon, adamw = _muon_and_adamw(groups, lr=lr, weight_decay=weight_decay, momentum=momentum, betas=betas)
    for group in adamw.param_groups:
        group["lr"] = plain_lr
    return [gyro.optim.Rotational(muon, mode="hyperball"), adamw]


def _special_variant(
    groups: list[Group],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    beta: float = 0.99,
) -> Optimizer:
    """Return an optimizer with directions of Adam with L2 and angles of AdamW at the same settings (RE section 3)."""
    inner = torch.optim.Adam(groups, lr=lr, weight_decay=weight_decay, betas=betas)
    return gyro.optim.Rotational(inner, angular_update=AdamW(lr, weight_decay, betas), beta=beta, **ALGORITHM_1)


def _imbalanced(
    groups: list[Group],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    slower: float = 0.0,
    faster: float = 0.0,
    factor: float = 10.0,
) -> Optimizer:
    """Return RotationalAdamW in which shares of the vectors rotate slower and faster by a factor (RE Figure 12)."""
    optimizer = gyro.optim.RotationalAdamW(groups, lr=lr, weight_decay=weight_decay, betas=betas, **ALGORITHM_1)
    splits = [(p, Split.of(group)) for group in optimizer.param_groups for p in group["params"]]
    # The place is the seed, so that equal shapes draw different vectors.
    optimizer.angle_factors = {
        p: imbalance_factors(split.num_vectors(p.shape), slower, faster, factor, seed=place)
        for place, (p, split) in enumerate(splits)
        if split.rotates(p.shape)
    }
    return optimizer


def imbalance_factors(vectors: int, slower: float, faster: float, factor: float, *, seed: int) -> Tensor:
    """Return 1 / factor for a share of the vectors, chosen by seed, factor for another share, and 1 for the rest.

    >>> imbalance_factors(4, slower=0.25, faster=0.5, factor=10.0, seed=0).sort().values
    tensor([ 0.1000,  1.0000, 10.0000, 10.0000])
    """
    order = torch.randperm(vectors, generator=torch.Generator().manual_seed(seed))
    # Both ends are rounded, because two rounded thirds of 4 vectors would be 2 of them, and 2/3 are 3.
    first = round(slower * vectors)
    last = round((slower + faster) * vectors)
    factors = torch.ones(vectors)
    factors[order < first] = 1 / factor
    factors[(order >= first) & (order < last)] = factor
    return factors


def _muon_and_adamw(
    groups: list[Group],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.999),
) -> list[Optimizer]:
    """Return Muon for hidden matrices, and AdamW for convolutions, embeddings, the head, norms and biases."""
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"torch {torch.__version__} has no Muon: install torch 2.9 or newer")
    hidden = _selected(groups, _is_hidden_matrix)
    rest = _selected(groups, lambda *each: not _is_hidden_matrix(*each))
    if not hidden:
        raise ValueError("muon updates matrices of hidden layers, and this network has none: choose mlp, vit or gpt")
    # Adjusted to the size of AdamW's updates, so that both share one lr and one weight decay.
    muon = torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, momentum=momentum, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay, betas=betas)]


def _is_hidden(group: Group, name: str) -> bool:
    return group["granularity"] != "none" and not name.startswith("head.")


def _is_hidden_matrix(group: Group, name: str, parameter: nn.Parameter) -> bool:
    return _is_hidden(group, name) and parameter.dim() == 2


def _selected(groups: list[Group], wanted: Callable[[Group, str, nn.Parameter], bool]) -> list[Group]:
    """Return the groups with only the wanted parameters. Groups without any are left out."""
    selected = []
    for group in groups:
        named = zip(group["param_names"], group["params"], strict=True)
        kept = {name: parameter for name, parameter in named if wanted(group, name, parameter)}
        if kept:
            selected.append({**group, "params": list(kept.values()), "param_names": list(kept)})
    return selected
