"""Mutated commands, executed by a device to their end: small ones of every opcode, those of example models, and those
of an encoded cache."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_inputs import FoundError, compiled, flipped

from npu_device.abi.descriptor import DESCRIPTOR_SIZE, Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.instructions import PortReply
from npu_device.abi.kv_block import KvHalf, OutlierCode
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.abi.registers import REGISTERS
from npu_device.config import NpuConfig
from npu_device.device import NpuDevice
from npu_device.kv_quant.storage import EncodedCache
from npu_device.memory.memory import Memory
from npu_device.trace.stream import EventStream

DRAM_SIZE = 16 << 20
CTRL = next(register.offset for register in REGISTERS if register.name == "CTRL")
ENABLE = 1
BLOCK = DRAM_BASE + DRAM_SIZE - 4096
"""Of the extended block; the parameter block and the position of encoded caches lie behind it."""
PARAMETERS, POSITION = BLOCK + 0x100, BLOCK + 0x200
ENCODED_SHARE, MODEL_SHARE = 0.15, 0.05
"""Of commands of encoded caches, and of those of models, which take ten times as long as small ones."""
LISTS, LIST_COMMANDS = 40, 50
"""Random lists that the small commands come from, and how many come from each."""
KV_HEADS, HEAD_DIM, T_MAX = 2, 32, 8
KEYS, VALUES = (EncodedCache(DRAM_BASE + (8 << 20) + at, KV_HEADS, T_MAX, HEAD_DIM) for at in (0, 1 << 16))
THRESHOLDS = np.array((-2.0, -0.25, 0.25, 2.0), np.float16).view(np.uint16).tolist()
WORKSPACE = SPM_BASE + (1 << 20)


@cache
def commands() -> tuple[tuple[bytes, bytes | None], ...]:
    """Descriptors with their extended blocks, valid ones of every kind that example models need."""
    found: dict[tuple[bytes, bytes | None], None] = {}
    for name in ("cnn", "mlp_int8", "decoder", "mlp_fp16"):
        for command in compiled(name).commands:
            block = None if command.block is None else command.block.pack()
            found[command.descriptor.pack(), block] = None
    return tuple(found)


@cache
def small_commands() -> tuple[tuple[bytes, bytes | None], ...]:
    """Valid commands of every opcode in both forms, as random lists have them."""
    from command_lists import Lists  # tests/oracles

    found = []
    for seed in range(LISTS):
        lists = Lists(seed)
        lists.clusters = 1
        for case in lists.commands(LIST_COMMANDS):
            found.append((case.descriptor.pack(), None if case.block is None else case.block.pack()))
    return tuple(found)


@cache
def encoded_commands() -> tuple[tuple[bytes, bytes], ...]:
    """Appends to encoded caches, attention over them, attention that appends."""
    kinds = {"type_in0": DataType.FP16, "type_kv": DataType.ENCODED}
    cache_words = {"kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "t_max": T_MAX, "pos_addr": POSITION}
    shared: dict[str, Any] = {
        "epilogue": Epilogue.REQUANTIZE, "scale": PARAMETERS, "workspace": WORKSPACE, "workspace_bytes": 1 << 18,
    }  # fmt: skip
    made = []
    for tokens in (1, 3):
        for at, side in ((KEYS, 0), (VALUES, 32)):
            append = Descriptor(opcode=Opcode.KV_APPEND, in0_addr=DRAM_BASE, out_addr=at.base, tile_m=2, **kinds)
            own = cache_words | {"q_len": tokens}
            made.append((append, Extended.make(Opcode.KV_APPEND, own=own, **shared | {"scale": PARAMETERS + side})))
        for appends in (0, 2):
            attention = Descriptor(
                opcode=Opcode.ATTN_T, in0_addr=SPM_BASE, in1_addr=KEYS.base, out_addr=SPM_BASE + 0x8000, tile_m=2,
                tile_n=4, tile_k=HEAD_DIM, type_in1=DataType.FP16 if appends else 0, type_out=DataType.FP16, **kinds,
            )  # fmt: skip
            own = cache_words | {"heads": 4, "q_len": tokens, "attn_flags": 1 | appends, "attn_scale": 0x3F00_0000}
            new = {"bias": DRAM_BASE + 0x1000} if appends else {}
            own |= {"new_step": 0x800} if appends else {}
            made.append((attention, Extended.make(Opcode.ATTN_T, own=own, in2=VALUES.base, **shared, **new)))
    return tuple((descriptor.with_(extended=1).pack(), block.pack()) for descriptor, block in made)


class Device:
    """A device that takes mutated commands, one after the other."""

    def __init__(self) -> None:
        self.dram = np.zeros(DRAM_SIZE, np.uint8)
        self.dram[:] = np.arange(DRAM_SIZE) % 251
        from command_lists import ENCODED, Lists  # tests/oracles

        self._small = Lists(0).memory()[0][: ENCODED - DRAM_BASE + 0x8000]
        regions = [("DRAM", DRAM_BASE, self.dram), ("SPM0", SPM_BASE, np.ones(2 << 20, np.uint8))]
        self.memory = Memory(regions, lambda address, size: None)
        self.device = NpuDevice(replace(NpuConfig(), mode="tight"), self.memory, EventStream())
        self.now = 0
        self._write(CTRL, ENABLE)

    def _write(self, offset: int, value: int) -> None:
        self.device.write(offset, 4, value, self.now)
        self.now += 1
        self.device.advance(self.now)

    def take(self, chance: random.Random) -> bool:
        """One mutated command to its end; whether it was executed without an error."""
        share = chance.random()
        encoded = share < ENCODED_SHARE
        descriptor, block = chance.choice(
            encoded_commands() if encoded else commands() if share < ENCODED_SHARE + MODEL_SHARE else small_commands()
        )
        self.dram[: len(self._small)] = self._small
        if encoded:
            self._prepare(chance)
        kept = encoded and chance.random() < 0.5  # what is wrong is in memory
        if block is not None:
            block = flipped(block, chance, 2) if chance.random() < 0.6 and not kept else block
            self.memory.write_bytes(BLOCK, block)
            descriptor = descriptor[:52] + BLOCK.to_bytes(4, "little") + descriptor[56:]
        if block is None or (chance.random() < 0.5 and not kept):
            descriptor = flipped(descriptor, chance, 3)
        errors = self.device.counters.errors
        answer = self.device.port.enqcmd(SPM_BASE, descriptor[:DESCRIPTOR_SIZE], chance.getrandbits(8), self.now)
        if not isinstance(answer, PortReply) or answer.value <= 0:
            raise FoundError(f"{answer} for a queue with room")
        self._drain()
        if self.device.in_flight:
            raise FoundError(f"command {descriptor.hex()} does not end")
        return self.device.counters.errors == errors

    def _prepare(self, chance: random.Random) -> None:
        """A position and a parameter block, often wrong; caches that are empty, as the last command has left them, or
        have a few changed bytes; numbers that can be encoded, or not."""
        halves = [
            KvHalf(tuple(THRESHOLDS), outlier_code=chance.choice(tuple(OutlierCode))).pack() for _ in ("keys", "values")
        ]
        block = b"".join(halves)
        self.memory.write_bytes(PARAMETERS, flipped(block, chance, 2) if chance.random() < 0.3 else block)
        position = chance.randrange(T_MAX + 1) if chance.random() < 0.9 else chance.getrandbits(32)
        self.memory.write_bytes(POSITION, position.to_bytes(4, "little"))
        for at in (KEYS, VALUES):
            kind = chance.randrange(4)
            if kind < 2:
                self.memory.write_bytes(at.base, bytes(at.size))
            elif kind == 2:
                place = at.base - DRAM_BASE
                stored = flipped(self.dram[place : place + at.size].tobytes(), chance, 8)
                self.memory.write_bytes(at.base, stored)
        if chance.random() < 0.5:
            rows = np.random.default_rng(chance.getrandbits(32)).normal(0, 2, 4096).astype(np.float16)
            self.memory.write_bytes(DRAM_BASE, rows.tobytes())
        elif chance.random() < 0.3:
            self.memory.write_bytes(DRAM_BASE, chance.randbytes(8192))

    def _drain(self) -> None:
        while (event := self.device.next_event()) is not None:
            self.now = max(self.now + 1, event)
            self.device.advance(self.now)


@cache
def device() -> Device:
    return Device()


def descriptors(chance: random.Random, folder: Path) -> bool:
    try:
        return device().take(chance)
    except BaseException:
        device.cache_clear()
        raise
