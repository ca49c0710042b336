"""Optimizers that no package index has, or that need a GPU or a mesh, written from their documented steps.

Each has the keys, attributes and package of its original. Only `step` is ours.
"""

from typing import Any

import torch
from torch import Tensor

QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
TORCHS = ((3.4445, -4.7750, 2.0315),) * 5


def newton_schulz(x: Tensor, coefficients: Any, safety: float = 1.0) -> Tensor:
    if x.shape[0] > x.shape[1]:
        return newton_schulz(x.T, coefficients, safety).T
    x = x / (x.norm() * safety)
    for a, b, c in coefficients:
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


class StandIn(torch.optim.Optimizer):
    """Steps each parameter by `update`, which returns the new weight."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.update(p, p.grad, self.state[p], group))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        raise NotImplementedError


def adam_direction(g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    beta1, beta2 = group["betas"]
    state["step"] = t = state.get("step", 0) + 1
    m = state["exp_avg"] = torch.lerp(state.get("exp_avg", torch.zeros_like(g)), g, 1 - beta1)
    v = state["exp_avg_sq"] = torch.lerp(state.get("exp_avg_sq", torch.zeros_like(g)), g * g, 1 - beta2)
    return m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])


class FusedAdam(StandIn):
    """apex, TransformerEngine and DeepSpeed: Adam with decoupled weight decay, or L2 if `adam_w_mode` is off."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0):  # fmt: skip
        super().__init__(params, lr=lr, bias_correction=bias_correction, betas=betas, eps=eps,
                         weight_decay=weight_decay)  # fmt: skip
        self.adam_w_mode = 1 if adam_w_mode else 0

    def update(self, p, g, state, group):
        if self.adam_w_mode:
            return p - group["lr"] * (adam_direction(g, state, group) + group["weight_decay"] * p)
        return p - group["lr"] * adam_direction(g + group["weight_decay"] * p, state, group)


class SkipStepAdamW(StandIn):
    """OLMo-core: AdamW. Without the fix its count stays 0, and with it the bias corrections of a first step."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, step_increment_bugfix=True):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.stepfix = step_increment_bugfix

    def update(self, p, g, state, group):
        u = adam_direction(g, state, group)
        if not self.stepfix:
            state["step"] = 0
        return p * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * u


class NestedAdamW(StandIn):
    """HeavyBall's AdamW: its state is kept by the number of a view of the parameter, of which there is one."""

    def __init__(self, params, lr=0.0025, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0):
        super().__init__(params, caution=False, lr=lr, warmup_steps=0, weight_decay=weight_decay, eps=eps, betas=betas,
                         cautious_weight_decay=False, storage_dtype="float32", mars=False, mars_gamma=0.0025,
                         beta2_scale=0.8, multi_tensor=True, ecc=None, param_ecc=None)  # fmt: skip

    def update(self, p, g, state, group):
        inside = state.setdefault(0, {"is_initialized": [0]})
        return p * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * adam_direction(g, inside, group)


class FusedSGD(StandIn):
    """apex: torch's SGD, with L2 before the momentum unless `wd_after_momentum`."""

    def __init__(self, params, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
                 wd_after_momentum=False):  # fmt: skip
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                         nesterov=nesterov)  # fmt: skip
        self.wd_after_momentum = wd_after_momentum

    def update(self, p, g, state, group):
        g = g if self.wd_after_momentum else g + group["weight_decay"] * p
        buffer = state["momentum_buffer"] = group["momentum"] * state.get("momentum_buffer", 0.0) + g
        return p - group["lr"] * (buffer + group["weight_decay"] * p if self.wd_after_momentum else buffer)


class DistMuon(StandIn):
    """torchtitan: torch's Muon, with one more adjustment, which is not held below 1."""

    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_coefficients=TORCHS[0],
                 eps=1e-7, ns_steps=5, adjust_lr_fn=None):  # fmt: skip
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                         ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps,
                         adjust_lr_fn=adjust_lr_fn)  # fmt: skip

    def update(self, p, g, state, group):
        beta = group["momentum"]
        m = state["momentum_buffer"] = torch.lerp(state.get("momentum_buffer", torch.zeros_like(g)), g, 1 - beta)
        u = newton_schulz(torch.lerp(g, m, beta) if group["nesterov"] else m, TORCHS)
        ratio = p.shape[0] / p.shape[1]
        scales = {"spectral_unclamped": ratio**0.5, "match_rms_adamw": 0.2 * max(p.shape) ** 0.5}
        scale = scales.get(group["adjust_lr_fn"], max(1, ratio) ** 0.5)
        return p * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * scale * u


class NoOpWeightUpdateHook:
    """Emerging-Optimizers' default hook."""


class HyperballHook:
    """The hook that keeps the norm."""


