"""A small GPT on Python's own source, Muon for its matrices and AdamW for the rest: one run, one line of tracking.

    python examples/muon_gpt.py [steps]

Behind and before every matrix stands a norm: its scale does not matter to the loss, and theory predicts its rotation.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, relu, scaled_dot_product_attention

import gyroscope as gyro

WIDTH, HEADS, CONTEXT, BATCH = 64, 2, 32, 2


def norm(x: Tensor) -> Tensor:  # noqa: D103
    return layer_norm(x, x.shape[-1:])


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        q, k, v = (layer(norm(x)).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        seen = scaled_dot_product_attention(norm(q), norm(k), v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + norm(self.out(norm(seen)))
        return x + norm(self.down(norm(relu(self.up(norm(x))))))


torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
wte, wpe, head = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH), nn.Linear(WIDTH, 256)
blocks = nn.Sequential(Block(), Block())
model = nn.ModuleDict({"wte": wte, "wpe": wpe, "blocks": blocks, "head": head})
muon = torch.optim.Muon(blocks.parameters(), lr=0.05, weight_decay=0.1)
rest = [{"params": [wte.weight, head.weight], "weight_decay": 0.1}, {"params": [wpe.weight, head.bias]}]
adamw = torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)

with gyro.Tracker(model, [muon, adamw]) as tracker:
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
        tokens = text[torch.randint(len(text) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
        logits = head(norm(blocks(norm(wte(tokens[:, :-1]) + wpe.weight))))
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        muon.step()
        adamw.step()
        tracker.log(loss=loss)
print(tracker.diagnose())  # noqa: T201
