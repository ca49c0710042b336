"""timm: our optimizers in its registry, for `create_optimizer_v2` and the `--opt` of its scripts.

register_timm()
timm.optim.create_optimizer_v2(model, "rotational-adamw", lr=1e-3, weight_decay=0.1)
timm.optim.create_optimizer_v2(model, "rotational-adamw", lr=1e-3, param_group_fn=group_fn(weight_decay=0.1))

The first has timm's own groups, of tensors without names. Tensors that timm does not decay (positions, class tokens,
biases) do not rotate, and all others do. That is right for images. A model with an `nn.Embedding` needs the second.
"""

from collections.abc import Callable
from inspect import getdoc, signature
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from gyroscope.integrations.extras import extra
from gyroscope.model.groups import ParamGroups, param_groups
from gyroscope.optim.registry import CLASSES


def register_timm() -> list[str]:
    """Register our optimizers in timm under the names of `gyro.optim.names()`, and return the new names.

    Names that timm already has, such as lion, stay timm's.
    """
    extra("timm", "timm")
    from timm.optim import _optim_factory as factory

    new = [name for name in CLASSES if name not in factory.default_registry.list_optimizers()]
    for name in new:
        options = signature(CLASSES[name]).parameters
        info = factory.OptimInfo(
            name=name,
            opt_class=class_of_groups(cast(type[Optimizer], CLASSES[name])),
            description=(getdoc(CLASSES[name]) or "").partition("\n")[0],
            has_eps="eps" in options,
            has_momentum="momentum" in options,
            has_betas="betas" in options,
        )
        factory.default_registry.register(info)
    return new


def group_fn(weight_decay: float) -> Callable[[nn.Module], ParamGroups]:
    """Return a `param_group_fn` for timm: `gyro.param_groups` with this weight decay, which recognises embeddings."""
    return lambda model: param_groups(model, weight_decay=weight_decay)


def class_of_groups(optimizer_class: type[Optimizer]) -> type[Optimizer]:
    """Return a class that makes the optimizer from timm's groups. If some groups decay, the others take plain steps.

    timm needs a class. The optimizer has the original class, so that it can be pickled. If no group decays, nothing was
    sorted, and the optimizer raises because it cannot rotate without decay.

    >>> groups = [{"params": [nn.Parameter(nn.Linear(8, 4).weight)], "weight_decay": wd} for wd in (0.0, 0.1)]
    >>> optimizer = class_of_groups(CLASSES["rotational-adamw"])(groups, lr=1e-3)
    >>> [group["granularity"] for group in optimizer.param_groups]
    ['none', 'neuron']
    """

    def make(_: type[Optimizer], params: ParamsT, **options: Any) -> Optimizer:
        groups: list[Any] = list(params)
        if any(isinstance(group, dict) and group.get("weight_decay") for group in groups):
            groups = [group if group.get("weight_decay") else {"granularity": "none", **group} for group in groups]
        return optimizer_class(groups, **options)

    return type(optimizer_class.__name__, (optimizer_class,), {"__new__": make, "__doc__": optimizer_class.__doc__})