class EmergingMuon(StandIn):
    """Emerging-Optimizers' Muon, and MuonHyperball with a radius. Its options are attributes."""

    COEFFICIENTS = {"quintic": QUINTIC, "simple": TORCHS, "polar_express": POLAR_EXPRESS}  # noqa: RUF012

    def __init__(self, params, lr=3e-4, momentum=0.95, weight_decay=0.01, *, nesterov=False,
                 weight_decay_method="decoupled", coefficient_type="quintic", num_ns_steps=5, scale_mode="spectral",
                 extra_scale_factor=1.0, hyperball_radius=None):  # fmt: skip
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.nesterov = nesterov
        self.weight_decay_method = weight_decay_method
        self.coefficient_type = coefficient_type
        self.num_ns_steps = num_ns_steps
        self.scale_mode = scale_mode
        self.extra_scale_factor = extra_scale_factor
        self.radius = hyperball_radius
        self._weight_update_hook = NoOpWeightUpdateHook() if hyperball_radius is None else HyperballHook()

    def update(self, p, g, state, group):
        beta = group["momentum"]
        p = p * (1 - group["lr"] * group["weight_decay"])
        m = state["momentum_buffer"] = torch.lerp(state.get("momentum_buffer", torch.zeros_like(g)), g, 1 - beta)
        u = newton_schulz(torch.lerp(g, m, beta) if self.nesterov else m, self.COEFFICIENTS[self.coefficient_type])
        ratio = p.shape[0] / p.shape[1]
        scales = {"spectral": max(p.shape) ** 0.5, "shape_scaling": max(1, ratio) ** 0.5, "unit_rms_norm": ratio**0.5}
        u = u * scales[self.scale_mode] * self.extra_scale_factor
        if self.radius is None:
            return p - group["lr"] * u
        new = p - group["lr"] * u * self.radius / u.norm()
        return new * self.radius / new.norm()


def polar_express(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """dion's default, with a factor of safety."""
    return newton_schulz(x, POLAR_EXPRESS, 1.02)


def zeropower_via_newtonschulz5(x: Tensor, epsilon: float = 1e-7) -> Tensor:
    """dion's other iteration."""
    return newton_schulz(x, QUINTIC)


class Dion(StandIn):
    """dion's Muon and NorMuon: the momentum is a sum, and the decay follows the base learning rate."""

    def __init__(self, params, lr=0.01, mu=0.95, betas=(0.9, 0.95), weight_decay=0.01, cautious_wd=False,
                 nesterov=False, adjust_lr="spectral_norm", use_polar_express=True, algorithm="muon"):  # fmt: skip
        options = {"muon_beta2": 0.95} if algorithm == "normuon" else {}
        super().__init__(params, lr=lr, mu=mu, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay,
                         cautious_wd=cautious_wd, algorithm=algorithm, step=0, epsilon=1e-8, nesterov=nesterov,
                         flatten=False, adjust_lr=adjust_lr, **options)  # fmt: skip
        self._newton_schulz_func = polar_express if use_polar_express else zeropower_via_newtonschulz5

    def update(self, p, g, state, group):
        m = state["momentum"] = group["mu"] * state.get("momentum", 0.0) + g
        u = self._newton_schulz_func(group["mu"] * m + g if group["nesterov"] else m)
        if group["algorithm"] == "normuon":
            v = state.get("variance_neuron", torch.zeros_like(p[:, :1]))
            v = state["variance_neuron"] = torch.lerp(v, u.square().mean(1, keepdim=True), 1 - group["muon_beta2"])
            rows = u / (v.sqrt() + 1e-8)
            u = rows * u.norm() / rows.norm()
        ratio = p.shape[0] / p.shape[1]
        scale = {"spectral_norm": ratio**0.5, "rms_norm": 0.2 * max(p.shape) ** 0.5, None: 1.0}[group["adjust_lr"]]
        decay = group["lr"] * group["weight_decay"]
        kept = 1 - decay * ((p * u >= 0).to(p.dtype) if group["cautious_wd"] else 1.0)
        return p * kept - group["lr"] * scale * u


class MuonAdamW(StandIn):
    """nanochat: both kinds of groups. Muon's buffers are stacked and kept under the group's first parameter."""

    def __init__(self, param_groups):
        torch.optim.Optimizer.__init__(self, param_groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if group["kind"] == "adamw":
                for p in group["params"]:
                    decayed = p * (1 - group["lr"] * group["weight_decay"])
                    p.copy_(decayed - group["lr"] * adam_direction(p.grad, self.state[p], group))
            else:
                self.step_stack(group)

    def step_stack(self, group):
        params = group["params"]
        state = self.state[params[0]]
        g = torch.stack([p.grad for p in params])
        m = torch.lerp(state.get("momentum_buffer", torch.zeros_like(g)), g, 1 - group["momentum"])
        state["momentum_buffer"] = m
        rows, columns = g.shape[1:]
        along = 2 if rows >= columns else 1
        lr = group["lr"] * max(1.0, rows / columns) ** 0.5
        updates = []
        for each in torch.lerp(g, m, group["momentum"]):
            equal = each / each.norm(dim=1, keepdim=True)
            u = newton_schulz(equal, POLAR_EXPRESS, 1.01)
            updates.append(u * min(rows, columns) ** 0.5 / u.norm())
        u = torch.stack(updates)
        mean = u.square().mean(along, keepdim=True)
        v = torch.lerp(state.get("second_momentum_buffer", torch.zeros_like(mean)), mean, 1 - group["beta2"])
        state["second_momentum_buffer"] = v
        scaled = u / v.clamp_min(1e-10).sqrt()
        u = scaled * u.norm(dim=(1, 2), keepdim=True) / scaled.norm(dim=(1, 2), keepdim=True)
        for p, each in zip(params, u, strict=True):
            p.sub_(lr * each + lr * group["weight_decay"] * p * (each * p >= 0))


def of_package(cls: Any, name: str, package: str) -> Any:
    """Return a class as if it were defined in that package under that name."""
    return type(name, (cls,), {"__module__": f"{package}.somewhere"})
