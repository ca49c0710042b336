"""A random walk of weight vectors under a real torch optimizer, on tangent noise for gradients."""

import torch


def noise_gradient(w, generator, unit_grad_norm=1.0):
    """White noise tangent to each row, of RMS norm unit_grad_norm / ‖w‖."""
    g = torch.randn(w.shape, generator=generator, dtype=w.dtype)
    norm2 = w.square().sum(1, keepdim=True)
    g -= w * (g * w).sum(1, keepdim=True) / norm2
    return g * unit_grad_norm / ((w.shape[1] - 1) * norm2).sqrt()


def angle(old, new):
    """Per row, without the digits that an arccos loses."""
    d = new - old
    along = (old * d).sum(1) / old.square().sum(1)
    return torch.atan2((d - along[:, None] * old).norm(dim=1), (1 + along) * old.norm(dim=1))


@torch.no_grad()
def walk(w, optimizer, steps, generator, unit_grad_norm=1.0, schedule=None):
    """(mean angle, RMS norm) over the rows of w, per step."""
    angles, norms = [], []
    for _ in range(steps):
        old = w.detach().clone()
        w.grad = noise_gradient(old, generator, unit_grad_norm)
        optimizer.step()
        angles.append(angle(old, w.detach()).mean().item())
        norms.append(w.detach().square().sum(1).mean().sqrt().item())
        if schedule is not None:
            schedule.step()
    return angles, norms
