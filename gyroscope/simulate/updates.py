"""Moves simulated weights: any torch optimizer, or rules of the theory, those of one kind in one batch.

Rows are weight vectors, those of one setting next to each other. An option in which settings differ is a column over
the rows, one in which they agree a number.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from gyroscope.optim import formulas as step
from gyroscope.optim.formulas import Number
from gyroscope.theory import SGDM, SGDMRT, AdamL2, AdamS, AdamSRT, AdamW, Lion, NAdam, NAdamL2, UpdateRule

# From parameters to an optimizer, for example `lambda params: torch.optim.RAdam(params, lr=1e-3)`.
Factory: TypeAlias = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

# A rule has no ε; this keeps 0/0 of a vector without gradients at 0.
EPS = 1e-30


class Update(ABC):
    """One step of rows of weights, in place."""

    @abstractmethod
    def __call__(self, t: int, multiplier: float) -> None:
        """Take step t = 1, 2, … at this share of the peak learning rate."""


@final
class TorchUpdate(Update):
    """An optimizer of torch, or one that honours its contract, on the weights of one setting."""

    def __init__(self, factory: Factory, weights: Tensor, grad: Tensor) -> None:
        parameter = torch.nn.Parameter(weights)  # shares their memory
        parameter.grad = grad
        self._optimizer = factory([parameter])
        self._lr = [group["lr"] for group in self._optimizer.param_groups]

    def __call__(self, t: int, multiplier: float) -> None:
        """The optimizer's step."""
        for group, lr in zip(self._optimizer.param_groups, self._lr, strict=True):
            group["lr"] = multiplier * lr
        self._optimizer.step()


