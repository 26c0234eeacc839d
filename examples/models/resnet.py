"""ResNet-18 (He et al., 2015, https://arxiv.org/abs/1512.03385): the examples need no torchvision."""

from __future__ import annotations

from torch import Tensor, nn


def _convolution(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, C, H, W) to (N, C', H / stride, W / stride)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(channels_in, channels_out, 3, stride)
        self.second = _convolution(channels_out, channels_out, 3)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = _convolution(channels_in, channels_out, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.relu(self.first(x)))
        return self.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of basic blocks: images (N, 3, H, W) to logits (N, classes)."""

    def __init__(self, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        width = 64
        self.stem = nn.Sequential(_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BasicBlock(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


def resnet18(classes: int = 1000) -> ResNet:
    """ResNet-18: 11.7 million parameters with 1000 classes."""
    return ResNet((2, 2, 2, 2), classes)
