"""The rules of docs/bit-widths.md that the device and its command lists keep, one test each, with its numbers.

R1, R3, R5, R6, R8, R15, R16, R18, R20 and R21 as pure rules: test_bitwidth.py. QConfig (R14), capacity (R26) and the
metrics of runs (R24): the tests of the toolchain and of reports.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from npu_graphs import listed
from npu_macro import MacroRig, block, random
from npu_rig import DRAM, SPM

from npu_device.abi.cmdq import Code
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NpuConfig, SpmConfig, TeConfig, VeConfig
from npu_device.cost.durations import partial_lines, vector_rate
from npu_device.cost.tensor import gemm_rate
from npu_device.levels.command_list import ListError, load, run
from npu_device.levels.runner import Listed
from npu_device.memory import bitwidth
from npu_device.memory.region import make_region
from npu_device.operations.kernels.moves import quantize
from npu_device.trace.events import What

CONFIG = NpuConfig(dram=DramConfig(size=1 << 20))
FP16, INT4, INT8 = DataType.FP16, DataType.INT4, DataType.INT8


def move(store: bool = False, **more: Any) -> dict[str, Any]:
    """The examples of R19: load 4096 elements at 120000, store 64 at 131072; 4 bits."""
    base = {"opcode": "DMA_STORE_TILE" if store else "DMA_LOAD_TILE", "tensor_role": "kv", "qbits": 4,
            "dram_addr": 131072 if store else 120000, "num_elements": 64 if store else 4096, "spm_bank": 0,
            "spm_offset": 8000}  # fmt: skip
    return base | more


def commands(*listed: dict[str, Any]) -> list[Listed]:
    return load({"schema": 1, "commands": list(listed)}, CONFIG)


def fault(command: dict[str, Any], code: Code = Code.RANGE) -> tuple[str, object, str]:
    """(field, value, rule) of the one fault of a list of one command."""
    with pytest.raises(ListError) as caught:
        commands(command)
    (found,) = caught.value.faults
    assert found.code is code
    return found.field, found.value, found.rule


def transfers(command: dict[str, Any], config: NpuConfig = CONFIG) -> list[tuple[int, int]]:
    """(payload, aligned bytes) of the transfers of a command."""
    made = run(load({"schema": 1, "commands": [command]}, config), config)
    ends = made.records[made.records["what"] == What.DMA_END]
    return [(int(one["bytes"]), int(one["aux"])) for one in ends]


def test_r2_a_width_is_that_of_its_type() -> None:
    widths = {DataType.FP32: 32, FP16: 16, DataType.BF16: 16, DataType.E4M3FN: 8, INT8: 8, INT4: 4, DataType.INT2: 2}
    for kind, bits in widths.items():
        assert BITS[kind] == bits
        bitwidth.check_dtype(kind, bits)


def test_r4_a_tile_larger_than_its_bank_crosses_into_the_next_and_one_larger_than_all_is_refused() -> None:
    whole = move(tensor_role="weight", dram_addr=0, num_elements=2_097_152 * 2, qbits=4, spm_offset=0)
    big = NpuConfig(dram=DramConfig(size=4 << 20))
    assert transfers(whole, big) == [(2_097_152, 2_097_152)]  # alone it takes all eight banks
    with pytest.raises(ListError, match="1 over; legal tile: tile_m 1, tile_k 4194304"):
        load({"schema": 1, "commands": [whole | {"num_elements": 2_097_152 * 2 + 2}]}, big)


def test_r7_an_offset_in_the_scratchpad_is_a_multiple_of_32() -> None:
    commands(move(spm_offset=8000), move(spm_offset=4000))
    assert fault(move(spm_offset=4016)) == ("commands[0].spm_offset", 4016, "must be a multiple of 32")


def test_r9_the_same_widths_set_bytes_and_speed() -> None:
    assert [gemm_rate(TeConfig(), w, a) for w, a in ((8, 8), (4, 8), (2, 8), (4, 4), (16, 16))] == [
        4096, 8192, 16384, 16384, 1024,
    ]  # fmt: skip
    assert [vector_rate(VeConfig(), bits) for bits in (4, 8, 16)] == [128, 64, 32]


def test_r10_a_width_that_no_type_has_is_refused_with_its_field() -> None:
    assert fault(move(qbits=3), Code.CHOICE)[:2] == ("commands[0].qbits", 3)


def test_r12_a_cache_lies_in_dram() -> None:
    rig = MacroRig()
    d = Descriptor(opcode=Opcode.KV_READ, tile_m=4, type_kv=FP16, type_out=FP16, in0_addr=SPM, out_addr=DRAM + 4096)
    own = {"kv_heads": 1, "head_dim": 8, "t_max": 8, "kv_len": 4}
    rig.submit(rig.macro(d, block(Opcode.KV_READ, own)))
    assert "in0 0x50000000 must be in DRAM" in rig.device.error_log[0].reason


def test_r13_kv_update_appends_keys_and_values() -> None:
    sides = {name: {"dram_addr": at, "spm_bank": bank, "spm_offset": 0} for name, at, bank in (
        ("k", 131072, 0), ("v", 262144, 1))}  # fmt: skip
    made = commands({"opcode": "KV_UPDATE", "qbits": 4, "num_elements": 64, "head_dim": 64, "id": 1, **sides},
                    move(dram_addr=262144, num_elements=64, deps=[1], spm_bank=2))  # fmt: skip
    assert [one.descriptor.opcode for one in made] == [Opcode.KV_APPEND, Opcode.KV_APPEND, Opcode.KV_READ]
    assert [one.descriptor.out_addr - DRAM for one in made[:2]] == [131072, 262144]
    field, value, _ = fault({"opcode": "KV_UPDATE", "qbits": 4, "num_elements": 128, "head_dim": 64, **sides})
    assert (field, value) == ("commands[0].num_elements", 128)
    assert fault({"opcode": "KV_UPDATE", "qbits": 4, "num_elements": 64, "k": sides["k"]}, Code.MISSING)[0] == (
        "commands[0].v"
    )


def test_r15_rows_of_kv_update_lie_where_the_layout_has_them() -> None:
    """Head 3, token 5 of caches of 1,024 tokens, 128 elements of 4 bits: 196,928 behind the base."""
    layout = {"head": 3, "token": 5, "t_max": 1024}
    update: dict[str, Any] = {"opcode": "KV_UPDATE", "qbits": 4, "num_elements": 128, "head_dim": 128} | {
        side: {"dram_addr": base + 196_928, "spm_bank": bank, "spm_offset": 0, "layout": {"base": base, **layout}}
        for side, base, bank in (("k", 0, 0), ("v", 524_288, 1))
    }
    assert [one.descriptor.out_addr - DRAM for one in commands(update)] == [196_928, 721_216]
    wrong = {**update, "v": {**update["v"], "dram_addr": 721_280}}
    assert fault(wrong) == (
        "commands[0].v.dram_addr", 721_280, "must be 721216: base + (head x t_max + token) x 64 bytes"
    )  # fmt: skip
    late = {**update, "k": {**update["k"], "layout": {"base": 0, **layout, "token": 1024}}}
    assert fault(late)[0] == "commands[0].k.layout.token"
    for at in (196_928, 196_928 + 63, 196_928 - 63):
        same = {**update, "v": {"dram_addr": at, "spm_bank": 1, "spm_offset": 0}}
        field, value, rule = fault(same)
        assert (field, value) == ("commands[0].v.dram_addr", at) and "overlap" in rule


@pytest.mark.parametrize(("tokens", "low", "high"), [(256, 0.5, 1.0), (8192, 0.5, 0.51)])
def test_r17_half_the_bits_are_half_the_bytes_and_half_the_time_where_bandwidth_binds(
    tokens: int, low: float, high: float
) -> None:
    """One head of 128; the cache is read into the scratchpad in its own type."""
    config = NpuConfig(dram=DramConfig(size=4 << 20), spm=SpmConfig(port=None))
    seen = []
    for kind in (INT8, INT4):
        own = {"kv_heads": 1, "head_dim": 128, "t_max": tokens, "kv_len": tokens}
        d = Descriptor(opcode=Opcode.KV_READ, tile_m=tokens, type_kv=kind, type_out=kind, in0_addr=DRAM, out_addr=SPM)
        seen.append(listed([Listed(d, 0, block(Opcode.KV_READ, own))], config))
    eight, four = seen
    assert eight.run.device.counters.dram_bytes_read == 2 * four.run.device.counters.dram_bytes_read == tokens * 128
    assert low <= four.makespan / eight.makespan <= high


def test_r18_an_append_loads_nothing_of_the_old_cache() -> None:
    rig = MacroRig()
    new = random(FP16, 3, 32, 5)
    own = {"kv_heads": 4, "head_dim": 8, "t_max": 16, "q_len": 3}
    d = Descriptor(opcode=Opcode.KV_APPEND, tile_m=1, type_in0=FP16, type_kv=FP16, in0_addr=rig.put(new, FP16, "spm"),
                   out_addr=rig.place(4 * 16 * 16), prefetch_dist=1)  # fmt: skip
    rig.execute(d, block(Opcode.KV_APPEND, own))
    ends = rig.happened(What.DMA_END)
    assert [end["bytes"] for end in ends] == [8 * 2] * 12  # D per head and token
    assert (rig.device.counters.dram_bytes_read, len(ends)) == (0, 12)


@pytest.mark.parametrize("outstanding", [1, 2, 12])
def test_small_writes_of_an_append_overlap_their_latencies(outstanding: int) -> None:
    """Twelve posted writes of a cycle each on the command's one channel: 4 heads of 3 tokens."""
    config = NpuConfig(dram=CONFIG.dram, dma=DmaConfig(outstanding=outstanding))
    own = {"kv_heads": 4, "head_dim": 8, "t_max": 16, "q_len": 3}
    d = Descriptor(opcode=Opcode.KV_APPEND, tile_m=1, type_in0=FP16, type_kv=FP16, in0_addr=SPM, out_addr=DRAM,
                   prefetch_dist=1)  # fmt: skip
    seen = listed([Listed(d, 0, block(Opcode.KV_APPEND, own))], config)
    assert len(seen.of(What.DMA_END)) == 12
    assert seen.makespan == 129 + 11


