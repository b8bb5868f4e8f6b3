"""Random command lists with every opcode in both forms, and the machines that they run on."""

from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.kv_block import KvHalf
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Eltwise, Kernel, Norm, Opcode, Pool, Reduce, Scope
from npu_device.config import (
    DmaConfig,
    DramConfig,
    L2Config,
    NocConfig,
    NpuConfig,
    QueueConfig,
    SchedulerConfig,
    SpmConfig,
    TeConfig,
    VeConfig,
)

T = DataType
SPM_SIZE, DRAM_SIZE = 1 << 15, 1 << 18
WORK, WORK_BYTES = 0x4000, 0x4000
"""Offset of the workspace of macro commands in a scratchpad."""
NUMBERS = DRAM_BASE + 0x2000
"""Positions and indices: small numbers, one in eight out of range."""
PARAMETERS = DRAM_BASE + 0x3000
"""Of encoded caches: a good block, one with signs and magnitudes, one whose second half was never written."""
ENCODED = DRAM_BASE + 0x8000
"""Caches of encoded elements: all zeros, and what commands append."""
ENCODED_SHAPES = ((2, 32), (4, 32), (1, 64), (2, 96))
"""(KV heads, elements of a row)."""
SCALES = tuple(int(np.float32(value).view(np.uint32)) for value in (0.5, 0.03, 2.0))
FLOATS = (T.FP32, T.FP16)
BITWISE = (Eltwise.AND, Eltwise.OR, Eltwise.XOR, Eltwise.SHL, Eltwise.SHR)


class Case(NamedTuple):
    """A command, and its extended block in macro form."""

    descriptor: Descriptor
    block: Extended | None