class RuleUpdate(Update):
    """Rules of one kind, with their options as numbers or columns."""

    def __init__(self, rules: Sequence[Any], w: Tensor, grad: Tensor) -> None:
        self.rules = rules
        self.w = w
        self.grad = grad
        self.lr = self.option("lr")
        self.weight_decay = self.option("weight_decay")
        self.out = torch.empty_like(w)

    def option(self, name: str) -> Number:
        """An option of all rules: a float where they agree, else a column over the rows."""
        return self._spread([getattr(rule, name) for rule in self.rules])

    def betas(self) -> tuple[Number, Number]:
        """β1 and β2 of all rules."""
        beta1, beta2 = (self._spread([rule.betas[i] for rule in self.rules]) for i in range(2))
        return beta1, beta2

    def move_along(self, multiplier: float) -> None:
        """w ← w - a·w + lr·out, a = 0 where the decay is in the gradient."""
        lr = multiplier * self.lr
        if self.rules[0].is_decoupled:
            corrected = multiplier if self.rules[0].corrected_decay else 1.0
            # Not (1-a)·w, whose factor float32 would round.
            _add_(self.w, self.w, -corrected * lr * self.weight_decay)
        _add_(self.w, self.out, lr)

    def loss_gradient(self) -> Tensor:
        """g, with λw where the decay is in the gradient."""
        return self.grad if self.rules[0].is_decoupled else self.with_l2()

    def with_l2(self) -> Tensor:
        """g + λw."""
        return _add_(self.grad.clone(), self.w, self.weight_decay)

    def _spread(self, values: list[float]) -> Number:
        if len(set(values)) == 1:
            return values[0]
        column = torch.tensor(values, dtype=self.w.dtype, device=self.w.device)
        return column.repeat_interleave(len(self.w) // len(values))[:, None]


@final
class SGDMUpdate(RuleUpdate):
    """SGD with momentum and L2, plain or Nesterov's."""

    def __init__(self, rules: Sequence[SGDM], w: Tensor, grad: Tensor) -> None:
        super().__init__(rules, w, grad)
        self.momentum = self.option("momentum")
        self.m = torch.zeros_like(w)
        self.l2 = torch.as_tensor(self.weight_decay, dtype=w.dtype, device=w.device)

    def __call__(self, t: int, multiplier: float) -> None:
        """w ← w - lr·m, or Nesterov's combination."""
        nesterov = self.rules[0].nesterov
        step.sgd(self.grad, self.out, self.m, w=self.w, l2=self.l2, momentum=self.momentum, nesterov=nesterov)
        self.move_along(multiplier)


@final
class AdamUpdate(RuleUpdate):
    """AdamW, or Adam with L2."""

    def __init__(self, rules: Sequence[AdamW | AdamL2], w: Tensor, grad: Tensor) -> None:
        super().__init__(rules, w, grad)
        self.beta1, self.beta2 = self.betas()
        self.m = torch.zeros_like(w)
        self.v = torch.zeros_like(w)

    def __call__(self, t: int, multiplier: float) -> None:
        """w ← (1-a)·w - lr·m̂/√v̂, or with L2 in the gradient and a = 0."""
        grad = self.loss_gradient()
        bias = (1 - self.beta1**t) / (1 - self.beta2**t) ** 0.5
        step.adamw(grad, self.out, self.m, self.v, w1=1 - self.beta1, w2=1 - self.beta2, eps=EPS, bias=bias)
        self.move_along(multiplier)


@final
class NAdamUpdate(RuleUpdate):
    """NAdam without torch's ramp of β1, with decoupled decay or L2."""

    def __init__(self, rules: Sequence[NAdam | NAdamL2], w: Tensor, grad: Tensor) -> None:
        super().__init__(rules, w, grad)
        self.beta1, self.beta2 = self.betas()
        self.m = torch.zeros_like(w)
        self.v = torch.zeros_like(w)

    def __call__(self, t: int, multiplier: float) -> None:
        """AdamW's step with β1·m/(1-β1^(t+1)) + (1-β1)·g/(1-β1^t) in the place of m̂."""
        beta1 = self.beta1
        beta2 = self.beta2
        grad = self.loss_gradient()
        # For its m and v; the direction that it writes is replaced by Nesterov's.
        step.adamw(grad, self.out, self.m, self.v, w1=1 - beta1, w2=1 - beta2, eps=EPS, bias=1.0)
        ahead = beta1 / (1 - beta1 ** (t + 1)) * self.m + (1 - beta1) / (1 - beta1**t) * grad
        torch.div(ahead, self.v.sqrt().add_(EPS), out=self.out).mul_(-((1 - beta2**t) ** 0.5))
        self.move_along(multiplier)


@final
class LionUpdate(RuleUpdate):
    """Lion."""

    def __init__(self, rules: Sequence[Lion], w: Tensor, grad: Tensor) -> None:
        super().__init__(rules, w, grad)
        self.beta1, self.beta2 = self.betas()
        self.m = torch.zeros_like(w)

    def __call__(self, t: int, multiplier: float) -> None:
        """w ← (1-a)·w - lr·sign(β1·m + (1-β1)·g)."""
        step.lion(self.grad, self.out, self.m, w1=1 - self.beta1, w2=1 - self.beta2)
        self.move_along(multiplier)


class TransportUpdate(RuleUpdate):
    """Coupled decay, and momentum that may be transported with the weight."""

    def move(self, m: Tensor, rate: Number, transport: bool) -> Tensor:
        """w ← w - rate·m; with `transport` m ← RT(m). Returns ‖w‖²/‖w'‖² of each row.

        RT(m) = (⟨w',w⟩m - ⟨w',m⟩w)/⟨w',w'⟩     (SP 18)
        """
        before = self.out.copy_(self.w)
        _add_(self.w, m, -rate)
        if not transport:
            return torch.ones_like(m[:, :1])
        new2 = _dot(self.w, self.w)
        along = _dot(self.w, before) / new2
        across = _dot(self.w, m) / new2
        m.mul_(along).addcmul_(before, across, value=-1)
        return _dot(before, before) / new2


@final
class SGDMRTUpdate(TransportUpdate):
    """SGD-MRT."""

    def __init__(self, rules: Sequence[SGDMRT], w: Tensor, grad: Tensor) -> None:
        super().__init__(rules, w, grad)
        self.momentum = self.option("momentum")
        self.m = torch.zeros_like(w)

    def __call__(self, t: int, multiplier: float) -> None:
        """m ← α·m + g + λw, w ← w - lr·m, m ← RT(m)     (SP 76)."""
        self.m.mul_(self.momentum).add_(self.with_l2())
        self.move(self.m, multiplier * self.lr, transport=True)


@final
class AdamSUpdate(TransportUpdate):
    """Adam-S or Adam-SRT."""

    def __init__(self, rules: Sequence[AdamS | AdamSRT], w: Tensor, grad: Tensor) -> None:
        super().__init__(rules, w, grad)
        self.beta1, self.beta2 = self.betas()
        self.m = torch.zeros_like(w)
        self.v = torch.zeros_like(w[:, :1])  # one number for each vector
        self.transport = rules[0].transports_momentum

    def __call__(self, t: int, multiplier: float) -> None:
        """Adam's step with one v per vector; Adam-SRT: m ← RT(m), v ← v·‖w‖²/‖w'‖²     (SP Algorithm 1)."""
        beta1 = self.beta1
        beta2 = self.beta2
        grad = self.with_l2()
        self.v = beta2 * self.v + (1 - beta2) * _dot(grad, grad) / grad.shape[1]
        self.m.mul_(beta1).add_((1 - beta1) * grad)
        rate = multiplier * self.lr / (1 - beta1**t) / ((self.v / (1 - beta2**t)).sqrt() + EPS)
        self.v = self.v * self.move(self.m, rate, self.transport)


UPDATES: Mapping[type[UpdateRule], Callable[[Sequence[Any], Tensor, Tensor], Update]] = MappingProxyType(
    {
        SGDM: SGDMUpdate,
        AdamW: AdamUpdate,
        AdamL2: AdamUpdate,
        NAdam: NAdamUpdate,
        NAdamL2: NAdamUpdate,
        Lion: LionUpdate,
        AdamS: AdamSUpdate,
        AdamSRT: AdamSUpdate,
        SGDMRT: SGDMRTUpdate,
    }
)


def kind(optimizer: UpdateRule | Factory) -> tuple[Any, ...]:
    """What must agree for rules to move together; a factory is of its own kind."""
    if not isinstance(optimizer, UpdateRule):
        if not callable(optimizer):
            raise ValueError(f"{optimizer!r} is neither a rule nor a function that makes an optimizer of parameters")
        return ("factory", id(optimizer))
    if type(optimizer) not in UPDATES:
        known = ", ".join(rule.__name__ for rule in UPDATES)
        raise ValueError(
            f"there is no built-in update for {optimizer.name}, only for {known}: pass a function that makes "
            "an optimizer, for example lambda params: torch.optim.Muon(params, lr=1e-3)"
        )
    return (optimizer.name, optimizer.corrected_decay, optimizer.settings.get("nesterov", False))


def _add_(x: Tensor, y: Tensor, factor: Number) -> Tensor:
    return x.addcmul_(y, factor) if isinstance(factor, Tensor) else x.add_(y, alpha=factor)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1, keepdim=True)
