"""Models of a simulated gradient: tangent white noise, or the simple system of RE Appendix J.

Weights are (settings, vectors, entries). Either all settings share one draw of noise, which makes a sweep comparable
and cheap, or each has its own.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias, final

import torch
from torch import Tensor

# Random numbers drawn at once: large enough for few calls of the generator, small enough for the cache.
NOISE_BLOCK = 1 << 19

# Function that writes the next gradient at the weights of its first argument into the second.
Gradient: TypeAlias = Callable[[Tensor, Tensor], None]


def noise(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield standard normal tensors forever, drawn in blocks. Each is valid until the next is requested.

    The size of a block depends only on the shape, so a longer run begins exactly like a shorter one.
    """
    size = torch.Size(shape).numel()
    block = like.new_empty(max(1, NOISE_BLOCK // size), *shape)
    while True:
        yield from block.normal_(generator=generator)


@final
class TangentNoise:
    """White noise orthogonal to each vector, the gradient of a scale-invariant weight if noise dominates.

        g = (z - ⟨z,w⟩w/‖w‖²)·unit_grad_norm/(‖w‖·sqrt(C-1)),   z standard normal

    `unit_grad_norm` is (settings or 1, vectors or 1, 1).
    """

    def __init__(self, weights: Tensor, unit_grad_norm: Tensor, generator: torch.Generator, independent: bool) -> None:
        # C - 1 of C directions are tangent. With this factor the RMS norm of the gradient is exact.
        self._unit = unit_grad_norm / (weights.shape[2] - 1) ** 0.5
        self._noise = noise(tuple(weights.shape[0 if independent else 1 :]), weights, generator)

    def __call__(self, weights: Tensor, out: Tensor) -> None:
        """Write white noise into `out`, scaled for the norms of the weights."""
        z = next(self._noise)
        norm = torch.linalg.vector_norm(weights, dim=2, keepdim=True)
        along = torch.mul(weights, z, out=out).sum(2, keepdim=True)
        scale = self._unit / norm
        torch.mul(z, scale, out=out)
        out.addcmul_(weights, along * scale / norm**2, value=-1)


@final
class SimpleSystem:
    """f(X) = γ_out ⊙ N(W(γ_in ⊙ X)) with a batch normalisation N. Inputs and output gradients are noise (RE 88).

    X is standard normal (entries × batch), ∂L/∂f normal of standard deviation loss_scale/(vectors·batch). `scale` is
    loss_scale·γ_out, (settings or 1, vectors, 1). N has no ε, so each row of W is scale-invariant exactly.
    """

    def __init__(
        self,
        weights: Tensor,
        gamma_in: Tensor | None,
        scale: Tensor,
        batch: int,
        generator: torch.Generator,
        independent: bool,
    ) -> None:
        settings, vectors, entries = weights.shape
        self._gamma_in = None if gamma_in is None else gamma_in[:, None]
        self._scale = scale / (vectors * batch)
        self._batch = batch
        self._entries = entries
        shape = (entries + vectors, batch)
        self._noise = noise((settings, *shape) if independent else shape, weights, generator)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw γ_in ⊙ X and ∂L/∂N of the next step."""
        z = next(self._noise)
        x, upstream = z[..., : self._entries, :], z[..., self._entries :, :]
        return x if self._gamma_in is None else x * self._gamma_in, upstream * self._scale

    def __call__(self, weights: Tensor, out: Tensor) -> None:
        """Write the gradient into `out`, by a backward pass written by hand.

        ∂L/∂Z = (d - mean(d) - ẑ·⟨ẑ,d⟩/B)/σ for Z = W(γ_in ⊙ X), ẑ = N(Z), d = ∂L/∂ẑ     (RE 17)
        """
        x, d = self.draw()
        z = weights.flatten(0, 1) @ x if x.dim() == 2 else weights @ x
        z = z.view(*weights.shape[:2], self._batch)
        z -= z.mean(2, keepdim=True)
        inverse = 1 / torch.linalg.vector_norm(z, dim=2, keepdim=True)
        z *= inverse  # ẑ/√B
        d = d - d.mean(2, keepdim=True)
        d = (d - z * (z * d).sum(2, keepdim=True)) * (inverse * self._batch**0.5)
        # Shared noise is one matrix for all settings, so one large product is enough.
        if x.dim() == 2:
            torch.mm(d.flatten(0, 1), x.T, out=out.view(-1, self._entries))
        else:
            torch.bmm(d, x.mT, out=out)


def unit_grad_norm(shape: tuple[int, int], batch: int = 32, loss_scale: float = 1.0) -> float:
    """Return the exact RMS gradient norm at unit weight norm in the simple system with unit gammas.

        g̃² = (loss_scale/(K·B))²·(C-1)·(B-2)·B/(B-3)     (ours)

    Derived in docs/theory.md, "The gradient of the simple system".

    >>> f"{unit_grad_norm((128, 128)):.5f}"
    '0.01583'
    """
    vectors, entries = shape
    g2 = (loss_scale / (vectors * batch)) ** 2 * (entries - 1) * (batch - 2) * batch / (batch - 3)
    return float(g2**0.5)
