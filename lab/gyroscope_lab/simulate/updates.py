"""Updates of simulated weights by any torch optimizer or by rules of the theory, those of one kind in one batch.

Rows are weight vectors, grouped by setting. An option is a number if all settings share it, else a column over the
rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from gyroscope.optim import formulas as step
from gyroscope.optim.formulas import Number
from gyroscope.optim.lion import lion_direction
from gyroscope.optim.sgd import nesterov, sgd
from gyroscope.optimizers import SPECS
from gyroscope.theory import UpdateRule

# Function from parameters to an optimizer, for example `lambda params: torch.optim.RAdam(params, lr=1e-3)`.
Factory: TypeAlias = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

# A rule has no ε. This makes the step of a vector without gradients 0 instead of 0/0.
EPS = 1e-30


# Function that takes step t = 1, 2, … of rows of weights in place, at a share of the peak learning rate.
Update: TypeAlias = Callable[[int, float], None]


@final
class TorchUpdate:
    """An optimizer with torch's interface on the weights of one setting."""

    def __init__(self, factory: Factory, weights: Tensor, grad: Tensor) -> None:
        parameter = torch.nn.Parameter(weights)  # shares their memory
        parameter.grad = grad
        self._optimizer = factory([parameter])
        self._lr = [group["lr"] for group in self._optimizer.param_groups]

    def __call__(self, t: int, multiplier: float) -> None:
        """Take the optimizer's step."""
        for group, lr in zip(self._optimizer.param_groups, self._lr, strict=True):
            group["lr"] = multiplier * lr
        self._optimizer.step()


