"""Multi-head attention and the block around it, shared by GPT, the vision transformer and the encoder–decoder."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

# eps of qk-norm. A larger one would make the loss depend on the norms of queries and keys.
QK_EPS = 1e-12


class MultiHeadAttention(nn.Module):
    """Attention of x to itself or to `memory`. With qk-norm, queries and keys of each head have a fixed length.

    Queries, keys and values of self-attention come from one matrix, as GPT-2 stores them.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        qk_norm: bool = False,
        dropout: float = 0.0,
        crossing: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}: choose a divisor of the width")
        self.heads = heads
        self.causal = causal
        self.qk_norm = qk_norm
        self.dropout = dropout
        self.crossing = crossing
        if crossing:
            self.query = nn.Linear(width, width, bias=bias)
            self.key_value = nn.Linear(width, 2 * width, bias=bias)
        else:
            self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, memory: Tensor | None = None, attended: Tensor | None = None) -> Tensor:
        """Map (batch, length, width) to the same shape. `attended` (batch, length) is False at masked positions."""
        if self.crossing:
            assert memory is not None
            q = self.query(x)
            k, v = self.key_value(memory).chunk(2, dim=-1)
        else:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = self._per_head(q)
        k = self._per_head(k)
        v = self._per_head(v)
        if self.qk_norm:
            q = F.layer_norm(q, q.shape[-1:], eps=QK_EPS)
            k = F.layer_norm(k, k.shape[-1:], eps=QK_EPS)
        dropout = self.dropout if self.training else 0.0
        mask = None if attended is None else attended[:, None, None]  # for all heads and queries
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, dropout_p=dropout)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out

    def _per_head(self, y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, length, width of a head)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden, bias=bias)
        self.out = nn.Linear(hidden, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, width) to (…, width)."""
        y: Tensor = self.dropout(self.out(F.gelu(self.inner(x))))
        return y


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network `hidden` wide, each after a layer norm and with a skip connection."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hidden: int | None = None,
        causal: bool = False,
        bias: bool = True,
        qk_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=bias)
        self.attention = MultiHeadAttention(width, heads, causal=causal, bias=bias, qk_norm=qk_norm, dropout=dropout)
        self.norm2 = nn.LayerNorm(width, bias=bias)
        self.feed_forward = FeedForward(width, hidden or 4 * width, bias, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, attended: Tensor | None = None) -> Tensor:
        """Map (batch, length, width) to the same shape. `attended` is the mask of the attention."""
        x = x + self.dropout(self.attention(self.norm1(x), attended=attended))
        y: Tensor = x + self.feed_forward(self.norm2(x))
        return y