def test_r19_the_examples_of_the_command_list() -> None:
    read, append = (one.descriptor for one in commands(move(), move(store=True)))
    assert (read.opcode, read.type_kv, read.in0_addr) == (Opcode.KV_READ, INT4, DRAM + 120000)
    assert (append.opcode, append.type_kv, append.out_addr) == (Opcode.KV_APPEND, INT4, DRAM + 131072)
    assert transfers(move()) == [(2048, 2048)]
    assert transfers(move(store=True)) == [(32, 64)]
    assert commands(move(tensor_role="weight"))[0].descriptor.opcode == Opcode.LOAD
    assert commands(move(store=True, tensor_role="activation"))[0].descriptor.opcode == Opcode.STORE


def test_r20_how_many_elements_a_command_may_move() -> None:
    for count in (128, 5120):
        commands(move(num_elements=count, head_dim=128, tokens=40))
    assert fault(move(num_elements=5248, head_dim=128, tokens=40)) == (
        "commands[0].num_elements", 5248, "must be a multiple of head_dim 128 and at most 40 x 128, all tokens",
    )  # fmt: skip
    assert fault(move(num_elements=64, head_dim=128))[1:] == (64, "must be a multiple of head_dim 128")
    assert fault(move(store=True, num_elements=128, head_dim=64))[1:] == (
        128, "must be head_dim 64: one token of one head",
    )  # fmt: skip
    assert fault(move(num_elements=3, head_dim=3))[1:] == (3, "rows of 3 x 4 bits must end at a byte")


