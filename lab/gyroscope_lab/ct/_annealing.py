"""A learning rate that falls as fast as Adam's bound grows in the unstable region (CT §3, Appendix N)."""

from functools import partial

import numpy as np
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gyroscope.theory.law import plain
from gyroscope.theory.stability import growth_rate
from gyroscope.tools import Integers, Values, step_array


def annealed_lr(n: int | Integers, lr: float, beta1: Values, beta2: Values, exact: bool = False) -> Values:
    """Return the learning rate at step n that cancels the growth of the bound (5).

        lr·exp(-n|C|/2) if C < 0, else lr     (CT 19)

    This is stronger than needed, as the paper notes. A discrete step grows by the smaller `growth_rate(…, exact=True)`.
    `exact` uses that instead of |C|/2 (ours).

    >>> f"{annealed_lr(100, lr=0.1, beta1=0.99, beta2=0.9):.5f}"
    '0.00106'
    """
    return plain(lr * np.exp(-step_array("n", n) * growth_rate(beta1, beta2, exact)))


def annealing(optimizer: Optimizer, exact: bool = False) -> LambdaLR:
    """Return the scheduler of CT's Appendix N. Each parameter group has the `annealed_lr` of its betas.

    >>> import torch
    >>> optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1, betas=(0.99, 0.9))
    >>> scheduler = annealing(optimizer)
    >>> for _ in range(100):
    ...     optimizer.step()
    ...     scheduler.step()
    >>> f"{optimizer.param_groups[0]['lr']:.5f}"
    '0.00106'
    """
    return LambdaLR(optimizer, [partial(_multiplier, group["betas"], exact) for group in optimizer.param_groups])


def _multiplier(betas: tuple[float, float], exact: bool, n: int) -> float:
    return float(annealed_lr(n, 1.0, *betas, exact))
