"""The paper's own training settings (Spherical Perspective, Tables 3 and 4), as settings of `TrainConfig`.

Crops and flips are the usual ones, because the paper names none. SVHN and ImageNet are not available here.
"""

from typing import Any

# Method -> optimizer and learning rate (Table 3). All have momentum or β1 = 0.9, which is the default.
METHODS: dict[str, dict[str, Any]] = {
    "SGD-M": {"optimizer": "sgd", "lr": 0.1},
    "Adam": {"optimizer": "adam", "lr": 1e-3},
    "AdamW": {"optimizer": "adamw", "lr": 1e-3},
    "AdamG": {"optimizer": "spherical-adam", "lr": 1e-2},
    "SGD-MRT": {"optimizer": "sgd-mrt", "lr": 0.1},
    "Adam-S": {"optimizer": "adam-s", "lr": 1e-3},
    "Adam-SRT": {"optimizer": "adam-srt", "lr": 1e-3},
}
# Weight decay in units of 10⁻³/128, and β2 (Table 4), in the order of METHODS.
_TABLE4: dict[tuple[str, str], tuple[tuple[int, float], ...]] = {
    ("cifar10", "resnet20"): ((32, 0), (64, 0.99), (16, 0.99), (64, 0.99), (4, 0), (64, 0.99), (1, 0.99)),
    ("cifar10", "resnet18"): ((32, 0), (1, 0.999), (8, 0.99), (64, 0.99), (32, 0), (2, 0.99), (1, 0.99)),
    ("cifar10", "vgg16"): ((32, 0), (4, 0.999), (32, 0.999), (64, 0.999), (8, 0), (4, 0.999), (2, 0.999)),
    ("cifar100", "resnet18"): ((64, 0), (16, 0.999), (16, 0.99), (16, 0.99), (64, 0), (16, 0.99), (0, 0.999)),
    ("cifar100", "vgg16"): ((64, 0), (8, 0.99), (2, 0.99), (8, 0.99), (16, 0), (8, 0.99), (1, 0.99)),
}
_TRAINING: dict[str, Any] = {
    "augment": True,
    "batch_size": 128,
    "epochs": 405,
    "schedule": "step",
    "milestones": (135 / 405, 225 / 405, 315 / 405),
    # S and RT are for filters before a norm. The last layer takes the plain step (Algorithm 1).
    "turn_head": False,
}

# Of quick sizes: half the width, images of 8 × 8 pixels, no augmentation.
SMALL: dict[str, Any] = {
    "model": "resnet20:width=8",
    "shrink": 4,
    "batch_size": 64,
    "augment": False,
    "epochs": None,
    "steps": 500,
}


def settings_of(task: str, model: str, method: str) -> dict[str, Any]:
    """Return the settings with which a method trains a network on a task."""
    place = list(METHODS).index(method)
    units, beta2 = _TABLE4[task, model][place]
    moments = {"betas": (0.9, beta2)} if beta2 else {}
    return {
        "task": task,
        "model": model,
        **METHODS[method],
        **moments,
        "weight_decay": units * 1e-3 / 128,
        **_TRAINING,
    }


PRESETS: dict[str, dict[str, Any]] = {
    f"{'' if task == 'cifar10' else f'{task}-'}{model}-{method.lower()}": settings_of(task, model, method)
    for task, model in _TABLE4
    for method in METHODS
}
