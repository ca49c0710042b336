"""Transformer-S: a small encoder–decoder (Vaswani et al. 2017) with a norm before each layer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gyroscope_lab.networks.attention import FeedForward, MultiHeadAttention, TransformerBlock

# The token that fills short sentences. Nothing attends to it.
PADDING = 0


@dataclass(frozen=True)
class EncoderDecoderShape:
    """The size of an encoder–decoder. `paper()` is fairseq's size for IWSLT'14, which is RE's Transformer-S."""

    vocabulary: int
    context: int = 80
    layers: int = 2
    heads: int = 4
    width: int = 128
    hidden: int = 256
    dropout: float = 0.0

    @classmethod
    def paper(cls, vocabulary: int = 10_000) -> "EncoderDecoderShape":
        """Return the size of Transformer-S: six layers of width 512 on each side, with the dropout of RE, D-4."""
        return cls(vocabulary, context=1024, layers=6, heads=4, width=512, hidden=1024, dropout=0.3)


class DecoderBlock(nn.Module):
    """Causal attention, attention to the encoder's output, and a feed-forward network, with skip connections."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads, causal=True, dropout=dropout)
        self.norm2 = nn.LayerNorm(width)
        self.crossing = MultiHeadAttention(width, heads, crossing=True, dropout=dropout)
        self.norm3 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden, dropout=dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, attended: Tensor) -> Tensor:
        """Map (batch, length, width) and the encoder's (batch, source length, width) to (batch, length, width).

        `attended` (batch, source length) is False at the source's padding.
        """
        # The padding of a target is at its end, where causal attention does not reach.
        x = x + self.dropout(self.attention(self.norm1(x)))
        x = x + self.dropout(self.crossing(self.norm2(x), memory, attended))
        y: Tensor = x + self.feed_forward(self.norm3(x))
        return y


class EncoderDecoder(nn.Module):
    """A source sequence and the beginning of a target in, logits of each next target token out."""

    def __init__(self, shape: EncoderDecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.encoder = nn.ModuleList(
            TransformerBlock(shape.width, shape.heads, hidden=shape.hidden, dropout=shape.dropout)
            for _ in range(shape.layers)
        )
        self.encoder_norm = nn.LayerNorm(shape.width)
        self.decoder = nn.ModuleList(
            DecoderBlock(shape.width, shape.heads, shape.hidden, shape.dropout) for _ in range(shape.layers)
        )
        self.decoder_norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.token.weight
        # Tied to the output layer, embeddings of unit variance would give logits of size sqrt(width).
        nn.init.normal_(self.token.weight, std=shape.width**-0.5)
        nn.init.normal_(self.position.weight, std=shape.width**-0.5)

    def _embedded(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.dropout(self.token(tokens) + self.position(positions))
        return embedded

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map (batch, source length) and (batch, length) to logits (batch, length, vocabulary)."""
        attended = source != PADDING
        memory = self._embedded(source)
        for block in self.encoder:
            memory = block(memory, attended)
        memory = self.encoder_norm(memory)
        x = self._embedded(target)
        for block in self.decoder:
            x = block(x, memory, attended)
        logits: Tensor = self.head(self.decoder_norm(x))
        return logits
