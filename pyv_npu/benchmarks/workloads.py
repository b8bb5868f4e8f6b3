"""The workloads that peers were measured on, as macro commands in fp16: products, a Llama3-8B layer, ResNet-18."""

from typing import Any, NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import Activation, DataType, Eltwise, Norm, Opcode, Pool
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed

FP16 = DataType.FP16
SIZE = 2
"""Bytes of an element."""


class Stage(NamedTuple):
    """A command and what it is called."""

    name: str
    command: Listed


class Layers:
    """Commands that follow each other through DRAM, each with the whole scratchpad as its workspace."""

    def __init__(self, config: NpuConfig, tile: tuple[int, int, int] = (128, 128, 128), prefetch: int = 4) -> None:
        self.stages: list[Stage] = []
        self._tile = tile
        self._prefetch = prefetch
        self._workspace = {"workspace": SPM_BASE, "workspace_bytes": config.spm.size}
        self._next = DRAM_BASE

    def tensor(self, *shape: int) -> int:
        """Room for a tensor: its address."""
        size = SIZE
        for dimension in shape:
            size *= dimension
        address = self._next
        self._next += -(-size // 4096) * 4096
        return address

    def add(self, name: str, opcode: Opcode, fields: dict[str, int], own: dict[str, Any] | None = None,
            **words: Any) -> None:  # fmt: skip
        """One macro command; `fields` of its descriptor, `words` of its extended block."""
        m, n, k = self._tile
        shared: dict[str, int] = {
            "tile_m": m, "tile_n": n, "tile_k": k, "type_in0": FP16, "type_in1": FP16, "type_out": FP16,
            "prefetch_dist": self._prefetch,
        }  # fmt: skip
        descriptor = Descriptor(opcode=opcode, **(shared | fields))
        self.stages.append(
            Stage(name, Listed(descriptor, 0, Extended.make(opcode, own=own, **self._workspace, **words)))
        )

    def gemm(self, name: str, m: int, n: int, k: int, source: int | None = None) -> int:
        """M x K times K x N, weights of its own: the address of the result."""
        out = self.tensor(m, n)
        fields = {"in0_addr": source or self.tensor(m, k), "in1_addr": self.tensor(k, n), "out_addr": out}
        self.add(name, Opcode.GEMM_T, fields, m=m, n=n, k=k)
        return out

    def conv(self, name: str, size: int, cin: int, cout: int, kernel: int, stride: int, source: int,
             residual: int = 0) -> tuple[int, int]:  # fmt: skip
        """A square convolution with bias (of a folded batch norm), residual and ReLU: (address, size of the result)."""
        pad = kernel // 2
        result = (size + 2 * pad - kernel) // stride + 1
        out = self.tensor(result, result, cout)
        own = dict.fromkeys(("pt", "pl", "pb", "pr"), pad) | dict.fromkeys(("sh", "sw"), stride)
        own |= {"batch": 1, "h": size, "w": size, "cin": cin, "cout": cout, "kh": kernel, "kw": kernel, "dh": 1,
                "dw": 1, "groups": 1}  # fmt: skip
        epilogue = Epilogue.BIAS | Activation.RELU | (Epilogue.RESIDUAL if residual else 0)
        fields = {"in0_addr": source, "in1_addr": self.tensor(kernel * kernel * cin, cout), "out_addr": out}
        self.add(name, Opcode.CONV2D_T, fields, own, in2=residual, bias=self.tensor(2 * cout), epilogue=epilogue)
        return out, result


def product(
    config: NpuConfig, size: int, tile: tuple[int, int, int] = (128, 128, 128), prefetch: int = 4
) -> list[Stage]:
    """One square matrix product."""
    layers = Layers(config, tile, prefetch)
    layers.gemm(f"GEMM {size}", size, size, size)
    return layers.stages


HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 4096, 32, 8, 128, 14336


def llama_layer(config: NpuConfig, queries: int, keys: int) -> list[Stage]:
    """One decoder layer of Llama3-8B: `queries` tokens that see `keys` tokens."""
    layers = Layers(config)
    qkv = layers.gemm("QKV", queries, HIDDEN + 2 * KV_HEADS * HEAD_DIM, HIDDEN)
    attended = layers.tensor(queries, HIDDEN)
    own = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "q_len": queries, "kv_len": keys}
    cache = layers.tensor(keys, KV_HEADS * HEAD_DIM)
    layers.add(
        "attention", Opcode.ATTN_T,
        {"in0_addr": qkv, "in1_addr": cache, "out_addr": attended, "type_in1": 0, "type_kv": FP16},
        own, in2=layers.tensor(keys, KV_HEADS * HEAD_DIM),
    )  # fmt: skip
    projected = layers.gemm("projection", queries, HIDDEN, HIDDEN, attended)
    normed = _norm(layers, queries, projected)
    wide = layers.gemm("fc1", queries, 2 * FFN, HIDDEN, normed)
    gated = layers.tensor(queries, FFN)
    layers.add(
        "activation", Opcode.ELTWISE,
        {"in0_addr": wide, "in1_addr": wide + queries * FFN * SIZE, "out_addr": gated, "function": Eltwise.MUL,
         "tile_m": 16, "tile_n": 4096, "tile_k": 0},
        {}, m=queries, n=FFN,
    )  # fmt: skip
    _norm(layers, queries, layers.gemm("fc2", queries, HIDDEN, FFN, gated))
    return layers.stages


def _norm(layers: Layers, rows: int, source: int) -> int:
    out = layers.tensor(rows, HIDDEN)
    fields = {"in0_addr": source, "in1_addr": layers.tensor(HIDDEN), "out_addr": out, "function": Norm.RMS,
              "tile_m": 16, "tile_n": HIDDEN, "tile_k": 0}  # fmt: skip
    layers.add("norm", Opcode.LAYERNORM, fields, m=rows, n=HIDDEN)
    return out


def resnet18(config: NpuConfig) -> list[Stage]:
    """ResNet-18 at 224 x 224, batch 1, batch norms folded."""
    layers = Layers(config)
    at, size = layers.conv("conv1", 224, 3, 64, 7, 2, layers.tensor(224, 224, 3))
    pooled = layers.tensor(56, 56, 64)
    own = {"pool_batch": 1, "pool_h": size, "pool_w": size, "channels": 64}
    own |= {f"pool_{name}": value for names, value in (("kh kw", 3), ("sh sw", 2), ("dh dw pt pl pb pr", 1))
            for name in names.split()}  # fmt: skip
    fields = {"in0_addr": at, "out_addr": pooled, "function": Pool.MAX, "type_in1": 0, "tile_k": 0}
    layers.add("maxpool", Opcode.POOL, fields, own)
    at, size, cin = pooled, 56, 64
    for stage, cout in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            shortcut = at if stride == 1 else layers.conv(f"{name}.shortcut", size, cin, cout, 1, stride, at)[0]
            inner, small = layers.conv(f"{name}.conv1", size, cin, cout, 3, stride, at)
            at, size = layers.conv(f"{name}.conv2", small, cout, cout, 3, 1, inner, shortcut)
            cin = cout
    layers.gemm("fc", 1, 1000, 512, at)
    return layers.stages
