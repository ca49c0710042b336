"""A small network that trains, tracked, until it is stopped: python -m tests.render.train PATH."""

import sys
import time

import torch
from torch import nn

import gyroscope as gyro


def main(path):
    torch.manual_seed(0)
    blocks = [layer for _ in range(3) for layer in (nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.5), lr=1e-2, betas=(0.9, 0.99))
    with gyro.Tracker(model, optimizer, path, every=2):
        while True:
            x = torch.randn(32, 16)
            loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1), label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
