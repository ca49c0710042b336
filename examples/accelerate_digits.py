"""Handwritten digits with Accelerate, measured by a tracker that is made after `prepare`.

python examples/accelerate_digits.py [steps]
"""

import sys
from itertools import cycle, islice

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gyroscope as gyro

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
optimizer = gyro.optim.RotationalAdamW(model, lr=1e-2, weight_decay=0.5)

accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=64, shuffle=True))
with gyro.Tracker(model, optimizer, "runs/accelerate", every=5) as tracker:
    for images, labels in islice(cycle(loader), steps):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        tracker.log(loss=loss)
    print(tracker.diagnose())  # noqa: T201
