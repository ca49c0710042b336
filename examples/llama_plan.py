"""A plan of a Llama with 12 blocks, 86 weight matrices: what training will do, before its first step and without data.

    python examples/llama_plan.py [steps]

Shapes are those of a Llama, widths are small. A real model is planned in the same way, before it is moved to a GPU.
"""

import sys

import torch
from torch import nn

import gyroscope as gyro

WIDTH = 64
HIDDEN = 172
KV_WIDTH = 32  # grouped queries: fewer keys and values
BLOCKS = 12
TOKENS = 256
LR = 3e-4
WEIGHT_DECAY = 0.1


def block() -> nn.ModuleDict:
    """Return the weights of one block: attention and a gated MLP, with a norm before each."""
    shapes = {
        "q_proj": (WIDTH, WIDTH),
        "k_proj": (WIDTH, KV_WIDTH),
        "v_proj": (WIDTH, KV_WIDTH),
        "o_proj": (WIDTH, WIDTH),
        "gate_proj": (WIDTH, HIDDEN),
        "up_proj": (WIDTH, HIDDEN),
        "down_proj": (HIDDEN, WIDTH),
    }
    layers: dict[str, nn.Module] = {name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()}
    return nn.ModuleDict({**layers, "attention_norm": nn.RMSNorm(WIDTH), "mlp_norm": nn.RMSNorm(WIDTH)})


torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
model = nn.ModuleDict(
    {
        "embed_tokens": nn.Embedding(TOKENS, WIDTH),
        "layers": nn.ModuleList(block() for _ in range(BLOCKS)),
        "norm": nn.RMSNorm(WIDTH),
        "lm_head": nn.Linear(WIDTH, TOKENS, bias=False),
    }
)
for weight in model.parameters():
    if weight.ndim > 1:
        nn.init.normal_(weight, std=0.02)
groups = gyro.param_groups(model, weight_decay=WEIGHT_DECAY)
optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
print(gyro.plan(model, optimizer, scheduler, steps=steps))  # noqa: T201
