"""Blocks that fit DRAM, by the method that stores keys and values: a token's bytes, and the tails of requests."""

import json
from dataclasses import replace

import pytest

from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.config.shape_file import shape_of
from pyv_npu.errors import BadInputError
from pyv_npu.serving.figures import KvBytes
from pyv_npu.serving.study import blocks_of, kv_storage

SHAPE = shape_of("llama2-7b")
BITS = {"fp16": 16.0, "uniform4": 4.0, "fp8_e4m3": 8.0, "kivi": 4.25, "qserve": 4.25, "atom": 4.25, "tender": 4.0}
"""Bits of an element of 32 heads of 128: KIVI has a minimum and a step of fp16 in 128 numbers."""
BLOCK = 16


@pytest.mark.parametrize("method", BITS)
def test_a_token_takes_its_codes_and_metadata(method: str) -> None:
    elements = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim
    assert KvBytes.of(kv_storage(method), SHAPE, SHAPE.layers).token == elements * BITS[method] / 8


@pytest.mark.parametrize("share", [50, 200])
def test_entries_that_the_configuration_assumes_take_room(share: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside nibbles, 12 bytes of metadata and a count for each 64 elements."""
    command = "serve llama2-7b --layers 1 --workload burst --first 1 --input 1 --output 1 --check-steps 0 --kv oaken"
    assert main([*command.split(), "--json", "--set", f"npu.kv_quant.p_out_permille={share}"]) == 0
    width = SHAPE.kv_heads * SHAPE.head_dim
    token = json.loads(capsys.readouterr().out)["kv_bytes_per_token"]
    assert token == pytest.approx(2 * (width / 2 + 12 + width / 64 + width * share / 1000), abs=2)


def test_tails_of_requests_leave_fewer_blocks() -> None:
    npu = load().config.npu
    npu, kivi = replace(npu, dram=replace(npu.dram, size=64 << 30)), kv_storage("kivi")
    size = BLOCK * KvBytes.of(kivi, SHAPE, SHAPE.layers).token
    tail = SHAPE.layers * kivi.tail_bytes(SHAPE.kv_heads, SHAPE.head_dim)
    assert tail > 30 * size
    one, many = (blocks_of(SHAPE, 0, npu, 4, kivi, BLOCK, 0, requests) for requests in (1, 101))
    assert (one - many) * size == pytest.approx(100 * tail, abs=size)
    with pytest.raises(BadInputError, match=r"tails of --max-num-seqs 4000 .* GB leave no room for a block"):
        blocks_of(SHAPE, 0, npu, 4, kivi, BLOCK, 0, 4000)
