# %% [markdown]
# # A char-GPT from plan to report
#
# You plan a small GPT, train it, and read the report of the run. It takes half a minute on one core.

# %% [markdown]
# ## The model
#
# Two blocks on characters of Python's own source, with a norm before every matrix.

# %%
import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

import gyroscope as gyro

WIDTH, HEADS, CONTEXT, BATCH, STEPS = 48, 2, 32, 8, 600


def norm(x):
    return layer_norm(x, x.shape[-1:])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (layer(norm(x)).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        seen = scaled_dot_product_attention(norm(q), norm(k), v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + norm(self.out(seen))
        return x + norm(self.down(gelu(self.up(norm(x)))))


class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens):
        return self.head(norm(self.blocks(norm(self.wte(tokens) + self.wpe.weight))))


torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
model = CharGPT()

# %% [markdown]
# ## Plan
#
# `param_groups` sorts the model: matrices decay, embeddings do not. The plan needs no data.

# %%
groups = gyro.param_groups(model, weight_decay=2.0)
optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
plan = gyro.plan(model, optimizer, scheduler, steps=STEPS)
print("\n".join(str(plan).splitlines()[:10]))

# %% [markdown]
# ## Train
#
# One line tracks the run.

# %%
tracker = gyro.Tracker(model, optimizer, "runs/char-gpt", every=5)
for _ in range(STEPS):
    tokens = text[torch.randint(len(text) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    tracker.log(loss=loss)
tracker.close()

# %% [markdown]
# ## Read
#
# The first sentences explain what the run means. Then compare one layer with its prediction.

# %%
run = gyro.store.open_run("runs/char-gpt")
print(run.diagnose())

# %%
middle = len(run.steps) // 2
for layer in ("blocks.0.q.weight", "blocks.1.down.weight"):
    measured = run.series(layer, "angular_update")[middle]
    predicted = run.series(layer, "predicted_angular_update")[middle]
    print(f"{layer}: {measured:.4f} rad per step measured, {predicted:.4f} predicted")

# %% [markdown]
# ## The page
#
# `gyroscope report runs/char-gpt` writes the page that [Read a report](../report.md) explains.

# %%
from gyroscope.cli import main

main(["report", "runs/char-gpt", "-o", "report.html"])
