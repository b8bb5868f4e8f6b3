"""Command lists: what is wrong with one is said before anything runs; a good one runs at both levels."""

import json
from typing import Any

import pytest

from npu_device.abi.cmdq import Code
from npu_device.config import DmaConfig, DramConfig, NpuConfig, SpmConfig
from npu_device.levels.command_list import ListError, load, run

CONFIG = NpuConfig(dram=DramConfig(size=1 << 20))


def dma(number: int, opcode: str = "DMA_LOAD_TILE", **more: Any) -> dict[str, Any]:
    base = {"id": number, "opcode": opcode, "tensor_role": "weight", "qbits": 8, "dram_addr": 0, "num_elements": 4096,
            "spm_bank": 0, "spm_offset": 0}  # fmt: skip
    return base | more


def gemm(number: int, **more: Any) -> dict[str, Any]:
    base = {"id": number, "opcode": "GEMM_T", "tile": [64, 64, 64],
            "in": [{"bank": 0, "offset": 0, "dtype": "INT8"}, {"bank": 1, "offset": 0, "dtype": "INT8"}],
            "out": {"bank": 2, "offset": 0, "dtype": "INT32"}}  # fmt: skip
    return base | more


def document(*commands: Any) -> dict[str, Any]:
    return {"schema": 1, "commands": list(commands)}


GOOD = document(
    dma(1), dma(2, spm_bank=1, dram_addr=4096), gemm(3, deps=[1, 2], layer="fc"),
    dma(4, "DMA_STORE_TILE", qbits=32, spm_bank=2, dram_addr=65536, deps=[3], at=10),
    {"opcode": "BARRIER", "scope": "global"}, dma(5, deps=[4]), {"opcode": "NOP"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "code", "field"),
    [
        ([], Code.SCHEMA, "schema"),
        ({"schema": 2, "commands": []}, Code.SCHEMA, "schema"),
        ({"schema": 1, "commands": [], "x": 1}, Code.UNKNOWN, "x"),
        ({"schema": 1, "commands": []}, Code.TYPE, "commands"),
        (document(7), Code.TYPE, "commands[0]"),
        (document({"opcode": "FLY"}), Code.CHOICE, "commands[0].opcode"),
        (document({}), Code.MISSING, "commands[0].opcode"),
        (document(dma(1, qbits=3)), Code.CHOICE, "commands[0].qbits"),
        (document(dma(1, qbits=True)), Code.CHOICE, "commands[0].qbits"),
        (document(dma(1, num_elements=0)), Code.RANGE, "commands[0].num_elements"),
        (document(dma(1, num_elements="many")), Code.TYPE, "commands[0].num_elements"),
        (document(dma(1, colour=1)), Code.UNKNOWN, "commands[0].colour"),
        (document(dma(1), dma(1)), Code.DUPLICATE, "commands[1].id"),
        (document(dma(1, deps=[9])), Code.DEPENDENCY, "commands[0].deps"),
        (document(dma(1), dma(2, spm_bank=3, deps=[1])), Code.DEPENDENCY, "commands[1].deps"),
        (document(gemm(1, tile=[64, 64])), Code.TYPE, "commands[0].tile"),
        (document(gemm(1, out={"bank": 0, "dtype": "INT32"})), Code.MISSING, "commands[0].out"),
        (document(gemm(1, flags={"fast": 1})), Code.UNKNOWN, "commands[0].flags.fast"),
        (document(gemm(1, macro={"no_such_word": 1})), Code.RANGE, "commands[0]"),
        (document(gemm(1, macro={"k": None})), Code.TYPE, "commands[0].macro.k"),
        (document(gemm(1, macro={"k": True})), Code.TYPE, "commands[0].macro.k"),
        (document(gemm(1, macro={"zero_point": [0, None, 0, 0]})), Code.TYPE, "commands[0].macro.zero_point"),
        (document(gemm(1, macro={"own": None})), Code.TYPE, "commands[0].macro.own"),
        (document(gemm(1, macro={"own": {"h": None}})), Code.TYPE, "commands[0].macro.own.h"),
        (document(gemm(1, macro={"per_op": "x"})), Code.UNKNOWN, "commands[0].macro.per_op"),
        (document(dma(1, dram_addr=1 << 30)), Code.COMMAND, "commands[0]"),
        (document(gemm(1, tile=[0, 64, 64])), Code.COMMAND, "commands[0]"),
        (document(gemm(1, out={"dram": 0, "dtype": "INT32"})), Code.COMMAND, "commands[0]"),
    ],
)
def test_a_broken_list_names_code_field_and_value(broken: Any, code: Code, field: str) -> None:
    with pytest.raises(ListError) as caught:
        load(broken, CONFIG)
    assert (code, field) in [(fault.code, fault.field) for fault in caught.value.faults]
    assert str(caught.value).count("\n") == len(caught.value.faults) - 1


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ListError) as caught:
        load(document(dma(1, qbits=5, num_elements=-1), gemm(1, deps=[7])), CONFIG)
    assert {fault.code for fault in caught.value.faults} == {
        Code.CHOICE, Code.RANGE, Code.DUPLICATE, Code.DEPENDENCY,
    }  # fmt: skip


@pytest.mark.parametrize("level", ["IA_TIMING", "CA_HYBRID"])
def test_a_good_list_runs_and_is_explained(level: str) -> None:
    commands = load(json.loads(json.dumps(GOOD)), CONFIG)
    made = run(commands, CONFIG, level)
    assert made.cycles == made.explanation.makespan == sum(made.explanation.causes.values())
    assert made.cycles >= max(made.explanation.bounds.values())
    assert made.events.hexdigest() == run(commands, CONFIG, level).events.hexdigest()
    assert (made.counters is None) == (level == "IA_TIMING")


def test_macro_commands_take_the_words_of_the_extended_block() -> None:
    config = NpuConfig(dram=DramConfig(size=1 << 20), spm=SpmConfig(port=None), dma=DmaConfig(direction="split"))
    operand = {"dtype": "FP16"}
    command = {
        "opcode": "GEMM_T", "in": [{"dram": 0, **operand}, {"dram": 65536, **operand}], "tile": [32, 32, 32],
        "out": {"dram": 131072, **operand}, "flags": {"prefetch_dist": 1},
        "macro": {"m": 64, "n": 64, "k": 64, "workspace": 0x5000_0000, "workspace_bytes": 65536},
    }  # fmt: skip
    made = run(load(document(command), config), config)
    assert made.counters is not None
    assert made.counters["dram_bytes_read"] == 2 * 2 * 64 * 64 * 2


def test_submit_cost_spaces_the_commands() -> None:
    costly = NpuConfig(dram=CONFIG.dram, submit=type(CONFIG.submit)(cost=1000))
    commands = load(document(*(dma(i, spm_bank=i) for i in range(3))), costly)
    assert run(commands, costly, "IA_TIMING").cycles - run(commands, CONFIG, "IA_TIMING").cycles > 1500
    assert run(commands, costly).cycles > 2000