@final
class RuleUpdate:
    """Rules of one kind: their options as numbers or columns, and the momentum and second moment of their rows."""

    def __init__(self, rules: Sequence[UpdateRule], w: Tensor, grad: Tensor) -> None:
        self.rule = rules[0]
        self.w = w
        self.grad = grad
        settings = [rule.settings for rule in rules]
        self.lr, self.weight_decay = (
            self._spread([each[name] for each in settings]) for name in ("lr", "weight_decay")
        )
        if "betas" in settings[0]:
            self.beta1, self.beta2 = (self._spread([each["betas"][i] for each in settings]) for i in range(2))
        else:
            self.beta1 = self._spread([each["momentum"] for each in settings])
        self.m = torch.zeros_like(w)
        # Adam-S has one second moment for each vector. Its first step replaces this by a column.
        self.v = torch.zeros_like(w)
        self.out = torch.empty_like(w)
        self._step = SIMULATED[type(rules[0])]

    def __call__(self, t: int, multiplier: float) -> None:
        """Take the step of the rule."""
        self._step(self, t, multiplier)

    def _spread(self, values: list[float]) -> Number:
        """Return a float if the rules agree, else a column over the rows."""
        if len(set(values)) == 1:
            return values[0]
        column = torch.tensor(values, dtype=self.w.dtype, device=self.w.device)
        return column.repeat_interleave(len(self.w) // len(values))[:, None]

    def with_l2(self) -> Tensor:
        """Return g + λw."""
        return _add_(self.grad.clone(), self.w, self.weight_decay)

    def loss_gradient(self) -> Tensor:
        """Return g, or g + λw if the decay is in the gradient."""
        return self.grad if self.rule.is_decoupled else self.with_l2()

    def move_along(self, multiplier: float) -> None:
        """Update w ← w - a·w + lr·out, with a = 0 if the decay is in the gradient."""
        lr = multiplier * self.lr
        if self.rule.is_decoupled:
            corrected = multiplier if self.rule.corrected_decay else 1.0
            # Entries that the update shrinks. `out` is its negative.
            decaying = self.w * (self.w * self.out <= 0) if self.rule.cautious_decay else self.w
            # Not (1-a)·w, whose factor float32 would round.
            _add_(self.w, decaying, -corrected * lr * self.weight_decay)
        _add_(self.w, self.out, lr)

    def move_with_momentum(self, rate: Number) -> Tensor | float:
        """Update w ← w - rate·m, and m ← RT(m) if the rule transports it. Return ‖w‖²/‖w'‖² of each row, to scale v.

        RT(m) = (⟨w',w⟩m - ⟨w',m⟩w)/⟨w',w'⟩     (SP 18)
        """
        before = self.out.copy_(self.w)
        _add_(self.w, self.m, -rate)
        if not self.rule.transports_momentum:
            return 1.0
        new2 = _dot(self.w, self.w)
        along = _dot(self.w, before) / new2
        across = _dot(self.w, self.m) / new2
        self.m.mul_(along).addcmul_(before, across, value=-1)
        return _dot(before, before) / new2


def _sgdm(s: RuleUpdate, t: int, multiplier: float) -> None:
    """Update w ← w - lr·m, or with Nesterov's combination."""
    direction = nesterov if s.rule.settings["nesterov"] else sgd
    direction([s.w, s.grad, s.m], s.out, l2=s.weight_decay, momentum=s.beta1)
    s.move_along(multiplier)


def _adam(s: RuleUpdate, t: int, multiplier: float) -> None:
    """Update w ← (1-a)·w - lr·m̂/√v̂, or with L2 in the gradient and a = 0."""
    bias = (1 - s.beta1**t) / (1 - s.beta2**t) ** 0.5
    step.adamw([s.w, s.loss_gradient(), s.m, s.v], s.out, w1=1 - s.beta1, w2=1 - s.beta2, eps=EPS, bias=bias)
    s.move_along(multiplier)


def _nadam(s: RuleUpdate, t: int, multiplier: float) -> None:
    """Take Adam's step with β1·m/(1-β1^(t+1)) + (1-β1)·g/(1-β1^t) instead of m̂, without torch's ramp of β1."""
    grad = s.loss_gradient()
    # For its m and v. Nesterov's direction replaces the one that it writes.
    step.adamw([s.w, grad, s.m, s.v], s.out, w1=1 - s.beta1, w2=1 - s.beta2, eps=EPS, bias=1.0)
    ahead = s.beta1 / (1 - s.beta1 ** (t + 1)) * s.m + (1 - s.beta1) / (1 - s.beta1**t) * grad
    torch.div(ahead, s.v.sqrt().add_(EPS), out=s.out).mul_(-((1 - s.beta2**t) ** 0.5))
    s.move_along(multiplier)


def _lion(s: RuleUpdate, t: int, multiplier: float) -> None:
    """Update w ← (1-a)·w - lr·sign(β1·m + (1-β1)·g)."""
    lion_direction([s.w, s.grad, s.m], s.out, w1=1 - s.beta1, w2=1 - s.beta2)
    s.move_along(multiplier)


def _sgd_mrt(s: RuleUpdate, t: int, multiplier: float) -> None:
    """Update m ← α·m + g + λw, w ← w - lr·m, m ← RT(m)     (SP 76)."""
    s.m.mul_(s.beta1).add_(s.with_l2())
    s.move_with_momentum(multiplier * s.lr)


def _adam_s(s: RuleUpdate, t: int, multiplier: float) -> None:
    """Take Adam's step with one v per vector. Adam-SRT: m ← RT(m), v ← v·‖w‖²/‖w'‖²     (SP Algorithm 1)."""
    grad = s.with_l2()
    s.v = s.beta2 * s.v[:, :1] + (1 - s.beta2) * _dot(grad, grad) / grad.shape[1]
    s.m.mul_(s.beta1).add_((1 - s.beta1) * grad)
    rate = multiplier * s.lr / (1 - s.beta1**t) / ((s.v / (1 - s.beta2**t)).sqrt() + EPS)
    s.v = s.v * s.move_with_momentum(rate)


# Steps by the formula of the optimizer's record.
STEPS: Mapping[str, Callable[[RuleUpdate, int, float], None]] = MappingProxyType(
    {
        "sgd": _sgdm,
        "adam": _adam,
        "nadam": _nadam,
        "lion": _lion,
        "adam_s": _adam_s,
        "adam_srt": _adam_s,
        "sgd_mrt": _sgd_mrt,
    }
)
SIMULATED = {choice.rule: STEPS[spec.formula] for spec in SPECS for choice in spec.plans if spec.formula in STEPS}


def kind(optimizer: UpdateRule | Factory) -> tuple[Any, ...]:
    """Return a key that is equal for rules that can move together. Each factory has its own key."""
    if not isinstance(optimizer, UpdateRule):
        if not callable(optimizer):
            raise ValueError(f"{optimizer!r} is neither a rule nor a function from parameters to an optimizer")
        return ("factory", id(optimizer))
    if type(optimizer) not in SIMULATED or optimizer.counts_steps:
        known = ", ".join(rule.__name__ for rule in SIMULATED)
        raise ValueError(
            f"there is no built-in update for {optimizer!r}, only for {known}: pass a function from parameters to "
            "an optimizer, for example lambda params: torch.optim.Muon(params, lr=1e-3)"
        )
    decay = (optimizer.corrected_decay, optimizer.cautious_decay)
    return (optimizer.name, *decay, optimizer.settings.get("nesterov", False))


def _add_(x: Tensor, y: Tensor, factor: Number) -> Tensor:
    return x.addcmul_(y, factor) if isinstance(factor, Tensor) else x.add_(y, alpha=factor)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1, keepdim=True)
