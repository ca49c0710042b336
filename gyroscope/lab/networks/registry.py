"""Networks by name, made to fit a task: `resnet20`, or with options `gpt:layers=6,width=384`."""

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, cast

from torch import nn

from gyroscope.lab.networks.gpt import GPT, GPTShape
from gyroscope.lab.networks.mlp import MLP
from gyroscope.lab.networks.norms import Norm
from gyroscope.lab.networks.resnet import resnet18, resnet20
from gyroscope.lab.networks.vgg import VGG, PlainCNN
from gyroscope.lab.networks.vit import ViT, ViTShape
from gyroscope.nn import standardise

# (channels, height, width) of an image.
Shape = tuple[int, int, int]


def image_network(name: str, shape: Shape, classes: int, norm: str = "batch") -> nn.Module:
    """A network for images of this shape; norm="weight" standardises the weights of its convolutions."""
    kind, options = _parsed(name, tuple(IMAGE_NETWORKS))
    model = IMAGE_NETWORKS[kind](shape, classes, cast(Norm, norm), options)
    return standardise(model) if norm == "weight" else model


def text_network(name: str, vocabulary: int) -> GPT:
    """A network for texts of so many different characters."""
    _, options = _parsed(name, ("gpt",))
    return GPT(_shaped(GPTShape, options, vocabulary=vocabulary))


def _parsed(name: str, known: tuple[str, ...]) -> tuple[str, dict[str, int | bool]]:
    """The name and the options after the colon, whole numbers or true and false."""
    kind, _, text = name.partition(":")
    if kind not in known:
        near = get_close_matches(kind, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
        raise ValueError(f"unknown model {kind!r} for this task; {remedy}")
    options: dict[str, int | bool] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not (value.isdigit() or value in ("true", "false")):
            raise ValueError(
                f"model={name!r}: write options as {kind}:layers=6,width=384; {part!r} is not of that form"
            )
        options[key] = int(value) if value.isdigit() else value == "true"
    return kind, options


def _shaped(shape: Callable[..., Any], options: dict[str, int | bool], **fixed: Any) -> Any:
    """A shape's dataclass from options; an unknown one lists those that there are."""
    known = [field.name for field in fields(cast(Any, shape)) if field.name not in fixed]
    for key in options:
        if key not in known:
            raise ValueError(f"unknown option {key!r} of the model; it has {', '.join(known)}")
    return shape(**fixed, **options)


def _cnn(shape: Shape, classes: int, norm: Norm, options: dict[str, Any]) -> nn.Module:
    return PlainCNN(shape[0], classes, norm=norm, **options)


def _mlp(shape: Shape, classes: int, norm: Norm, options: dict[str, Any]) -> nn.Module:
    width = options.get("width", 256)
    layers = options.get("layers", 2)
    return MLP(shape[0] * shape[1] * shape[2], classes, (width,) * layers, norm=norm == "batch")


def _vit(shape: Shape, classes: int, norm: Norm, options: dict[str, Any]) -> nn.Module:
    return ViT(_shaped(ViTShape, options, channels=shape[0], pixels=shape[1], classes=classes))


IMAGE_NETWORKS: dict[str, Callable[[Shape, int, Norm, dict[str, Any]], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet20": lambda shape, classes, norm, options: resnet20(shape[0], classes, norm),
    "resnet18": lambda shape, classes, norm, options: resnet18(shape[0], classes, norm),
    "vgg13": lambda shape, classes, norm, options: VGG(shape[0], classes, 13, norm),
    "vgg16": lambda shape, classes, norm, options: VGG(shape[0], classes, 16, norm),
    "vit": _vit,
}
