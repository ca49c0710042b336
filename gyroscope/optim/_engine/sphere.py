"""Steps on the sphere: their description for the loop, and the numbers of the Adams among them."""

from collections.abc import Callable, Mapping
from functools import partial

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.optim import formulas
from gyroscope.optim._engine.steps import FirstValue, Group, InnerRule, PlainStep, Vectors, VectorStep, plain
from gyroscope.optim.formulas import Change, Number
from gyroscope.optim.sphere_formulas import AdamNumbers, combine_, divide_, inner_products


def sphere(
    moment: str,
    rows: Mapping[str, FirstValue],
    rule: Callable[..., Change],
    numbers: tuple[Number, ...],
    vectors: Vectors,
    **options: float,
) -> VectorStep:
    """Return a step on the sphere. `rule(products, rows, fan_in, numbers, **options)` returns the `Change`."""
    finish = None
    # SGD's rule divides nothing. On other devices `combine_` divides.
    if isinstance(numbers, AdamNumbers) and vectors.device.type == "cpu":
        finish = partial(divide_, eps=numbers.eps)
    return VectorStep(
        moments=(moment,),
        rows=rows,
        numbers=numbers,
        key=(rule, *options.values()),
        measure=inner_products,
        decide=partial(rule, **options),
        move=combine_,
        finish=finish,
    )


def check_adam(group: Group) -> None:
    """Raise for options that Adam cannot use."""
    check_betas(group["betas"])
    check_non_negative("eps", group["eps"])


def adam_numbers(group: Group, t: int) -> AdamNumbers:
    """Return Adam's present options with the bias corrections of step t."""
    beta1, beta2 = group["betas"]
    return AdamNumbers(group["lr"], group["weight_decay"], beta1, beta2, 1 - beta1**t, 1 - beta2**t, group["eps"])


def plain_adam(group: Group, t: int) -> PlainStep:
    """Return Adam's own step, with L2 in the gradient, for a tensor that does not rotate."""
    beta1, beta2 = group["betas"]
    inner = InnerRule(
        direction=formulas.adam_l2,
        moments=("exp_avg", "exp_avg_sq"),
        numbers={**formulas.adam_numbers(beta1, beta2, t, group["eps"]), "l2": group["weight_decay"]},
        lr=group["lr"],
        fused=formulas.fused_adam_,
    )
    return plain(inner)