class Lists:
    """The lists of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._bitwise = np.random.default_rng([seed, 1])
        """Draws of its own: whether a function is bitwise changes no other draw, nor a time."""
        apart = np.random.default_rng([seed, 2])
        """Draws of their own, for the same reason."""
        self._share = ("fair", "oldest")[apart.integers(2)]
        self._outstanding = (1, 2, 5)[apart.integers(3)]
        self.clusters = 1 + self._below(2)
        self._cluster = 0

    def _below(self, bound: int) -> int:
        return int(self._random.integers(bound))

    def _of(self, *choices: Any) -> Any:
        return choices[self._below(len(choices))]

    # -- machines ----------------------------------------------------------------------------------------------

    def config(self) -> NpuConfig:
        of = self._of
        direction = of("shared", "split")
        return NpuConfig(
            clusters=self.clusters, clock_ratio=of((1, 1), (3, 2), (1, 3)),
            te=TeConfig(count=1 + self._below(3), rows=of(2, 8), columns=4,
                        kind=of("roofline", "systolic_os", "systolic_ws", "systolic_ws_pipe")),
            ve=VeConfig(count=1 + self._below(3), lanes=8, latency=of(0, 16)),
            spm=SpmConfig(size=SPM_SIZE, banks=of(1, 4, 8), port=of(None, 8, 64), ports=of("1rw", "1r1w"),
                          interleave=of("block", "64B")),
            dma=DmaConfig(channels=2 if direction == "split" else 1 + self._below(4), direction=direction,
                          bytes_per_cycle=of(16, 128, None), buffering=of("full", "out", "none"), share=self._share,
                          outstanding=self._outstanding),
            dram=DramConfig(size=DRAM_SIZE, latency=of(0, 7, 120), bytes_per_second=of(7_000_000_000, None),
                            channels=of(1, 1, 4), interleave=of(256, 4096), row_model=of("none", "open")),
            noc=NocConfig(latency=of(0, 8), bytes_per_second=of(9_000_000_000, None)),
            l2=L2Config(enabled=of(False, True), bytes=of(512, 4096), ways=of(1, 2), hit=of(0, 20),
                        write_back=of(False, True), bypass_bytes=of(256, 65536), coherence=of("none", "io_coherent")),
            scheduler=SchedulerConfig(policy=of("fifo", "prio", "cp"), window=of(1, 2, 16)),
            queue=QueueConfig(tight_size=of(4, 64)),
        )  # fmt: skip

    def memory(self) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
        """DRAM and scratchpads: small numbers in every type, so that few results are infinite."""

        def small(size: int) -> np.ndarray[Any, Any]:
            values = self._random.integers(-8, 9, size // 2).astype(np.float16) / 4
            return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8).copy()

        dram = small(DRAM_SIZE)
        numbers = self._random.integers(0, 4, 64).astype("<i4")
        numbers[::8] = self._random.integers(-3, 12, 8)
        dram[NUMBERS - DRAM_BASE : NUMBERS - DRAM_BASE + 256] = numbers.view(np.uint8)
        limits = np.array((-1.5, -0.25, 0.25, 1.5), np.float16).view(np.uint16).tolist()
        halves = [KvHalf(tuple(limits), outlier_code=code).pack() for code in (0, 0, 1, 1, 0)]
        parameters = np.frombuffer(b"".join((*halves, bytes(32))), np.uint8)
        dram[PARAMETERS - DRAM_BASE : PARAMETERS - DRAM_BASE + len(parameters)] = parameters
        dram[ENCODED - DRAM_BASE : ENCODED - DRAM_BASE + 0x10000] = 0
        return dram, [small(SPM_SIZE) for _ in range(self.clusters)]

    # -- places ------------------------------------------------------------------------------------------------

    def _spm(self) -> int:
        return SPM_BASE + self._cluster * SPM_CLUSTER_STRIDE + 64 * self._below(12)

    def _dram(self) -> int:
        return DRAM_BASE + 64 * self._below(12)

    def _any(self) -> int:
        return self._of(self._spm(), self._dram())

    def _number(self) -> int:
        return NUMBERS + 4 * self._below(40)

    # -- commands ----------------------------------------------------------------------------------------------

    def commands(self, count: int) -> list[Case]:
        return [self._command() for _ in range(count)]

    def _command(self) -> Case:
        self._cluster = self._below(self.clusters)
        opcode = Opcode(self._of(*Opcode))
        tile, macro = (getattr(self, f"_{opcode.name.lower()}{form}", None) for form in ("", "_macro"))
        make = macro if tile is None or (macro is not None and self._below(2)) else tile
        assert make is not None
        made = make()
        fields, block = made if isinstance(made, tuple) else (made, None)
        fields |= {
            "opcode": opcode, "cluster": self._cluster, "stream": self._below(4), "prio": self._below(4),
            "rank": self._below(3), "prefetch_dist": self._below(3),
        }  # fmt: skip
        return Case(Descriptor(**fields), None if block is None else Extended.make(opcode, **block))

    def _block(self, own: dict[str, Any] | None = None, **shared: int) -> dict[str, Any]:
        work = SPM_BASE + self._cluster * SPM_CLUSTER_STRIDE + WORK
        return {"own": own, "workspace": work, "workspace_bytes": WORK_BYTES, **shared}

    def _tile(self, m: int = 0, n: int = 0, k: int = 0) -> dict[str, int]:
        """Tiles of macro forms; multiples of 2 where rows are cut."""
        return {"tile_m": 1 + self._below(m) if m else 0, "tile_n": 2 * (1 + self._below(n)) if n else 0,
                "tile_k": 2 * (1 + self._below(k)) if k else 0}  # fmt: skip

    def _nop(self) -> dict[str, Any]:
        return {}

    def _barrier(self) -> dict[str, Any]:
        return {"function": self._of(*Scope)}

    def _core(self) -> dict[str, Any]:
        return {"function": self._of(*Kernel), "tile_m": self._below(100), "tile_n": self._below(50)}

    def _moved(self, source: int, target: int) -> dict[str, Any]:
        kind, k = self._of((T.INT8, 24), (T.INT8, 64), (T.FP16, 12), (T.INT4, 20), (T.FP32, 8))
        return {"tile_m": 1 + self._below(5), "tile_k": k, "type_in0": kind, "in0_addr": source, "out_addr": target,
                "param0": self._of(0, 0, 64, 128), "param1": self._of(0, 0, 64, 96)}  # fmt: skip

    def _load(self) -> dict[str, Any]:
        return self._moved(self._dram(), self._spm())

    def _store(self) -> dict[str, Any]:
        return self._moved(self._spm(), self._dram())

    def _copy(self) -> dict[str, Any]:
        return self._moved(self._spm(), self._spm())

    def _copy_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        kind, size = self._of((T.INT8, 1), (T.FP16, 2), (T.FP32, 4))
        m, n, k, dim3 = (1 + self._below(3) for _ in range(4))
        out = self._of((64, 20, 8, 1), (1, 3, 9, 27), (27, 9, 3, 1), (40, -12, 4, 1))
        source = self._of((0, 5, 1, 0), (1, 3, 9, 27), (16, 4, 2, 1))
        own = {"dim3": dim3, "stride_in": [size * one for one in source], "stride_out": [size * one for one in out]}
        fields = {"type_in0": kind, "in0_addr": self._any(), "out_addr": self._any() + 128, **self._tile(m * n * k, 1)}
        return fields, self._block(own, m=m, n=n, k=k)

    def _gemm_t(self) -> dict[str, Any]:
        side = self._of(4, 8)
        fields = {"tile_m": side, "tile_n": side, "tile_k": self._of(2, 6, 8), "in1_nk": self._below(2),
                  "in0_addr": self._spm(), "in1_addr": self._spm(), "out_addr": self._spm()}  # fmt: skip
        if self._below(4) == 0:
            kind = self._of(*FLOATS)
            return fields | {"type_in0": kind, "type_in1": kind, "type_out": self._of(T.FP32, kind)}
        fields |= {"type_in0": self._of(T.INT8, T.UINT8, T.INT4), "type_in1": self._of(T.INT8, T.INT2, T.UINT4)}
        fields |= {"accumulate": self._below(2), "function": self._below(2), "type_out": T.INT32}
        if not fields["function"] and self._below(2):
            fields |= {"type_out": self._of(T.INT8, T.UINT8), "param0": self._of(*SCALES), "param1": self._below(9)}
        return fields

    def _gemm_t_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        m, n, k = self._of(3, 9, 16), self._of(4, 12), self._of(2, 8, 20)
        fields = {"type_in0": T.INT8, "type_in1": self._of(T.INT8, T.INT4), "type_out": T.INT32,
                  "in1_nk": self._below(2), "in0_addr": self._any(), "in1_addr": self._any(),
                  "out_addr": self._any(), **self._tile(6, 4, 5)}  # fmt: skip
        return fields, self._block(m=m, n=n, k=k, loop_order=self._below(2))

    def _conv2d_t_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        cin, cout = self._of(2, 4), self._of(2, 6)
        own = self._window() | {"cin": cin, "cout": cout, "groups": 1}
        fields = {"type_in0": T.INT8, "type_in1": T.INT8, "type_out": T.INT32, "in0_addr": self._any(),
                  "in1_addr": self._any(), "out_addr": self._any(), **self._tile(6, 3, 3)}  # fmt: skip
        return fields, self._block(own)

    def _window(self) -> dict[str, int]:
        pads = {name: self._below(2) for name in ("pt", "pl", "pb", "pr")}
        high, deep, step = 4 + self._below(3), 2 + self._below(2), 1 + self._below(2)
        return {"batch": 1, "h": high, "w": 5, "kh": deep, "kw": 2, "sh": step, "sw": 1, "dh": 1, "dw": 1, **pads}

    def _pool(self) -> dict[str, Any]:
        function, kind = self._of((Pool.MAX, T.INT8), (Pool.MAX, T.FP16), (Pool.AVG, T.FP32))
        w = self._window()
        taps = bytes(w[name] for name in ("kh", "kw", "sh", "sw")), bytes(w[name] for name in ("pt", "pl", "pb", "pr"))
        return {"function": function, "tile_m": w["h"], "tile_n": w["w"], "tile_k": 4, "type_in0": kind,
                "type_out": kind, "in0_addr": self._spm(), "out_addr": self._spm(),
                "param0": int.from_bytes(taps[0], "little"), "param1": int.from_bytes(taps[1], "little")}  # fmt: skip

    def _pool_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        function, kind = self._of((Pool.MAX, T.INT8), (Pool.AVG, T.FP16))
        own = {f"pool_{name}": value for name, value in self._window().items()} | {"channels": 4}
        fields = {"function": function, "type_in0": kind, "type_out": kind, "in0_addr": self._any(),
                  "out_addr": self._any(), **self._tile(6, 2)}  # fmt: skip
        return fields, self._block(own)

    def _eltwise(self) -> dict[str, Any]:
        f = self._of(Eltwise.ADD, Eltwise.SUB, Eltwise.MUL, Eltwise.DIV, Eltwise.MAX, Eltwise.MIN, Eltwise.RELU,
                     Eltwise.CLIP, Eltwise.WHERE, Eltwise.CAST, Eltwise.QUANT, Eltwise.DEQUANT, Eltwise.EQUAL,
                     Eltwise.GREATER, Eltwise.LESS, Eltwise.EXP)  # fmt: skip
        kind = self._of(T.INT8, T.INT32, T.UINT4, T.FP16, T.FP32)
        fields = {"function": f, "tile_m": 1 + self._below(4), "tile_n": self._of(7, 16), "in0_addr": self._spm(),
                  "out_addr": self._spm(), "type_in0": kind, "type_out": kind}  # fmt: skip
        two = f <= Eltwise.MIN or f in (Eltwise.EQUAL, Eltwise.GREATER, Eltwise.LESS)
        if two:
            fields |= {"type_in1": kind, "in1_addr": self._spm(), "param1": self._below(4)}
        if f <= Eltwise.MIN and kind not in FLOATS and self._bitwise.integers(2):
            fields["function"] = BITWISE[self._bitwise.integers(len(BITWISE))]
        if f in (Eltwise.EQUAL, Eltwise.GREATER, Eltwise.LESS):
            fields["type_out"] = T.UINT8
        elif f is Eltwise.WHERE:
            fields |= {"type_in0": T.INT8, "type_in1": kind, "in1_addr": self._spm()}
        elif f is Eltwise.CLIP:
            fields |= {"type_in0": T.INT8, "type_out": T.INT8, "param0": 2**32 - 3, "param1": 50}
        elif f is Eltwise.CAST:
            fields["type_out"] = self._of(T.INT8, T.UINT8, T.INT32, T.FP16, T.FP32)
        elif f is Eltwise.QUANT:
            fields |= {"type_in0": self._of(T.FP16, T.FP32, T.INT32), "type_out": self._of(T.INT8, T.UINT8, T.INT4),
                       "param0": self._of(*SCALES), "param1": self._below(5)}  # fmt: skip
        elif f is Eltwise.DEQUANT:
            fields |= {"type_in0": self._of(T.INT8, T.UINT8, T.INT4), "type_out": self._of(*FLOATS),
                       "param0": self._of(*SCALES), "param1": self._below(5)}  # fmt: skip
        elif f is Eltwise.EXP:
            fields |= {"type_in0": T.FP32, "type_out": T.FP32}
        return fields

    def _eltwise_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        kind = self._of(T.INT8, T.INT32, T.FP16)
        fields = {"function": self._of(Eltwise.ADD, Eltwise.SUB, Eltwise.MAX), "type_in0": kind, "type_in1": kind,
                  "type_out": kind, "in0_addr": self._any(), "in1_addr": self._any(), "out_addr": self._any(),
                  **self._tile(4, 4)}  # fmt: skip
        own = {"broadcast0": self._of(0, 0, 1), "broadcast1": self._below(4)}
        return fields, self._block(own, m=1 + self._below(7), n=self._of(6, 16))

    def _rows(self, kind: int, place: Any = None) -> dict[str, Any]:
        place = place or self._spm
        return {"type_in0": kind, "type_out": kind, "in0_addr": place(), "out_addr": place()}

    def _layernorm(self) -> dict[str, Any]:
        kind = self._of(*FLOATS)
        return self._rows(kind) | {"function": self._of(*Norm), "type_in1": kind, "in1_addr": self._spm(), "tile_m": 3,
                                   "tile_n": 8, "param0": SCALES[1]}  # fmt: skip

    def _layernorm_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        fields = self._rows(T.FP16, self._any) | {"function": self._of(*Norm), "param0": SCALES[1], **self._tile(3)}
        fields |= {"type_in1": T.FP16, "in1_addr": self._any()}
        return fields, self._block(m=1 + self._below(6), n=12)

    def _softmax(self) -> dict[str, Any]:
        return self._rows(self._of(*FLOATS)) | {"tile_m": 1 + self._below(4), "tile_n": 9}

    def _softmax_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._rows(T.FP16, self._any) | self._tile(3) | {"tile_n": 10}, self._block(m=5, n=10)

    def _gelu(self) -> dict[str, Any]:
        return self._rows(self._of(*FLOATS)) | {"tile_m": 1 + self._below(4), "tile_n": 9}

    def _gelu_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._rows(T.FP32, self._any) | self._tile(3, 4), self._block(m=5, n=10)

    def _reduction(self) -> dict[str, Any]:
        function = self._of(*Reduce)
        kind = T.FP32 if function is Reduce.MEAN else self._of(T.INT8, T.INT32, T.FP16)
        integer = function is Reduce.ARGMAX or (function is Reduce.SUM and kind in (T.INT8, T.INT32))
        return {"function": function, "type_in0": kind, "type_out": T.INT32 if integer else kind}

    def _reduce(self) -> dict[str, Any]:
        return self._reduction() | {"tile_m": 1 + self._below(5), "tile_n": 9, "in0_addr": self._spm(),
                                    "out_addr": self._spm()}  # fmt: skip

    def _reduce_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        fields = self._reduction() | {"in0_addr": self._any(), "out_addr": self._any(), **self._tile(3, 3)}
        return fields, self._block(m=1 + self._below(4), n=3, k=self._of(2, 6))

    def _gather(self) -> dict[str, Any]:
        kind = self._of(T.INT8, T.FP16)
        indices = self._spm()
        return {"type_in0": kind, "type_in1": T.INT32, "type_out": kind, "in0_addr": self._dram(), "in1_addr": indices,
                "out_addr": self._spm(), "tile_m": 1 + self._below(3), "tile_n": 1 << 9, "tile_k": 8}  # fmt: skip

    def _gather_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        fields = {"type_in0": T.INT8, "type_in1": T.INT32, "type_out": T.INT8, "in0_addr": self._dram(),
                  "in1_addr": self._number(), "out_addr": self._any(), **self._tile(3)}  # fmt: skip
        return fields, self._block(m=1 + self._below(5), n=12, k=5, ld0=self._of(0, 16))

    def _rope(self) -> dict[str, Any]:
        kind = self._of(*FLOATS)
        return self._rows(kind) | {"type_in1": kind, "in1_addr": self._spm(), "tile_m": 3, "tile_n": 8,
                                   "param0": self._below(2)}  # fmt: skip

    def _rope_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        own = {"rope_heads": 2, "rope_head_dim": 6, "rotary_dim": 4, "rope_flags": self._below(2), "rope_t_max": 8,
               "rope_pos_addr": self._of(0, self._number())}  # fmt: skip
        fields = self._rows(T.FP16, self._any) | {"type_in1": T.FP16, "in1_addr": self._any(), **self._tile(2)}
        return fields, self._block(own, m=1 + self._below(3), in2=self._any())

    def _cache(self) -> dict[str, int]:
        return {"kv_heads": self._of(1, 2), "head_dim": 8, "t_max": 6}

    def _kv(self) -> tuple[dict[str, Any], int, int]:
        kv, kind = self._of((T.INT8, T.INT8), (T.FP16, T.FP16), (T.INT4, T.INT4), (T.INT8, T.FP16), (T.INT4, T.FP32))
        scaled = {"param0": self._of(*SCALES), "param1": self._below(4)} if kv is not kind else {}
        return {"type_kv": kv, "tile_m": 1 + self._below(4), "tile_k": 16, **scaled}, kv, kind

    def _kv_read(self) -> dict[str, Any]:
        fields, _, kind = self._kv()
        return fields | {"type_out": kind, "in0_addr": self._dram(), "out_addr": self._spm()}

    def _kv_append(self) -> dict[str, Any]:
        fields, _, kind = self._kv()
        return fields | {"type_in0": kind, "in0_addr": self._spm(), "out_addr": self._dram()}

    def _encoded(self) -> tuple[dict[str, Any], int, int, dict[str, int]]:
        """(words of an encoded cache, address of keys, of values, words of its parameter block)."""
        which = self._below(len(ENCODED_SHAPES))
        heads, dim = ENCODED_SHAPES[which]
        keys = ENCODED + 0x4000 * which
        shared = {"epilogue": int(Epilogue.REQUANTIZE), "scale": PARAMETERS + 64 * self._of(0, 0, 0, 1, 1, 2)}
        own = {"kv_heads": heads, "head_dim": dim, "t_max": 6, "pos_addr": self._number()}
        return own | {"q_len": 1 + self._below(3)}, keys, keys + 0x2000, shared

    def _kv_append_encoded(self) -> tuple[dict[str, Any], dict[str, Any]]:
        own, *sides, shared = self._encoded()
        side = self._below(2)
        shared["scale"] += 32 * side
        fields = {"type_in0": self._of(*FLOATS), "type_kv": T.ENCODED, "in0_addr": self._any(),
                  "out_addr": sides[side], **self._tile(2)}  # fmt: skip
        return fields, self._block(own, **shared)

    def _attn_t_encoded(self) -> tuple[dict[str, Any], dict[str, Any]]:
        own, keys, values, shared = self._encoded()
        kind = self._of(*FLOATS)
        own |= {"heads": own["kv_heads"] * (1 + self._below(2)), "q_len": 1, "attn_scale": SCALES[0]}
        fields = {"type_in0": kind, "type_kv": T.ENCODED, "type_out": self._of(kind, T.FP32), "in0_addr": self._any(),
                  "in1_addr": keys, "out_addr": self._any(), "tile_m": 2, "tile_n": 1 + self._below(4),
                  "tile_k": own["head_dim"]}  # fmt: skip
        if self._below(2):
            fields["type_in1"] = kind
            own |= {"attn_flags": 2, "new_step": 512}
            shared["bias"] = self._any()
        return fields, self._block(own, in2=values, **shared)

    def _kv_append_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._below(3):
            return self._kv_append_encoded()
        kind = self._of(T.INT8, T.FP16)
        own = self._cache() | {"q_len": 1 + self._below(3), "pos_addr": self._of(0, self._number())}
        fields = {"type_in0": kind, "type_kv": kind, "in0_addr": self._any(), "out_addr": self._dram(), **self._tile(2)}
        return fields, self._block(own)

    def _kv_read_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        kind = self._of(T.INT8, T.FP16)
        own = self._cache() | {"kv_len": 1 + self._below(6)}
        fields = {"type_kv": kind, "type_out": kind, "in0_addr": self._dram(), "out_addr": self._any(), **self._tile(2)}
        return fields, self._block(own)

    def _attn_t_macro(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._below(3):
            return self._attn_t_encoded()
        own = self._cache() | {"heads": 2, "q_len": 1, "pos_addr": self._number(), "attn_scale": SCALES[0]}
        fields = {"type_in0": T.FP16, "type_kv": T.FP16, "type_out": self._of(T.FP16, T.FP32), "in0_addr": self._any(),
                  "in1_addr": self._dram(), "out_addr": self._any(), "tile_m": 2, "tile_n": 1 + self._below(4),
                  "tile_k": 8}  # fmt: skip
        return fields, self._block(own, in2=self._dram())
