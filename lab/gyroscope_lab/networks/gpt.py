"""GPT in nanoGPT's shape (Karpathy 2022): GPT-2's blocks, tied embeddings, scaled initial residual projections."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gyroscope_lab.networks.attention import TransformerBlock

# Standard deviation of initial weights and embeddings in GPT-2.
INIT_STD = 0.02


@dataclass(frozen=True)
class GPTShape:
    """The size of a GPT. The defaults are nanoGPT's settings for a CPU."""

    vocabulary: int
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    bias: bool = False
    dropout: float = 0.0
    qk_norm: bool = False
    tied: bool = True
    """Whether the output layer is the embedding, as in GPT-2."""
    fan_in_init: bool = False
    """Whether initial matrices have a standard deviation of 1/√fan_in instead of GPT-2's. Embeddings keep GPT-2's."""


def _block(shape: GPTShape) -> TransformerBlock:
    return TransformerBlock(
        shape.width, shape.heads, causal=True, bias=shape.bias, qk_norm=shape.qk_norm, dropout=shape.dropout
    )


class GPT(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.shape = shape
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(_block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.token.weight
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            is_matrix = name.startswith("blocks.")
            deviation = parameter.shape[1] ** -0.5 if is_matrix and self.shape.fan_in_init else INIT_STD
            # The 2 residual branches of each layer add up to unit variance (GPT-2).
            residual = name.endswith("out.weight")
            nn.init.normal_(parameter, 0.0, deviation / (2 * self.shape.layers) ** 0.5 if residual else deviation)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, length, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, tokens: Tensor, following: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next token, in nats."""
        return F.cross_entropy(self(tokens).flatten(0, 1), following.flatten())
