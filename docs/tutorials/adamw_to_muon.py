# %% [markdown]
# # Convert AdamW to Muon and check it
#
# You convert tuned settings of AdamW to Muon for the hidden matrices, train both, and compare norms and rotation with the
# prediction.

# %%
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro
from gyroscope.theory import AdamW, Muon, match

WIDTH, STEPS = 64, 800
adamw_rule = AdamW(lr=2e-3, weight_decay=2.0, betas=(0.9, 0.99))

# %% [markdown]
# ## Convert
#
# `gyroscope convert adamw muon --lr 2e-3 --weight-decay 2 --shape 64x64` prints the same. Memory and norm are kept. Rotation is not,
# because Muon's momentum has another memory.

# %%
found = match(adamw_rule, Muon, shape=(WIDTH, WIDTH))
muon_rule = found.rule
print(f"Muon: lr {muon_rule.lr:.3g}, weight decay {muon_rule.weight_decay:.3g}, momentum {muon_rule.momentum}")
print("kept:", ", ".join(found.kept))

# %% [markdown]
# ## Train both
#
# Every hidden matrix is followed by a norm, the head is fixed, and labels cannot be learnt. Gradients then stay noise of a constant
# size, which is what the prediction is about.


# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, x):
        for layer in self.hidden:
            x = nn.functional.gelu(nn.functional.layer_norm(layer(x), (WIDTH,)))
        return self.head(x)


def train(name):
    torch.manual_seed(0)
    model = Network()
    model.head.requires_grad_(False)
    if name == "muon":
        optimizer = torch.optim.Muon(
            model.hidden.parameters(),
            lr=muon_rule.lr,
            weight_decay=muon_rule.weight_decay,
            momentum=muon_rule.momentum,
        )
    else:
        optimizer = torch.optim.AdamW(model.hidden.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=2.0)
    with gyro.Tracker(model, optimizer, f"runs/{name}", every=4) as tracker:
        for _ in range(STEPS):
            loss = cross_entropy(model(torch.randn(128, WIDTH)), torch.randint(64, (128,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.log(loss=loss)
    return gyro.store.open_run(f"runs/{name}")


runs = {name: train(name) for name in ("adamw", "muon")}

# %% [markdown]
# ## Check
#
# Muon rotates a whole matrix as one vector, so Frobenius norms are compared: a row's norm times the root of the number of rows.

# %%
for name, run in runs.items():
    late = slice(-len(run.steps) // 4, None)
    layer = "hidden.1.weight"
    vectors = run.layer(layer).vectors
    norm = run.series(layer, "norm", "rms")[late].mean() * vectors**0.5
    measured = run.series(layer, "angular_update")[late].mean()
    predicted = run.series(layer, "predicted_angular_update")[late].mean()
    print(f"{name}: norm of the matrix {norm:.2f}, rotation {measured:.4f} measured, {predicted:.4f} predicted")

# %% [markdown]
# The norms agree within a tenth, as asked for. Rotation is within a tenth of its prediction for AdamW and within a fifth for Muon:
# predictions assume Gaussian noise in every entry, and gradients of a small network are not quite that. [Transfer and
# convert](../transfer.md) has the other conversions, and [Theory](../theory.md#equal-settings-for-another-rule) the formulas.
