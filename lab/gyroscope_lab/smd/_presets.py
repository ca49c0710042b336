"""The paper's own training settings (Spherical Motion Dynamics, section 5), as settings of `TrainConfig`.

The paper trains ResNet-50 on ImageNet, which is not available here. The same rates, decay and schedules train ResNet-18
on CIFAR-10. There is no substitute for its COCO detector.
"""

from typing import Any

_RESNET18: dict[str, Any] = {
    "task": "cifar10",
    "model": "resnet18",
    "augment": True,
    "batch_size": 256,
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "turn_head": False,
    "epochs": 90,
}
# lr is divided by 10 at epochs 30, 60 and 80 of 90 (Goyal et al. 2017).
_STAGES: dict[str, Any] = {"schedule": "step", "milestones": (1 / 3, 2 / 3, 8 / 9)}

PRESETS: dict[str, dict[str, Any]] = {
    "fixed-sgd": {**_RESNET18, "momentum": 0.0, "lr": 0.2, "schedule": "constant"},
    "fixed-sgdm": {**_RESNET18, "lr": 0.2, "schedule": "constant"},
    "stages": {**_RESNET18, **_STAGES, "lr": 0.1},
    "stages-rescaled": {**_RESNET18, **_STAGES, "lr": 0.1, "rescale": True},
    "stages-mobilenet": {**_RESNET18, **_STAGES, "model": "mobilenet", "lr": 0.5, "weight_decay": 4e-5},
}