@pytest.mark.parametrize(
    ("head_dim", "qbits", "masked", "rmw"),
    [(64, 4, 2.0, 4.0), (64, 8, 1.0, 1.0), (64, 2, 4.0, 8.0), (80, 4, 2.4, None), (80, 8, 1.6, None),
     (96, 4, 2.0, None), (96, 8, 4 / 3, None), (112, 4, 2.0, None), (112, 8, 10 / 7, None), (128, 4, 1.0, 1.0),
     (128, 8, 1.0, 1.0), (128, 2, 2.0, 4.0), (256, 4, 1.0, 1.0)],
)  # fmt: skip
def test_r21_aligned_bytes_of_64_appends(head_dim: int, qbits: int, masked: float, rmw: float | None) -> None:
    row = head_dim * qbits // 8
    appends = [move(store=True, qbits=qbits, num_elements=head_dim, head_dim=head_dim, dram_addr=131072 + token * row,
                    spm_bank=token % 8) for token in range(64)]  # fmt: skip
    document = {"schema": 1, "commands": appends}
    for mode, expected in (("masked", masked), ("rmw", rmw)):
        config = NpuConfig(dram=CONFIG.dram, dma=DmaConfig(partial_write=mode))
        made = run(load(document, config), config)
        aligned = int(made.records[made.records["what"] == What.DMA_END]["aux"].sum())
        lines = sum(partial_lines(make_region(token * row, 1, row), 64) for token in range(64)) if mode == "rmw" else 0
        assert aligned == pytest.approx(masked * 64 * row + lines * 64)
        assert expected is None or aligned / (64 * row) == pytest.approx(expected)


