"""A small decoder-only transformer with qk-norm, which makes every query and key matrix of a head scale-invariant."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class TransformerShape:
    """The size of a transformer."""

    alphabet: int
    layers: int = 2
    heads: int = 4
    width: int = 64
    context: int = 32
    qk_norm: bool = True


class Attention(nn.Module):
    """Causal attention; with qk-norm its logits are LN(W_Q·x)ᵀLN(W_K·x), head by head (CT 4.1)."""

    mask: Tensor

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qk_norm = shape.qk_norm
        # By hand: torch's fused attention does not run under vmap, which trains many models at once.
        future = torch.full((shape.context, shape.context), -torch.inf).triu(1)
        self.register_buffer("mask", future, persistent=False)
        self.query, self.key, self.value, self.out = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """The values of this and earlier characters, weighted by attention."""
        q, k, v = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        if self.qk_norm:
            # eps is far below any variance here: a larger one would make the loss depend on norms.
            q, k = (F.layer_norm(y, y.shape[-1:], eps=1e-12) for y in (q, k))
        logits = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + self.mask[: x.shape[1], : x.shape[1]]
        out: Tensor = self.out((logits.softmax(3) @ v).transpose(1, 2).flatten(2))
        return out

    def _split(self, y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, context, width of a head)


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a skip."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.inner = nn.Linear(shape.width, 4 * shape.width)
        self.outer = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what attention and perceptron add."""
        x = x + self.attention(F.layer_norm(x, x.shape[-1:]))
        out: Tensor = x + self.outer(F.gelu(self.inner(F.layer_norm(x, x.shape[-1:]))))
        return out


class Transformer(nn.Module):
    """Characters in, logits of the next character out; initialised as GPT-2, from a seed."""

    def __init__(self, shape: TransformerShape, seed: int) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.alphabet, shape.width)
        self.place = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.alphabet, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                parameter.zero_() if name.endswith("bias") else parameter.normal_(0, 0.02, generator=generator)

    def forward(self, characters: Tensor) -> Tensor:
        """Logits (batch, context, characters of the alphabet)."""
        x = self.token(characters) + self.place(torch.arange(characters.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(F.layer_norm(x, x.shape[-1:]))
        return logits

    def loss(self, characters: Tensor, following: Tensor) -> Tensor:
        """Mean cross-entropy of the next character, in nats."""
        return F.cross_entropy(self(characters).flatten(0, 1), following.flatten())


def queries_and_keys(model: Transformer) -> Iterator[Tensor]:
    """The query and key matrices, all heads of a layer in one tensor; `per_head` takes them apart."""
    for block in model.blocks:
        assert isinstance(block, Block)
        yield from (block.attention.query.weight, block.attention.key.weight)


def per_head(weight: Tensor, heads: int) -> Tensor:
    """One flat row for each head's matrix."""
    return weight.reshape(heads, -1)
