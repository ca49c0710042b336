"""The loop of nanoGPT's train.py with one line of tracking, on a small GPT and Python's own source.

    python examples/nanogpt.py [steps]

The loop imitates train.py: gradient accumulation, clipping, a cosine with warmup that is set by hand, fused AdamW with
two groups, a GradScaler that is off in float32, tied embeddings, and an evaluation now and then.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import gyroscope as gyro

# The settings of nanoGPT's run on a CPU, in a smaller network.
N_LAYER, N_HEAD, N_EMBD, BLOCK_SIZE, BATCH_SIZE, VOCABULARY = 4, 4, 64, 64, 6, 256
MAX_ITERS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
LEARNING_RATE, MIN_LR, WARMUP_ITERS, WEIGHT_DECAY, BETAS, GRAD_CLIP = 1e-3, 1e-4, 100, 0.1, (0.9, 0.99), 1.0
ACCUMULATION_STEPS, EVAL_INTERVAL, EVAL_ITERS = 2, 250, 10


class Block(nn.Module):
    """Attention with fused queries, keys and values, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(N_EMBD, bias=False), nn.LayerNorm(N_EMBD, bias=False)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(N_EMBD, 3 * N_EMBD, bias=False), "c_proj": nn.Linear(N_EMBD, N_EMBD, bias=False)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(N_EMBD, 4 * N_EMBD, bias=False), "c_proj": nn.Linear(4 * N_EMBD, N_EMBD, bias=False)}
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        parts = self.attn["c_attn"](self.ln_1(x)).split(N_EMBD, dim=2)
        q, k, v = (part.unflatten(2, (N_HEAD, -1)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn["c_proj"](seen)
        return x + self.mlp["c_proj"](gelu(self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    """A GPT whose head is its token embedding."""

    def __init__(self) -> None:
        super().__init__()
        wte = nn.Embedding(VOCABULARY, N_EMBD)
        blocks = nn.ModuleList(Block() for _ in range(N_LAYER))
        layers = {"wte": wte, "wpe": nn.Embedding(BLOCK_SIZE, N_EMBD), "h": blocks, "ln_f": nn.LayerNorm(N_EMBD)}
        self.transformer = nn.ModuleDict(layers)
        self.lm_head = nn.Linear(N_EMBD, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * N_LAYER if name.endswith("c_proj.weight") else 1))
        self.lm_head.weight = wte.weight

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:  # noqa: D102
        x = self.transformer["wte"](idx) + self.transformer["wpe"].weight
        for block in self.transformer["h"]:
            x = block(x)
        return cross_entropy(self.lm_head(self.transformer["ln_f"](x)).flatten(0, 1), targets.flatten())


def get_batch(split: str) -> tuple[Tensor, Tensor]:  # noqa: D103
    part = text[: 9 * len(text) // 10] if split == "train" else text[9 * len(text) // 10 :]
    tokens = part[torch.randint(len(part) - BLOCK_SIZE, (BATCH_SIZE, 1)) + torch.arange(BLOCK_SIZE + 1)]
    return tokens[:, :-1], tokens[:, 1:]


def get_lr(it: int) -> float:
    """Return the learning rate of an iteration: a linear warmup, then a cosine."""
    if it < WARMUP_ITERS:
        return LEARNING_RATE * (it + 1) / (WARMUP_ITERS + 1)
    decayed = min((it - WARMUP_ITERS) / max(MAX_ITERS - WARMUP_ITERS, 1), 1.0)
    return MIN_LR + (LEARNING_RATE - MIN_LR) * (1 + math.cos(math.pi * decayed)) / 2


@torch.no_grad()
def estimate_loss() -> float:
    """Return the mean loss of a few batches that are not trained on."""
    return sum(model(*get_batch("val")).item() for _ in range(EVAL_ITERS)) / EVAL_ITERS


torch.manual_seed(1337)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
model = GPT()
parameters = [weight for weight in model.parameters() if weight.requires_grad]
groups = [
    {"params": [weight for weight in parameters if weight.ndim >= 2], "weight_decay": WEIGHT_DECAY},
    {"params": [weight for weight in parameters if weight.ndim < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=True)
scaler = torch.amp.GradScaler("cpu", enabled=False)

with gyro.Tracker(model, optimizer) as tracker:
    x, y = get_batch("train")
    for it in range(MAX_ITERS):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it)
        if it % EVAL_INTERVAL == 0:
            tracker.log(val_loss=estimate_loss())
        for _ in range(ACCUMULATION_STEPS):
            loss = model(x, y) / ACCUMULATION_STEPS
            x, y = get_batch("train")
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        tracker.log(loss=loss * ACCUMULATION_STEPS)
print(tracker.diagnose())  # noqa: T201
