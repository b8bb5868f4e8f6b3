"""The table of tile forms, as native code reads it, against functions that say the same."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tile_oracle import decoded

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import FUNCTIONS, DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NpuConfig, SpmConfig
from npu_device.decode import decoder
from npu_device.decode.decoder import Decoder
from npu_device.decode.tile_decode import decode_tile
from npu_device.decode.tile_state import TileDecoder
from npu_device.memory.memory import Memory
from npu_device.memory.region import operand_words
from npu_device.operations.checks import DescriptorError
from npu_device.reservation.sums import Accumulators
from pyv_native.arena import zeros
from pyv_native.module import NativeModule, interpreted

DRAM_SIZE = 1 << 24
CONFIGS = [
    NpuConfig(),
    NpuConfig(clusters=2, spm=SpmConfig(size=65536, banks=4)),
    NpuConfig(
        spm=SpmConfig(size=1 << 16, banks=16, interleave="64B", port=None), dma=DmaConfig(partial_write="rmw"),
        dram=DramConfig(channels=4),
    ),
    replace(NpuConfig(), l2=replace(NpuConfig().l2, enabled=True)),
]  # fmt: skip
EQUAL_TYPES = (Opcode.LAYERNORM, Opcode.SOFTMAX, Opcode.GELU, Opcode.ROPE)


class Descriptors:
    """Random descriptors, about a fifth of them valid, the others wrong in one or two ways."""

    def __init__(self, config: NpuConfig, seed: int) -> None:
        self._config, self._random = config, Random(seed)

    def _seldom(self, value: int, otherwise: int, chance: float = 0.02) -> int:
        return value if self._random.random() < chance else otherwise

    def _address(self, in_dram: bool) -> int:
        random, size = self._random, self._config.spm.size
        cluster = random.randrange(self._config.clusters)
        spm = SPM_BASE + cluster * SPM_CLUSTER_STRIDE
        places = [
            spm + random.randrange(0, size, 64), spm + size - random.randrange(0, 8192, 32),
            DRAM_BASE + random.randrange(0, 1 << 20, 64), DRAM_BASE + DRAM_SIZE - random.randrange(0, 8192, 16),
            random.getrandbits(64), random.getrandbits(64) & ~63,
        ]  # fmt: skip
        (place,) = random.choices(places, (4, 3, 93, 4, 1, 1) if in_dram else (93, 4, 4, 1, 1, 1))
        return place + self._seldom(random.randrange(8), 0) & (1 << 64) - 1

    def _size(self) -> int:
        random = self._random
        (size,) = random.choices((0, random.randrange(1, 40), random.randrange(3000), random.getrandbits(32)),
                                 (1, 92, 5, 2))  # fmt: skip
        return size

    def _types(self, opcode: int, function: int) -> list[int]:
        random, base = self._random, self._random.randrange(1, 12)
        in0, in1, out, cache = base, base, base, 0
        if opcode in (Opcode.LOAD, Opcode.STORE, Opcode.COPY):
            in1, out = 0, random.choice((0, base))
        elif opcode == Opcode.GEMM_T:
            in0 = random.choice((1, 2, 7, 8, 9))
            in1, out = (in0, random.choice((1, in0))) if in0 < 6 else (random.choice((7, 8, 11)), random.choice((6, 7)))
        elif opcode == Opcode.ELTWISE:
            in1, out = random.choice((0, base)), random.choice((base, base, DataType.UINT8, base % 11 + 1))
            in0 = self._seldom(DataType.UINT8, in0, 0.2)
        elif opcode in EQUAL_TYPES:
            in0 = out = random.randrange(1, 6)
            in1 = random.choice((0, in0, 1))
        elif opcode in (Opcode.POOL, Opcode.REDUCE):
            in1, out = 0, random.choice((base, base, DataType.INT32))
        elif opcode == Opcode.GATHER:
            in1 = DataType.INT32
        elif opcode in (Opcode.KV_READ, Opcode.KV_APPEND):
            cache = random.choice((1, 2, 7, 8, 9))
            near = random.choice((cache, 1, 2))
            in0, in1, out = (0, 0, near) if opcode == Opcode.KV_READ else (near, 0, 0)
        return [self._seldom(random.randrange(16), kind) for kind in (in0, in1, out, cache)]

    def _parameters(self, opcode: int, k: int) -> tuple[int, int]:
        random = self._random
        if opcode == Opcode.POOL:
            taps, pads = (bytes(random.randrange(limit) for _ in range(4)) for limit in (4, 3))
            return int.from_bytes(taps, "little"), int.from_bytes(pads, "little")
        if opcode == Opcode.ELTWISE:
            return self._seldom(1, 0, 0.1), random.randrange(5) if random.random() < 0.5 else 0
        stride = random.choice((0, 0, 0, 64, 128, k, 4 * k, 1024)) & (1 << 32) - 1
        return stride, random.choice((0, 0, stride, self._seldom(random.getrandbits(32), 0)))

    def make(self) -> Descriptor:
        random = self._random
        opcode = self._seldom(random.choice((19, 77, 255)), random.choice([*Opcode, *[Opcode.ELTWISE] * 4]))
        functions = [*map(int, FUNCTIONS.get(opcode, (0,)))] if opcode < len(Opcode) else [0]
        function = self._seldom(random.randrange(256), random.choice(functions))
        in0, in1, out, cache = self._types(opcode, function)
        m, n, k = (self._size() for _ in range(3))
        if opcode in (Opcode.LOAD, Opcode.STORE, Opcode.KV_READ, Opcode.KV_APPEND):
            n = random.choice((0, 0, 64, 128, 4096, 8192, 48))
        param0, param1 = self._parameters(opcode, k)
        gemm = opcode == Opcode.GEMM_T
        clusters = self._config.clusters
        return Descriptor(
            opcode=opcode, op_reserved=self._seldom(1, 0), affinity=self._seldom(random.randrange(1, 6), 0, 0.1),
            cluster=self._seldom(clusters, random.randrange(clusters)), function=function,
            bank_mask=random.choice((0, 0, 0, 0, 255, random.randrange(256))), rank=random.randrange(1024),
            accumulate=self._seldom(1, 0, 0.3 if gemm else 0.01), in1_nk=self._seldom(1, 0, 0.3 if gemm else 0.01),
            in0_addr=self._address(opcode in (Opcode.LOAD, Opcode.GATHER, Opcode.KV_READ)),
            in1_addr=self._address(False), out_addr=self._address(opcode in (Opcode.STORE, Opcode.KV_APPEND)),
            tile_m=m, tile_n=n, tile_k=k, type_in0=in0, type_in1=in1, type_out=out, type_kv=cache, param0=param0,
            param1=param1,
        )  # fmt: skip


def memory_of(config: NpuConfig) -> Memory:
    regions: list[tuple[str, int, Any]] = [("DRAM", DRAM_BASE, zeros(DRAM_SIZE))]
    for cluster in range(config.clusters):
        base = SPM_BASE + cluster * SPM_CLUSTER_STRIDE
        regions.append((f"SPM{cluster}", base, bytearray(config.spm.size)))
    return Memory(regions)


def compare(config: NpuConfig, seed: int, count: int) -> Counter[int]:
    """Decode random descriptors twice: how often each code was the result."""
    memory, descriptors, codes = memory_of(config), Descriptors(config, seed), Counter[int]()
    table = Decoder(config, memory, Accumulators(config))
    for _ in range(count):
        d = descriptors.make()
        try:
            wanted, code = decoded(d, config, memory), 0
        except DescriptorError as error:
            wanted, code = None, error.code
        try:
            order = table.restore(d.pack(), None, 0, 0).order
        except Exception as error:
            cause = error.__context__
            assert isinstance(cause, DescriptorError), (d, error)
            assert cause.code == code, (d, cause.reason)
        else:
            assert wanted is not None, (d, code)
            assert (order.inputs, order.output) == (wanted.inputs, wanted.output), d
            tile = table._arena.root
            assert bytes(tile.operands.reserved())[: 8 * len(tile.operands)] == operand_words(
                [matrix.region for matrix in wanted.inputs], [wanted.output.region] if wanted.output else []
            ), d
        codes[code] += 1
    return codes


@pytest.mark.parametrize("config", CONFIGS, ids=("default", "clusters", "channels", "l2"))
@pytest.mark.parametrize("seed", range(2))
def test_native_code_decodes_as_functions_do(config: NpuConfig, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = NativeModule((decode_tile,), TileDecoder, checked=True).entry(decode_tile)
    monkeypatch.setattr(decoder, "_decode", lambda: checked)
    codes = compare(config, seed, 2000)
    assert codes[0] > 200
    assert len(codes) > 12


def test_cpython_decodes_as_functions_do(monkeypatch: pytest.MonkeyPatch) -> None:
    function = interpreted(decode_tile, TileDecoder)
    monkeypatch.setattr(decoder, "_decode", lambda: function)
    assert compare(CONFIGS[1], 7, 400)[0] > 40
