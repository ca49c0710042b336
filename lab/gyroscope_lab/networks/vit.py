"""A vision transformer (Dosovitskiy et al. 2021) in DeiT's shape (Touvron et al. 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gyroscope_lab.networks.attention import TransformerBlock


@dataclass(frozen=True)
class ViTShape:
    """The size of a vision transformer, for images of 32 pixels. `paper()` is DeiT-tiny."""

    channels: int = 3
    pixels: int = 32
    patch: int = 4
    classes: int = 10
    layers: int = 6
    heads: int = 3
    width: int = 96
    qk_norm: bool = False
    fan_in_init: bool = False
    """Whether initial matrices have a standard deviation of 1/√fan_in instead of DeiT's 0.02."""

    @classmethod
    def paper(cls, classes: int = 1000) -> "ViTShape":
        """Return the size of DeiT-tiny for images of 224 pixels. 5.7M parameters."""
        return cls(pixels=224, patch=16, classes=classes, layers=12, heads=3, width=192)


class ViT(nn.Module):
    """A vision transformer: patches become tokens, and a linear layer reads the class token."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        if shape.pixels % shape.patch:
            raise ValueError(f"pixels={shape.pixels} is not a multiple of patch={shape.patch}")
        self.patches = nn.Conv2d(shape.channels, shape.width, shape.patch, shape.patch)
        count = (shape.pixels // shape.patch) ** 2
        self.class_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.position = nn.Parameter(torch.zeros(1, count + 1, shape.width))
        self.blocks = nn.Sequential(
            *(TransformerBlock(shape.width, shape.heads, qk_norm=shape.qk_norm) for _ in range(shape.layers))
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.classes)
        self._initialise(shape.fan_in_init)

    def _initialise(self, fan_in_init: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                deviation = module.in_features**-0.5 if fan_in_init else 0.02
                # torch truncates at ±2 by default, which is beyond any weight here.
                nn.init.trunc_normal_(module.weight, std=deviation)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.class_token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, pixels, pixels) to logits (batch, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)  # (batch, patches, width)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.position))
        logits: Tensor = self.head(x[:, 0])
        return logits
