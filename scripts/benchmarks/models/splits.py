"""Cycles of models by the number of tensor engines, of clusters and of other resources: more is never slower.

Every model is compiled and timed for each amount; the rest of the device does not change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from npu_device.config import NpuConfig
from pyv_npu.config.shape_file import shape_of
from pyv_npu.report.charts import Line, lines
from pyv_npu.report.page import render
from pyv_npu.sections import Note, Section, Table
from pyv_npu.units import quantity
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.compiler import compile_model
from toolchain.decoders.builtin import compile_shape
from toolchain.decoders.shapes import Job
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.examples.variants import in_int8
from toolchain.onnx_model.model import prepare

AXES: Mapping[str, Sequence[int]] = {"te.count": range(1, 9), "clusters": range(1, 5)}
RESOURCES: Mapping[str, Sequence[int]] = {
    "te.count": range(1, 9), "dma.channels": range(1, 5), "spm.banks": tuple(1 << i for i in range(6)),
    "dram.bytes_per_second": tuple(12_800_000_000 << i for i in range(6)),
}  # fmt: skip
"""The NoC has 5/2 of the DRAM bandwidth, as in the default device."""
ALL = {**AXES, **RESOURCES}
LIMIT = 1
"""Maximum slowdown in percent when a resource grows to its next amount."""
LEGEND = f"worst: the most that the next amount of a resource costs, in percent of cycles; the limit is {LIMIT}"
DECODER, CONTEXT, DRAM_SIZE = "llama2-7b", 512, 256_000_000_000
"""Decoder, number of tokens before the measured one, and bytes of DRAM of its device."""


def bert_layer(kind: str = "float32", length: int = 128, width: int = 768, heads: int = 12) -> Any:
    """Build a layer of BERT-base (Devlin et al., arXiv 1810.04805), as exporters write it."""
    b, size = Builder(kind), width // heads
    split, joined = (b.constant(np.array(shape, np.int64)) for shape in ([1, length, heads, size], [1, length, width]))

    def linear(x: str, k: int, n: int) -> str:
        return b.node("Add", b.node("MatMul", x, b.weight(k, n, scale=k**-0.5)), b.weight(n))

    def by_head(perm: list[int]) -> str:
        return b.node("Transpose", b.node("Reshape", linear("x", width, width), split), perm=perm)

    def norm(x: str, y: str) -> str:
        return b.node("LayerNormalization", b.node("Add", x, y), b.positive(width), b.weight(width), epsilon=1e-12)

    q, k, v = by_head([0, 2, 1, 3]), by_head([0, 2, 3, 1]), by_head([0, 2, 1, 3])
    scores = b.node("Div", b.node("MatMul", q, k), b.constant(np.array(size**0.5, b.kind)))
    mixed = b.node("Transpose", b.node("MatMul", b.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    x = norm("x", linear(b.node("Reshape", mixed, joined), width, width))
    y = linear(b.node("Gelu", linear(x, width, 4 * width)), 4 * width, width)
    return b.model("bert_layer", [1, length, width], norm(x, y), [1, length, width])


Cycles = Callable[[NpuConfig], int]
"""Cycles of a model on a device."""


def _model(name: str, make: Callable[[], Any]) -> Cycles:
    model = prepare(make(), name)

    def cycles(config: NpuConfig) -> int:
        return run_commands(compile_model(model, target_of(config)).commands, config).cycles

    return cycles


def _decode(layers: int, config: NpuConfig) -> int:
    config = replace(config, dram=replace(config.dram, size=DRAM_SIZE))
    decoder = compile_shape(Job(shape_of(DECODER), layers=layers, t_max=2 * CONTEXT), target_of(config), 1)
    return run_commands(decoder.commands, config, memory=decoder.position(CONTEXT)).cycles


MODELS: Mapping[str, Callable[[], Cycles]] = {
    **{name: partial(_model, name, EXAMPLES[name])
       for name in ("resnet18", "resnet18_int8", "mobilenet_v2", "mobilenet_v2_int8")},
    "gemm": partial(_model, "gemm", lambda: EXAMPLES["gemm"](1024, 1024, 1024, "float16")),
    "bert_layer": partial(_model, "bert_layer", bert_layer),
    "bert_layer_int8": partial(_model, "bert_layer_int8", in_int8(bert_layer)),
    f"{DECODER} decode": lambda: partial(_decode, shape_of(DECODER).layers),
    f"{DECODER} decode, 2 layers": lambda: partial(_decode, 2),
}  # fmt: skip
RESOURCE_MODELS = ("gemm", "resnet18", f"{DECODER} decode, 2 layers")
_timer = cache(lambda name: MODELS[name]())


def with_count(axis: str, count: int, config: NpuConfig | None = None) -> NpuConfig:
    """Return a device (default: the default device) with a given amount of a resource."""
    config = config or NpuConfig()
    section, _, key = axis.rpartition(".")
    if not section:
        return replace(config, clusters=count)
    if section == "dram":
        config = replace(config, noc=replace(config.noc, bytes_per_second=count * 5 // 2))
    return replace(config, **{section: replace(getattr(config, section), **{key: count})})


def timed(name: str, config: NpuConfig) -> int:
    """Compile a model for a device and return its cycles."""
    return _timer(name)(config)


def cycles(name: str, axis: str, config: NpuConfig | None = None) -> list[int]:
    """Return the cycles of a model for each amount of a resource."""
    return [timed(name, with_count(axis, count, config)) for count in ALL[axis]]


def worst(counts: list[int]) -> float:
    """Return the maximum slowdown from an amount to the next in percent; negative: minimum speedup."""
    return max(100 * (more - fewer) / fewer for fewer, more in pairwise(counts))


STUDIES: Mapping[str, tuple[Mapping[str, Sequence[int]], Sequence[str]]] = {
    "splits": (AXES, tuple(MODELS)), "resources": (RESOURCES, RESOURCE_MODELS),
}  # fmt: skip
"""Axes and models of each study."""


def sections(study: str) -> Iterator[Section]:
    """Yield a table and a chart for each axis of a study."""
    axes, names = STUDIES[study]
    for axis, counts in axes.items():
        rows = {name: cycles(name, axis) for name in names}
        amounts = [quantity(count, "bytes/s") if axis.endswith("per_second") else str(count) for count in counts]
        heads = ("model", "worst, %", *amounts)
        table = Table(heads, [[name, f"{worst(row):+.2f}", *row] for name, row in rows.items()], file=f"{axis}.csv")
        curves = [
            Line(name, [(amount, each / row[0]) for amount, each in zip(amounts, row, strict=True)])
            for name, row in rows.items()
        ]
        caption = f"parts of the cycles at {amounts[0]}"
        chart = lines(axis, f"Cycles by npu.{axis}", caption, curves, f"npu.{axis}", "part of cycles", dots=True)
        yield Section(axis, f"npu.{axis}", [chart, table])


def page(study: str, parts: Sequence[Section]) -> str:
    """Write the HTML page of a study."""
    return render(f"Cycles of models: {study}", [Note(LEGEND)], sections=parts)
