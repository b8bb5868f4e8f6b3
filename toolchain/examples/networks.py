"""Fully connected and convolutional models."""

from itertools import pairwise
from typing import Any

import numpy as np

from toolchain.examples.builder import Builder


def gemm(m: int = 256, n: int = 256, k: int = 256, kind: str = "float16") -> Any:
    """Return a model of one product with a bias."""
    b = Builder(kind)
    return b.model("gemm", [m, k], b.node("Gemm", "x", b.weight(k, n), b.weight(n)), [m, n])


def mlp(batch: int | str = 16, kind: str = "float32") -> Any:
    """Return a 784 - 256 - 128 - 10 network, as for digits. A string as `batch` names an open dimension."""
    b = Builder(kind)
    x, sizes = "x", (784, 256, 128, 10)
    for index, (k, n) in enumerate(pairwise(sizes)):
        x = b.node("Gemm", x, b.weight(n, k), b.weight(n), transB=1)
        if index < len(sizes) - 2:
            x = b.node("Relu", x)
    return b.model("mlp", [batch, 784], b.node("Softmax", x), [batch, 10])


def qdq_mlp(batch: int = 16) -> Any:
    """Return two layers with activations and weights quantized to int8."""
    b = Builder()
    x = _through_int8(b, "x", 1 / 64)
    x = b.node("Relu", b.node("Gemm", x, _int8_weight(b, 64, 32), b.weight(32)))
    x = b.node("Gemm", _through_int8(b, x, 1 / 16), _int8_weight(b, 32, 16), b.weight(16))
    return b.model("mlp_qdq", [batch, 64], x, [batch, 16])


def _through_int8(b: Builder, name: str, scale: float) -> str:
    factor, zero = b.constant(np.array(scale, np.float32)), b.constant(np.array(0, np.int8))
    return b.node("DequantizeLinear", b.node("QuantizeLinear", name, factor, zero), factor, zero)


def _int8_weight(b: Builder, k: int, n: int) -> str:
    values = np.random.default_rng(k).integers(-127, 128, (k, n)).astype(np.int8)
    scales = np.full(n, 1 / (127 * k**0.5), np.float32)
    return b.node("DequantizeLinear", b.constant(values), b.constant(scales), b.constant(np.zeros(n, np.int8)), axis=1)


def _conv(b: Builder, x: str, cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
    """Return a convolution with batch normalization."""
    pad, weights = kernel // 2, b.weight(cout, cin // groups, kernel, kernel)
    x = b.node("Conv", x, weights, strides=[stride] * 2, pads=[pad] * 4, group=groups)
    return b.node("BatchNormalization", x, b.positive(cout), b.weight(cout), b.weight(cout), b.positive(cout))


def cnn(kind: str = "float32") -> Any:
    """Return two convolutions and a classifier on 28 x 28 images."""
    b = Builder(kind)
    x = b.node("Relu", _conv(b, "x", 1, 8, 3))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Relu", _conv(b, x, 8, 16, 3))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Gemm", b.node("Flatten", x), b.weight(10, 784), b.weight(10), transB=1)
    return b.model("cnn", [1, 1, 28, 28], x, [1, 10])


def resnet18(kind: str = "float32", size: int = 224) -> Any:
    """Return ResNet-18 (He et al., arXiv 1512.03385, table 1: 18 layers)."""
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


MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""(expansion, channels, blocks, stride) of each stage."""


def mobilenet_v2(kind: str = "float32", size: int = 224) -> Any:
    """Return MobileNetV2 (Sandler et al., arXiv 1801.04381, table 2): inverted residuals around depthwise
    convolutions."""
    b = Builder(kind)
    x, channels = _clip(b, _conv(b, "x", 3, 32, 3, 2)), 32
    for expansion, width, blocks, stride in MOBILENET_V2:
        for block in range(blocks):
            step, deep = stride if block == 0 else 1, expansion * channels
            y = _clip(b, _conv(b, x, channels, deep, 1)) if expansion > 1 else x
            y = _conv(b, _clip(b, _conv(b, y, deep, deep, 3, step, deep)), deep, width, 1)
            x = b.node("Add", x, y) if step == 1 and channels == width else y
            channels = width
    x = _clip(b, _conv(b, x, channels, 1280, 1))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(1000, 1280), b.weight(1000), transB=1)
    return b.model("mobilenet_v2", [1, 3, size, size], x, [1, 1000])


def _clip(b: Builder, x: str) -> str:
    """Return ReLU6."""
    return b.node("Clip", x, b.constant(np.array(0, b.kind)), b.constant(np.array(6, b.kind)))
