"""An optimizer that turns and stretches weight vectors by known amounts, and small models to measure."""

import torch
from torch import nn


class Turner(torch.optim.Optimizer):
    """Turns every row by `angle` towards a random tangent and multiplies its norm by `stretch`, exactly in float64.

    `angle` may be a tensor, one for each row. The weights then round to their dtype.
    """

    def __init__(self, params, angle=0.1, stretch=1.0, seed=0):
        super().__init__(params, {"lr": 1.0, "angle": angle, "stretch": stretch})
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                w = p.double().flatten(1)
                t = torch.randn(w.shape, dtype=torch.float64, generator=self.generator)
                t -= (t * w).sum(1, keepdim=True) / (w * w).sum(1, keepdim=True) * w
                t *= (w.norm(dim=1) / t.norm(dim=1))[:, None]
                angle = torch.as_tensor(group["angle"], dtype=torch.float64).reshape(-1, 1)
                p.copy_(((angle.cos() * w + angle.sin() * t) * group["stretch"]).reshape(p.shape))


def true_angle(before, after):
    """Angle between the rows of two tensors, in float64, by the half-angle formula of Kahan."""
    w0, w1 = (x.detach().double().flatten(1) for x in (before, after))
    w0, w1 = (x / x.norm(dim=1, keepdim=True) for x in (w0, w1))
    return 2 * torch.atan2((w1 - w0).norm(dim=1), (w1 + w0).norm(dim=1))


def rows_only(rows, columns, dtype=torch.float32, seed=0):
    """A model whose only weight has these rows, in `weight`, each of its own size."""
    torch.manual_seed(seed)
    model = nn.Linear(columns, rows, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.mul_(torch.logspace(-2, 2, rows)[:, None])
    return model


def train(model, optimizer, steps, *, scheduler=None, seed=0):
    """Steps on noise, with gradients for every parameter."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        noise_gradients(model, generator)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def noise_gradients(model, generator):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
