"""Convolutional models."""

from typing import Any

from toolchain.examples.builder import Builder


def _conv(b: Builder, x: str, cin: int, cout: int, kernel: int, stride: int = 1) -> str:
    """Convolution and batch normalization."""
    pad = kernel // 2
    x = b.node("Conv", x, b.weight(cout, cin, kernel, kernel), strides=[stride] * 2, pads=[pad] * 4)
    return b.node("BatchNormalization", x, b.positive(cout), b.weight(cout), b.weight(cout), b.positive(cout))


def cnn(kind: str = "float32") -> Any:
    """Two convolutions and a classifier on 28 x 28."""
    b = Builder(kind)
    x = b.node("Relu", _conv(b, "x", 1, 8, 3))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Relu", _conv(b, x, 8, 16, 3))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Gemm", b.node("Flatten", x), b.weight(10, 784), b.weight(10), transB=1)
    return b.model("cnn", [1, 1, 28, 28], x, [1, 10])


def resnet18(kind: str = "float32", size: int = 224) -> Any:
    """He et al., arXiv 1512.03385, table 1: 18 layers."""
    b = Builder(kind)
    x = b.node("Relu", _conv(b, "x", 3, 64, 7, 2))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block in range(2):
            step = stride if block == 0 else 1
            y = b.node("Relu", _conv(b, x, channels, width, 3, step))
            y = _conv(b, y, width, width, 3)
            if step != 1 or channels != width:
                x = _conv(b, x, channels, width, 1, step)
            x = b.node("Relu", b.node("Add", y, x))
            channels = width
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(1000, 512), b.weight(1000), transB=1)
    return b.model("resnet18", [1, 3, size, size], x, [1, 1000])