def test_r22_a_store_converts_from_the_width_of_the_scratchpad() -> None:
    scale = int(np.float32(0.5).view(np.uint32))
    made = commands(move(store=True, src_qbits=16, params=[scale, 0], head_dim=64))
    d = made[0].descriptor
    assert (d.type_in0, d.type_kv) == (FP16, INT4)
    rig = MacroRig()
    new = random(FP16, 1, 64, 3)
    rig.poke(d.in0_addr, new)
    target = rig.place(32)
    rig.submit(d.with_(out_addr=target))
    rig.idle()
    expected = quantize(new, INT4, np.float32(0.5), 0)
    assert np.array_equal(rig.get(target, 1, 64, INT4), expected)


STEP = np.float32(1 / 64)
"""Of keys and values that are integers."""


class Step(NamedTuple):
    """One token attends: what is left, and when."""

    rig: MacroRig
    cache: tuple[int, int]
    """Keys and values in DRAM."""
    out: int
    done: int
    """The cycle in which the result is there."""


def attend(kind: DataType, old: list[Any], new: list[Any], query: Any, *, writes: bool) -> Step:
    """R23: KV_READ, Q K^T, softmax, V, KV_WRITE, with the new token's key and value on chip behind the old ones."""
    rig = MacroRig(NpuConfig(spm=SpmConfig(size=1 << 19, port=None)))
    count, dim = old[0].shape
    row = dim * BITS[kind] // 8
    scale = {} if kind is FP16 else {"param0": int(STEP.view(np.uint32))}
    commands, caches, chip = [], [], []
    for kept, fresh in zip(old, new, strict=True):
        caches.append(rig.put(np.concatenate((kept, kept[:1])), kind))  # room for one more token
        chip.append(rig.place((count + 1) * dim * 2, "spm"))
        rig.poke(chip[-1] + count * dim * 2, fresh)
        commands.append(
            Descriptor(opcode=Opcode.KV_READ, tile_m=count, tile_k=dim, type_kv=kind, type_out=FP16,
                       in0_addr=caches[-1], out_addr=chip[-1], **scale)
        )  # fmt: skip
    scores, weights, out = (rig.place(size, "spm") for size in (2 * (count + 1), 2 * (count + 1), 2 * dim))
    wide = {"tile_m": 1, "tile_n": count + 1}
    commands += [
        Descriptor(opcode=Opcode.GEMM_T, **wide, tile_k=dim, in1_nk=1, type_in0=FP16, type_in1=FP16, type_out=FP16,
                   in0_addr=rig.put(query, FP16, "spm"), in1_addr=chip[0], out_addr=scores),
        Descriptor(opcode=Opcode.SOFTMAX, **wide, type_in0=FP16, type_out=FP16, in0_addr=scores, out_addr=weights),
        Descriptor(opcode=Opcode.GEMM_T, tile_m=1, tile_n=dim, tile_k=count + 1, type_in0=FP16, type_in1=FP16,
                   type_out=FP16, in0_addr=weights, in1_addr=chip[1], out_addr=out),
    ]  # fmt: skip
    if writes:
        commands += [
            Descriptor(opcode=Opcode.KV_APPEND, tile_m=1, tile_k=dim, type_in0=FP16, type_kv=kind,
                       in0_addr=chip[index] + count * dim * 2, out_addr=caches[index] + count * row, **scale)
            for index in (0, 1)
        ]  # fmt: skip
    tickets = [rig.submit(command) for command in commands]
    rig.idle()
    assert not rig.device.error_log, rig.device.error_log
    return Step(rig, (caches[0], caches[1]), out, rig.stamps(What.DONE)[tickets[4]])


