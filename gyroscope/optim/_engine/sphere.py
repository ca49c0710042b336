"""Steps on the sphere: the description for the loop, and what the Adams on the sphere share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.optim import formulas, sphere_formulas
from gyroscope.optim._engine import programs
from gyroscope.optim._engine.steps import (
    Compilable,
    FirstValue,
    Group,
    InnerRule,
    PlainStep,
    Vectors,
    VectorStep,
    plain,
)
from gyroscope.optim.formulas import Change
from gyroscope.optim.sphere_formulas import AdamNumbers


def sphere(
    moment: str, rows: Mapping[str, FirstValue], rule: Callable[..., Change], by: Any, vectors: Vectors, **options: Any
) -> VectorStep:
    """A step on the sphere: `rule(products, rows, fan_in, by=…, **options)` says what becomes of each vector.

    On a CPU Adam's division for vectors of norm 0 is left for after the step, and there taken only where there are any:
    a root of every entry would cost more than the step. Elsewhere the question alone would wait for the device.
    """
    on_cpu = vectors.device.type == "cpu"
    eps = getattr(by, "eps", None)
    divides_after = on_cpu and eps is not None
    if divides_after:
        move = partial(sphere_formulas.combine_then_divide_, eps=eps)
    else:
        move = partial(sphere_formulas.combine_, eps=eps, divide=not on_cpu)
    function = partial(programs.sphere_rows, rule=rule, kind=type(by), options=options, divide=not on_cpu)
    finish = partial(programs.divide_by_outputs, eps) if divides_after else None
    key = (rule, type(by), on_cpu, *options.items())
    return VectorStep(
        moments=(moment,),
        rows=rows,
        key=(rule, by, on_cpu, *options.items()),
        measure=sphere_formulas.inner_products,
        decide=partial(rule, by=by, **options),
        move=move,
        compilable=Compilable(function, key, tuple(by), finish=finish),
    )


def check_adam(group: Group) -> None:
    """Raise for options that Adam cannot use."""
    check_betas(group["betas"])
    check_non_negative("eps", group["eps"])


def adam_numbers(group: Group, t: int) -> AdamNumbers:
    """Adam's options of the moment with the bias corrections of step t."""
    beta1, beta2 = group["betas"]
    return AdamNumbers(group["lr"], group["weight_decay"], beta1, beta2, 1 - beta1**t, 1 - beta2**t, group["eps"])


def plain_adam(group: Group, t: int) -> PlainStep:
    """Adam's own step, L2 in the gradient, of a tensor that does not turn."""
    beta1, beta2 = group["betas"]
    inner = InnerRule(
        direction=formulas.adam_l2,
        moments=("exp_avg", "exp_avg_sq"),
        numbers=formulas.adam_numbers(beta1, beta2, t, group["eps"]),
        lr=group["lr"],
        l2=group["weight_decay"],
        fused=formulas.fused_adam_,
    )
    return plain(inner)
