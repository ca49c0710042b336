"""The paper's own training settings (Rotational Equilibrium, Table 4), in the words of `TrainConfig`."""

from typing import Any

_RESNET20: dict[str, Any] = {
    "task": "cifar10",
    "model": "resnet20",
    "augment": True,
    "batch_size": 128,
    "epochs": 200,
    "warmup": 5,
}

PRESETS: dict[str, dict[str, Any]] = {
    "resnet20-sgd": {**_RESNET20, "optimizer": "sgd", "lr": 0.5, "weight_decay": 1e-4},
    "resnet20-adamw": {**_RESNET20, "optimizer": "adamw", "lr": 5e-2, "weight_decay": 1e-2},
    "resnet20-lion": {**_RESNET20, "optimizer": "lion", "lr": 5e-4, "weight_decay": 1.0, "betas": (0.9, 0.999)},
}
