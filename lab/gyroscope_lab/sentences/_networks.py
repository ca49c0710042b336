"""The three networks of these trials: a GPT, a ResNet with batch norm, and an MLP without a norm."""

from typing import Any

# The learning rates of the ResNet and the MLP have the lowest loss among 1e-3, 3e-3 and 1e-2 after 400 steps without
# weight decay, on seeds 1000 and 1001. For the GPT, 1e-3 and 3e-3 are equally good there, and nanoGPT has 1e-3. No
# experiment judges a claim on these seeds.
NETWORKS: dict[str, dict[str, Any]] = {
    "GPT": {
        "task": "stdlib",
        "model": "gpt:layers=2,width=64,context=32",
        "batch_size": 12,
        "betas": (0.9, 0.99),
        "decay_embeddings": True,
        "clip": 1.0,
        "lr": 1e-3,
        "steps": 800,
    },
    "ResNet-8": {"task": "cifar10", "shrink": 4, "model": "resnet20:width=12,blocks=1", "lr": 1e-2, "steps": 400},
    "MLP": {"task": "cifar10", "shrink": 2, "model": "mlp:width=128", "norm": "none", "lr": 3e-3, "steps": 400},
}