@pytest.mark.parametrize("kind", [FP16, INT8, INT4])
def test_r23_the_new_token_is_read_on_chip_while_it_is_written(kind: DataType) -> None:
    """It counts in this step's attention while its row goes to DRAM, and is not read back from there."""
    count, dim = 96, 64
    old = [random(kind, count, dim, seed) for seed in (1, 2)]
    query, value = random(FP16, 1, dim, 3) / np.float16(8), random(FP16, 1, dim, 4)
    new = [4 * query, value]  # a key that the query is near to
    made, without = (attend(kind, old, new, query, writes=writes) for writes in (True, False))
    known = [kept.astype(np.float64) * (1 if kind is FP16 else STEP) for kept in old]
    keys, values = (np.concatenate((kept, fresh)) for kept, fresh in zip(known, new, strict=True))
    weights = np.exp(query.astype(np.float64) @ keys.T)
    wanted = weights @ values / weights.sum()
    assert np.allclose(made.rig.get(made.out, 1, dim, FP16), wanted, rtol=2e-2, atol=2e-2)
    old_only = weights[:, :-1] @ values[:-1] / weights[:, :-1].sum()
    assert not np.allclose(wanted, old_only, rtol=2e-2, atol=2e-2)
    for address, kept, fresh in zip(made.cache, old, new, strict=True):
        row = fresh if kind is FP16 else quantize(fresh, kind, STEP, 0)
        assert np.array_equal(made.rig.get(address, count + 1, dim, kind), np.concatenate((kept, row)))
    row_bytes = dim * BITS[kind] // 8
    moved = [end["bytes"] for end in made.rig.happened(What.DMA_END)]
    assert sorted(moved) == [row_bytes] * 2 + [count * row_bytes] * 2
    assert made.rig.device.counters.dram_bytes_read == 2 * count * row_bytes
    first, *_, last = (one["cycle"] for one in made.rig.happened(What.TE_BEGIN, What.TE_END))
    begins = sorted(begin["cycle"] for begin in made.rig.happened(What.DMA_BEGIN))
    assert first - 1 <= begins[2] <= begins[3] < last  # both writes begin while it attends ...
    assert made.done == without.done  # ... and cost it nothing


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"tensor_role": "bias"}, Code.CHOICE, "tensor_role"),
        ({"qbits": 5}, Code.CHOICE, "qbits"),
        ({"num_elements": 0}, Code.RANGE, "num_elements"),
        ({"num_elements": 100, "head_dim": 64}, Code.RANGE, "num_elements"),
        ({"dram_addr": 1 << 21}, Code.COMMAND, ""),
        ({"spm_bank": 8}, Code.RANGE, "spm_bank"),
        ({"spm_offset": 262_144}, Code.RANGE, "spm_offset"),
        ({"spm_offset": 1}, Code.RANGE, "spm_offset"),
        ({"src_qbits": 6}, Code.CHOICE, "src_qbits"),
        ({"tensor_role": "weight", "rows": 3}, Code.RANGE, "num_elements"),
        ({"rows": 2}, Code.UNKNOWN, "rows"),
    ],
)
def test_r25_every_error_has_code_field_and_value(change: dict[str, Any], code: Code, field: str) -> None:
    wanted = f"commands[0].{field}" if field else "commands[0]"
    name, value, _ = fault(move(**change), code)
    assert (name, value) == (wanted, change.get(field, move(**change).get(field, "DMA_LOAD_TILE")))
