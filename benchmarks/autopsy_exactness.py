"""How exact is an autopsy? The rotation of the last step from a checkpoint, against the step itself in float64.

An MLP and a small convolutional network learn handwritten digits with every optimizer whose last step an autopsy calls
exact. Weights before and after the last step give the angle of each neuron in float64. The autopsy gets the checkpoint
after it, in float32 as training saves it. Printed is the relative error over all neurons, its median and its largest.

`--record` writes benchmarks/records/autopsy_exactness.json. Exits with 1 if an error exceeds the limit.
"""

import argparse
import statistics
import sys
from functools import partial

import torch
from records import write_record
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW

import gyroscope as gyro
from gyroscope.optim import RotationalAdamW, RotationalSGD

OPTIMIZERS = {
    "AdamW": partial(AdamW, lr=3e-3, weight_decay=0.1),
    "Adam with L2": partial(Adam, lr=3e-3, weight_decay=1e-3),
    "SGD with momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "RotationalAdamW": partial(RotationalAdamW, lr=3e-3, weight_decay=0.1),
    "RotationalSGD": partial(RotationalSGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
}
SEEDS = range(3)
STEPS = 300
BATCH = 64
LIMIT = 1e-3


def mlp():
    """An MLP with BatchNorm."""
    return nn.Sequential(
        nn.Linear(64, 128, bias=False),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Linear(128, 128, bias=False),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def cnn():
    """Three convolutions with BatchNorm."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


NETWORKS = {"MLP": mlp, "CNN": cnn}


def angles(before, after):
    """Return the angle of each row in float64, by the length of the difference of unit vectors."""
    first, second = (nn.functional.normalize(w.double().flatten(1), dim=1) for w in (before, after))
    return 2 * torch.asin((second - first).norm(dim=1) / 2)


def relative_errors(network, optimizer_of, seed):
    """Train, and return the relative error of the autopsy's rotation for each neuron that moved."""
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    model = network()
    optimizer = optimizer_of(model.parameters())
    for _ in range(STEPS):
        before = {name: p.detach().clone() for name, p in model.named_parameters() if p.dim() > 1}
        batch = torch.randint(len(labels), (BATCH,))
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    autopsy = gyro.autopsy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    parts = []
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            layer = autopsy.layers[name]
            assert layer.exact, f"{name} is an estimate"
            measured = angles(before[name], weight.detach())
            moved = measured > 0  # a dead neuron does not rotate, and has no relative error
            parts.append((torch.as_tensor(layer.rotations).double() / measured - 1).abs()[moved])
    return torch.cat(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write benchmarks/records/autopsy_exactness.json")
    arguments = parser.parse_args()
    cases = []
    for optimizer, make in OPTIMIZERS.items():
        for network, module in NETWORKS.items():
            errors = torch.cat([relative_errors(module, make, seed) for seed in SEEDS])
            case = {
                "optimizer": optimizer,
                "network": network,
                "neurons": len(errors),
                "median": errors.median().item(),
                "percentile_99": errors.quantile(0.99).item(),
                "largest": errors.max().item(),
            }
            cases.append(case)
            print(f"{optimizer}, {network}: median {case['median']:.1e}, largest {case['largest']:.1e}")
    print(f"median of medians {statistics.median(case['median'] for case in cases):.1e}")
    if arguments.record:
        write_record("autopsy_exactness", {"seeds": len(SEEDS), "steps": STEPS, "cases": cases})
    return int(max(case["largest"] for case in cases) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
