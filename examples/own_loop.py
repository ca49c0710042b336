"""An ordinary training loop, and the one line that measures it: handwritten digits, 400 steps, a few seconds.

    python examples/own_loop.py

Afterwards the run is a folder: `gyroscope.store.open_run(path)` reads it, from another program and during training too.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import gyroscope as gyro

STEPS = 400
BATCH = 64

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)  # pixels from 0 to 1
labels = torch.tensor(digits.target)

model = nn.Sequential(
    nn.Linear(64, 128, bias=False),
    nn.BatchNorm1d(128),
    nn.ReLU(),
    nn.Linear(128, 128, bias=False),
    nn.BatchNorm1d(128),
    nn.ReLU(),
    nn.Linear(128, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=2.0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
tracker = gyro.Tracker(model, optimizer)  # the added line

for _ in range(STEPS):
    batch = torch.randint(len(images), (BATCH,))
    noisy = images[batch] + 0.5 * torch.randn(BATCH, 64)
    loss = cross_entropy(model(noisy), labels[batch], label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

tracker.close()
run = gyro.store.open_run(tracker.path)
print(f"{len(run.steps)} samples of {', '.join(run.layers)} in {tracker.path}; rotation halfway, radians per step:")  # noqa: T201
for layer in run.layers:
    measured = run.series(layer, "angular_update")[20]
    predicted = run.series(layer, "predicted_angular_update")[20]
    print(f"  {layer}: {measured:.5f} measured, {predicted:.5f} predicted for equilibrium")  # noqa: T201
print(run.diagnose())  # noqa: T201
