# %% [markdown]
# # Diagnose a spike
#
# A bad batch reaches a training run. You find its step and its cause, fix it, and check the fix.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro

STEPS, BATCH, BAD = 900, 64, range(700, 704)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)


def train(path, clip=None):
    """Train on digits. A few batches have pixels from 0 to 16 instead of 0 to 1, and the labels of other images."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    with gyro.Tracker(model, optimizer, path, every=1) as tracker:
        for step in range(STEPS):
            batch = torch.randint(len(images), (BATCH,))
            pixels, digit = images[batch], labels[batch]
            if step in BAD:
                pixels, digit = 16 * pixels, digit.roll(1)
            loss = cross_entropy(model(pixels), digit)
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            tracker.log(loss=loss)
            if step % 20 == 0:
                tracker.flush()  # steps of such a small model may be faster than samples are processed
    return gyro.store.open_run(path)


# %% [markdown]
# ## What happened?
#
# The diagnosis names the step. Incidents come from the loss and from every layer's own past.

# %%
run = train("runs/spike")
print(run.diagnose())

# %% [markdown]
# ## Look at the step
#
# The gradient of every layer jumps together with the loss. The learning rate does not change. So the cause is in the batch.

# %%
steps, losses = run.scalar("loss")
for step in range(BAD.start - 2, BAD.start + 3):
    gradient = run.series("0.weight", "unit_grad_norm")[run.steps == step][0]
    lr = run.series("0.weight", "lr")[run.steps == step][0]
    print(f"step {step}: loss {losses[steps == step][0]:8.3f}, gradient {gradient:9.3g}, lr {lr:.3g}")

# %% [markdown]
# ## Fix it
#
# The right fix is to the data. Clipping limits the damage of the next bad batch: compare how far the first layer rotates.

# %%
clipped = train("runs/clipped", clip=1.0)
for name, each in (("plain", run), ("clipped", clipped)):
    rotation = each.series("0.weight", "angular_update")
    steps, losses = each.scalar("loss")
    print(
        f"{name}: rotates up to {rotation[each.steps >= BAD.start].max():.3f} rad, last loss {losses[-50:].mean():.3f}"
    )

# %% [markdown]
# `gyroscope report runs/spike --at 700` opens the page at the step. `gyroscope report runs/spike runs/clipped` compares both runs.
# To be notified during training, pass `on_incident=print` to the tracker ([Find incidents](../incidents.md)).
