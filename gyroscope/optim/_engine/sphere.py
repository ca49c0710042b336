"""What the Adams on the sphere share: their numbers, and Adam's own step for what does not turn."""

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.optim import formulas
from gyroscope.optim._engine.steps import Group, InnerRule, PlainStep, plain
from gyroscope.optim.sphere_formulas import AdamNumbers


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
