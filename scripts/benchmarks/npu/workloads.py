"""Workloads of the peers as NPU-IR in fp16: products, a Llama3-8B layer, ResNet-18.

They are compiled like any model, except for tiles and prefetch of the peers' schedules.
"""

from npu_device.abi.opcodes import DataType
from npu_device.config import NpuConfig
from npu_device.operations.windows import Windows
from pyv_npu.workloads.compiled import target_of
from toolchain.backend import Program, compile_layers
from toolchain.codegen.commands import MappingOptions
from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR

FP16 = DataType.FP16
ROWS = (16, 4096)
"""Tile of row operations."""


class Layers:
    """Builder of a graph of sequential layers, each with the whole scratchpad."""

    def __init__(self, name: str, tile: tuple[int, int, int] = (128, 128, 128), prefetch: int = 4) -> None:
        self.graph = Graph(name)
        self._tile, self._prefetch = tile, prefetch

    def tensor(self, name: str, *shape: int, kind: DataType = FP16, role: Role = Role.ACTIVATION) -> str:
        """Add a tensor and return its name, like all methods."""
        self.graph.tensors[name] = TensorIR(name, role, shape, kind)
        return name

    def input(self, name: str, *shape: int) -> str:
        """Add an input of the workload."""
        self.graph.inputs = (*self.graph.inputs, self.tensor(name, *shape))
        return name

    def weight(self, name: str, *shape: int, kind: DataType = FP16) -> str:
        """Add a weight."""
        return self.tensor(name, *shape, kind=kind, role=Role.WEIGHT)

    def view(self, base: str, name: str, *shape: int, offset: int = 0, pitch: int = 0) -> str:
        """Add a view of a part of a tensor."""
        self.graph.tensors[name] = TensorIR(name, Role.ACTIVATION, shape, FP16, base, offset=offset, pitch=pitch)
        return name

    def add(self, name: str, op: str, inputs: tuple[str, ...], shape: tuple[int, ...], tile: tuple[int, ...] = (),
            **attributes: Attribute) -> str:  # fmt: skip
        """Add a layer and return the name of its output tensor."""
        out = self.tensor(f"{name}.out", *shape)
        schedule: dict[str, Attribute] = {"tile": tile or self._tile, "buffers": 1, "prefetch": self._prefetch}
        self.graph.layers.append(LayerIR(name, op, inputs, (out,), {**attributes, **schedule}))
        return out

    def gemm(self, name: str, m: int, n: int, k: int, source: str) -> str:
        """Add a product, M x K times K x N, and its weights."""
        return self.add(name, "GEMM_T", (source, self.weight(f"{name}.weights", k, n)), (m, n), batch=1, m=m, n=n, k=k,
                        step0=0, step1=0)  # fmt: skip

    def norm(self, name: str, rows: int, columns: int, source: str) -> str:
        """Add an RMS normalization."""
        return self.add(name, "LAYERNORM", (source, self.weight(f"{name}.gamma", columns)), (rows, columns), ROWS,
                        function="RMS", m=rows, n=columns, epsilon=1e-5)  # fmt: skip

    def conv(self, name: str, size: int, cin: int, cout: int, kernel: int, stride: int, source: str,
             residual: str = "") -> tuple[str, int]:  # fmt: skip
        """Add a square convolution with bias (folded batch norm), residual and ReLU. Return (output, its size)."""
        pad = kernel // 2
        result = (size + 2 * pad - kernel) // stride + 1
        shape = Windows(1, size, size, kernel, kernel, stride, stride, 1, 1, pad, pad, pad, pad)
        weights = self.weight(f"{name}.weights", kernel, kernel, cin, cout)
        inputs = (source, weights, self.weight(f"{name}.bias", cout, kind=DataType.FP32), *filter(None, [residual]))
        out = self.add(
            name, "CONV2D_T", inputs, (result, result, cout), **shape._asdict(), cin=cin, cout=cout, groups=1,
            epilogue="bias+residual" if residual else "bias", activation="RELU",
        )  # fmt: skip
        return out, result

    def compiled(self, config: NpuConfig, result: str) -> Program:
        """Compile the graph for a device."""
        self.graph.outputs = (result,)
        return compile_layers(self.graph, target_of(config, MappingOptions(tile=self._tile)), traced=False)


def product(config: NpuConfig, size: int, tile: tuple[int, int, int] = (128, 128, 128), prefetch: int = 4) -> Program:
    """Compile one square matrix product."""
    layers = Layers(f"GEMM {size}", tile, prefetch)
    return layers.compiled(config, layers.gemm("product", size, size, size, layers.input("x", size, size)))


HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 4096, 32, 8, 128, 14336


def llama_layer(config: NpuConfig, queries: int, keys: int) -> Program:
    """Compile one decoder layer of Llama3-8B: `queries` tokens attend to `keys` tokens."""
    layers = Layers("Llama3-8B layer")
    width = HIDDEN + 2 * KV_HEADS * HEAD_DIM
    qkv = layers.gemm("QKV", queries, width, HIDDEN, layers.input("x", queries, HIDDEN))
    cached = [layers.input(name, keys, KV_HEADS * HEAD_DIM) for name in ("keys", "values")]
    q = layers.view(qkv, "q", queries, HIDDEN, pitch=width)
    attended = layers.add(
        "attention", "ATTN_T", (q, *cached), (queries, HIDDEN), (128, 128), m=queries, n=HIDDEN, heads=HEADS,
        kv_heads=KV_HEADS, keys=keys, t_max=0, scale=HEAD_DIM**-0.5, causal=0,
    )  # fmt: skip
    projected = layers.gemm("projection", queries, HIDDEN, HIDDEN, attended)
    wide = layers.gemm("fc1", queries, 2 * FFN, HIDDEN, layers.norm("norm1", queries, HIDDEN, projected))
    halves = [layers.view(wide, f"half{half}", queries, FFN, offset=half * queries * FFN) for half in range(2)]
    gated = layers.add("activation", "ELTWISE", (halves[0], halves[1]), (queries, FFN), ROWS, function="MUL", m=queries,
                       n=FFN)  # fmt: skip
    down = layers.gemm("fc2", queries, HIDDEN, FFN, gated)
    return layers.compiled(config, layers.norm("norm2", queries, HIDDEN, down))


def resnet18(config: NpuConfig) -> Program:
    """Compile ResNet-18 at 224 x 224, batch 1, batch norms folded."""
    layers = Layers("ResNet-18")
    x, size = layers.conv("conv1", 224, 3, 64, 7, 2, layers.input("x", 224, 224, 3))
    shape = Windows(1, size, size, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1)
    x = layers.add("maxpool", "POOL", (x,), (56, 56, 64), (128, 64), **shape._asdict(), function="MAX", channels=64)
    size, cin = 56, 64
    for stage, cout in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            shortcut = x if stride == 1 else layers.conv(f"{name}.shortcut", size, cin, cout, 1, stride, x)[0]
            inner, small = layers.conv(f"{name}.conv1", size, cin, cout, 3, stride, x)
            x, size = layers.conv(f"{name}.conv2", small, cout, cout, 3, 1, inner, shortcut)
            cin = cout
    return layers.compiled(config, layers.gemm("fc", 1, 1000, 512, layers.view(x, "features", 1, 512)))
