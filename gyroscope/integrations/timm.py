"""timm: our optimizers in its registry, for `create_optimizer_v2` and the `--opt` of its scripts.

register_timm()
timm.optim.create_optimizer_v2(model, "rotational-adamw", lr=1e-3, param_group_fn=group_fn(weight_decay=0.1))
"""

from collections.abc import Callable
from inspect import getdoc, signature

from torch import nn

from gyroscope.integrations.extras import extra
from gyroscope.model.groups import ParamGroups, param_groups
from gyroscope.optim.registry import CLASSES


def register_timm() -> list[str]:
    """Put our optimizers into timm's registry, under the names of `gyro.optim.names()`; those that are new there.

    Names that timm has already, as lion, stay timm's.
    """
    extra("timm", "timm")
    from timm.optim import _optim_factory as factory

    new = [name for name in CLASSES if name not in factory.default_registry.list_optimizers()]
    for name in new:
        options = signature(CLASSES[name]).parameters
        info = factory.OptimInfo(
            name=name,
            opt_class=CLASSES[name],
            description=(getdoc(CLASSES[name]) or "").partition("\n")[0],
            has_eps="eps" in options,
            has_momentum="momentum" in options,
            has_betas="betas" in options,
        )
        factory.default_registry.register(info)
    return new


def group_fn(weight_decay: float) -> Callable[[nn.Module], ParamGroups]:
    """A `param_group_fn` for timm: `gyro.param_groups` with this weight decay.

    timm's own groups are of bare tensors, of which our optimizers turn embeddings too.
    """
    return lambda model: param_groups(model, weight_decay=weight_decay)
