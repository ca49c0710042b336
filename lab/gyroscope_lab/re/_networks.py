"""The small networks of this paper's experiments here, as settings of `TrainConfig`."""

from typing import Any

# ResNet-8 on CIFAR-10 of 8 × 8 pixels: 9 ms a step on one core.
RESNET: dict[str, Any] = {
    "task": "cifar10",
    "shrink": 4,
    "model": "resnet20:width=8,blocks=1",
    "batch_size": 64,
}
# Two layers on characters of Shakespeare: 7 ms a step.
GPT: dict[str, Any] = {
    "task": "text:tinyshakespeare.txt",
    "model": "gpt:layers=2,width=48,context=32",
    "batch_size": 8,
}
# The same on 512 byte pairs of Shakespeare.
BYTE_PAIR_GPT: dict[str, Any] = {**GPT, "task": "bpe:tinyshakespeare.txt"}
# An encoder and a decoder of two layers on number words, in characters: 20 ms a step.
TRANSFORMER: dict[str, Any] = {
    "task": "translation",
    "model": "transformer:layers=2,width=48,hidden=96",
    "batch_size": 8,
}
# Two layers on CIFAR-10 of 16 × 16 pixels, in 16 patches: 15 ms a step.
VIT: dict[str, Any] = {"task": "cifar10", "shrink": 2, "model": "vit:layers=2,width=48", "batch_size": 32}
