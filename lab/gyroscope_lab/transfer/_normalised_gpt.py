"""A GPT whose matrices are all scale-invariant: a norm without a gain precedes and follows each of them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, relu, scaled_dot_product_attention


def norm(x: Tensor) -> Tensor:
    """Return the layer norm without gain or bias."""
    return layer_norm(x, x.shape[-1:])


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, of the same shape (batch, length, width)."""
        y = norm(x)
        q = norm(self._per_head(self.q(y)))
        k = norm(self._per_head(self.k(y)))
        v = self._per_head(self.v(y))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + norm(self.out(norm(attended)))
        return x + norm(self.down(norm(relu(self.up(norm(x))))))

    def _per_head(self, y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, length, width of a head)


class NormalisedGPT(nn.Module):
    """Characters in, their loss out. Embeddings and the head have no norm, so their scale matters."""

    def __init__(self, alphabet: int, *, blocks: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(alphabet, width)
        self.position = nn.Parameter(torch.randn(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, alphabet, bias=False)

    def loss(self, tokens: Tensor, following: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next character, in nats."""
        x = norm(self.token(tokens) + self.position)
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.head(norm(x)).flatten(0, 1), following.flatten())
