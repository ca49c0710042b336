"""Networks by name, made for a task: `resnet20`, or with options `gpt:layers=6,width=384`."""

from collections.abc import Callable
from inspect import signature
from math import prod
from typing import Any, cast

from torch import nn

from gyroscope.nn import standardise
from gyroscope.spelling import one_of
from gyroscope_lab.framework.named_options import Options, split_options
from gyroscope_lab.networks.gpt import GPT, GPTShape
from gyroscope_lab.networks.mlp import MLP
from gyroscope_lab.networks.mobilenet import MobileNet
from gyroscope_lab.networks.norms import Norm
from gyroscope_lab.networks.resnet import resnet18, resnet20
from gyroscope_lab.networks.transformer import EncoderDecoder, EncoderDecoderShape
from gyroscope_lab.networks.vgg import VGG, PlainCNN
from gyroscope_lab.networks.vit import ViT, ViTShape

# (channels, height, width) of an image.
Shape = tuple[int, int, int]
MakeImageNetwork = Callable[[Shape, int, Norm, Options], nn.Module]


def image_network(name: str, shape: Shape, classes: int, norm: str = "batch") -> nn.Module:
    """Return a network for images of this shape. norm="weight" standardises the weights of its convolutions."""
    kind, options = _parsed(name, tuple(IMAGE_NETWORKS))
    model = IMAGE_NETWORKS[kind](shape, classes, cast(Norm, norm), options)
    # To unit norm. Without a norm after them, entries of unit variance would make outputs √C times their inputs.
    return standardise(model, "norm") if norm == "weight" else model


def text_network(name: str, vocabulary: int) -> GPT:
    """Return a network for text with `vocabulary` different characters."""
    _, options = _parsed(name, ("gpt",))
    return GPT(_made(GPTShape, options, vocabulary=vocabulary))


def translation_network(name: str, vocabulary: int) -> EncoderDecoder:
    """Return a network for translation. `vocabulary` counts the different characters of both languages."""
    _, options = _parsed(name, ("transformer",))
    return EncoderDecoder(_made(EncoderDecoderShape, options, vocabulary=vocabulary))


def _parsed(name: str, known: tuple[str, ...]) -> tuple[str, Options]:
    """Return the kind of a known network and its options, which are numbers or true and false."""
    kind, options = split_options(name)
    one_of("model for this task", kind, known)
    for key, value in options.items():
        if isinstance(value, str):
            raise ValueError(
                f"model={name!r}: {key}={value!r} is not a number: write options as gpt:layers=6,width=384"
            )
    return kind, options


def _made(make: Callable[..., Any], options: Options, **fixed: Any) -> Any:
    """Make a network or its shape with options, or raise ValueError that lists the known options."""
    known = [name for name in signature(make).parameters if name not in fixed]
    for key in options:
        if key not in known:
            raise ValueError(f"unknown option {key!r} of the model: it has {', '.join(known) or 'none'}")
    return make(**fixed, **options)


def _by_channels(make: Callable[..., nn.Module], **fixed: Any) -> MakeImageNetwork:
    """Return a function that makes a network for images of any size."""
    return lambda shape, classes, norm, options: _made(
        make, options, channels=shape[0], classes=classes, norm=norm, **fixed
    )


def _mlp(shape: Shape, classes: int, norm: Norm, options: Options) -> MLP:
    return cast(MLP, _made(MLP, options, inputs=prod(shape), classes=classes, norm=norm))


def _vit(shape: Shape, classes: int, norm: Norm, options: Options) -> ViT:
    return ViT(_made(ViTShape, options, channels=shape[0], pixels=shape[1], classes=classes))


IMAGE_NETWORKS: dict[str, MakeImageNetwork] = {
    "mlp": _mlp,
    "cnn": _by_channels(PlainCNN),
    "resnet20": _by_channels(resnet20),
    "resnet18": _by_channels(resnet18),
    "mobilenet": _by_channels(MobileNet),
    "vgg13": _by_channels(VGG, depth=13),
    "vgg16": _by_channels(VGG, depth=16),
    "vit": _vit,
}
