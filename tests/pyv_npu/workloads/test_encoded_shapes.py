"""Built-in shapes whose keys and values are encoded: bytes, pages, engines, configurations, bad input."""

import gc
import json
from typing import Any

import numpy as np
import pytest
from shares import slow_rows

from npu_device.abi.errors import TicketError
from npu_device.abi.kv_block import KvHalf, KvPolicy
from npu_device.config import NpuConfig
from npu_device.issue.mmu import Mmu
from npu_device.kv_quant.storage import EncodedCache, pages
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.encoded import append_tokens, read_parameters
from pyv_npu.cli.main import main
from pyv_npu.kv_quant import engines

MODEL = ("run", "llama2-7b", "--json")
LAYER = (*MODEL, "--layers", "1")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON of a run, of one layer unless the arguments say how many."""
    assert main([*(MODEL if "--layers" in arguments else LAYER), *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("more", [("--sim-level", "IA_TIMING"), (), ("--mode", "loose"), ("--requests", "3")])
def test_what_is_moved_is_what_is_stored(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """All tokens before are read, the new one is written, to the byte: C/2, entries of p_out, 12 bytes."""
    made = told(capsys, "--context", "99", "--kv", "oaken", *more)["llm"]
    requests = 3 if "--requests" in more else 1
    entries = 32 * (100 * 128 * 100 // 1000)
    assert made["kv_encoded"]["p_out"] == 0.1 and made["qbits_kv"] == "oaken"
    assert [row["qbits_kv"] for row in made["kv_layers"]] == ["oaken"]
    assert made["kv_layers"][0]["kv_bytes_total"] == made["kv_bytes_used"]
    pages = 2 * requests * (32 * (2 + 1) + 1)  # 6,400 bytes of nibbles and 1,280 of entries a head, 1,200 of metadata
    assert made["kv_bytes_alloc"] == 4096 * pages == 4096 * made["kv_encoded"]["pages"]
    capacity = made["kv_capacity"]
    assert capacity["kv_bytes_per_token"] == -(-made["kv_bytes_used"] // (made["context"] + 1))
    assert made["kv_bytes_used"] == 2 * requests * (100 * (2048 + 12) + entries)
    (moved,) = made["kv_tokens"]
    assert moved["bytes_k"] + moved["bytes_v"] == made["kv_bytes_used"]
    assert made["kv_encoded"]["b_eff"] == pytest.approx(4.8 + 96 / 4096, abs=1e-3)


def test_pages_are_charged_not_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    """4 requests of 2,048 tokens: 41 MB of pages, 102 MB of addresses, 930 MB of weights. Cycles do not depend on the
    memory that is left; activations and commands take some of it, too."""
    size = "--requests", "4", "--context", "2047"
    job = *size, "--sim-level", "IA_TIMING", "--kv", "oaken"
    room, tight = (told(capsys, *job, *more) for more in ((), ("--set", "npu.dram.size=1010000000")))
    assert room["cycles"] == tight["cycles"]
    allocated, weights = tight["llm"]["kv_bytes_alloc"], tight["llm"]["weight_bytes"]
    assert main([*LAYER, *job, "--set", f"npu.dram.size={allocated + weights + 4096}"]) == 65
    assert "beside them are" in capsys.readouterr().err


def test_a_prefill_appends_and_reads_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    made = told(capsys, "--phase", "prefill", "--tokens", "64", "--kv", "oaken")["llm"]
    (layer,) = made["kv_layers"]
    assert layer["kv_bytes_written"] == made["kv_bytes_used"] and layer["kv_bytes_read"] >= layer["kv_bytes_written"]


def test_fewer_outliers_are_fewer_bytes_and_capacity_follows(capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (
        told(capsys, "--context", "63", "--kv", "oaken", "--set", f"npu.kv_quant.p_out_permille={share}")["llm"]
        for share in (40, 200)
    )
    assert few["kv_encoded"]["b_eff"] == pytest.approx(4.32 + 96 / 4096, abs=5e-3)
    assert many["kv_bytes_used"] - few["kv_bytes_used"] == pytest.approx(0.16 * 2 * 64 * 4096, abs=64)


@pytest.mark.slow
def test_engines_are_seen_where_they_are_slower_than_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """O20: elements over the width, exact; wide engines are hidden, narrow ones bind, apart they add."""
    base = ("--context", "255", "--requests", "4", "--config", "oaken-lpddr", "--kv", "oaken")
    wide, half, narrow, apart, slow = (
        told(capsys, *base, *(word for one in more for word in ("--set", f"npu.kv_quant.{one}")))
        for more in (
            (),
            ("w_dq=2048", "w_q=32"),
            ("w_dq=32", "d_dq=0"),
            ("w_dq=32", "d_dq=0", "overlap=false"),
            ("d_q=4000",),
        )
    )
    elements = 2 * 4 * 255 * 4096
    assert abs(half["cycles"] / wide["cycles"] - 1) < 0.01
    assert narrow["llm"]["kv_engines"]["dequantize_busy"] == elements // 32
    assert wide["llm"]["kv_engines"]["exposed_share"] < 0.02 < narrow["llm"]["kv_engines"]["exposed_share"]
    assert wide["cycles"] < narrow["cycles"] < apart["cycles"]
    assert slow["llm"]["kv_engines"]["quantize_busy"] > wide["llm"]["kv_engines"]["quantize_busy"]


def test_pages_are_those_that_follow_from_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    """The tables of the MMU against the account from shapes; a pool of a page less ends with an error ticket."""
    made = told(capsys, "--context", "255", "--kv", "oaken", "--requests", "2")
    found = made["npu"]["kv_pages"]
    assert found["used"] == found["peak"] == found["taken"] == made["llm"]["kv_encoded"]["pages"] == 2 * 2 * 161
    pool = ("--set", f"npu.kv_quant.pool_pages={found['used'] - 1}")
    assert main([*LAYER, "--context", "255", "--kv", "oaken", "--requests", "2", *pool]) == 64
    assert "more pages of 4096 bytes, 321 of 643 are free: raise npu.kv_quant.pool_pages" in capsys.readouterr().err
    assert main([*LAYER, "--kv", "oaken", "--set", "npu.kv_quant.pool_pages=99999999"]) == 65
    assert "must fit dram.size = 256000000000" in capsys.readouterr().err


def test_combined_writes_cost_their_own_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """O17: entries and metadata of a token are widened to accesses of 64 bytes only without the buffers."""
    both, apart = (
        told(capsys, "--context", "99", "--kv", "oaken", "--set", f"npu.kv_quant.write_combine={one}")["traffic"]["kv"]
        for one in ("true", "false")
    )
    assert both["bytes_total"] == apart["bytes_total"] and both["read"] == apart["read"]
    tokens_entries = 2 * (32 * 13 + 12)  # 100 tokens have 1,280 bytes in a stream, 99 have 1,267
    assert both["written"] == 2 * 2048 + tokens_entries
    assert apart["written"] == 2 * (2048 + 64 + sum(64 for _ in range(32)))


@pytest.mark.parametrize(("tokens", "dense", "sparse", "slack"), [(1024, 16, 4, 0.042), (2048, 32, 7, 0.016),
                                                                  (32768, 512, 103, 0.001)])  # fmt: skip
def test_pages(tokens: int, dense: int, sparse: int, slack: float) -> None:
    """O16, of one head of 128: nibbles and 12.8 bytes of entries a token."""
    cache = EncodedCache(0, 1, tokens, 128)
    made = pages(cache, tokens, [round(12.8 * tokens)], 4096)
    assert (made.dense, made.sparse, made.bursts) == (dense, sparse, dense + sparse)
    payload = tokens * 64 + round(12.8 * tokens)
    assert (dense + sparse) * 4096 / payload - 1 == pytest.approx(slack, abs=6e-4)


@pytest.mark.slow
def test_the_memory_of_oaken_is_that_of_the_lpu_and_faster_with_encoded_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ("--context", "1023", "--requests", "16")
    oaken = told(capsys, *base, "--config", "oaken-lpddr", "--kv", "oaken")
    lpu = told(capsys, *base, "--config", "lpu-lpddr", "--qbits-kv", "16")
    assert oaken["cycles"] < lpu["cycles"]
    assert lpu["llm"]["kv_bytes_used"] / oaken["llm"]["kv_bytes_used"] == pytest.approx(16 / 4.823, rel=1e-3)


def test_numbers_of_a_width_are_a_method_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name, bits in (("fp16", "16"), ("uniform4", "4")):
        one, other = (told(capsys, "--context", "9", *words) for words in (("--kv", name), ("--qbits-kv", bits)))
        assert one["events_sha256"] == other["events_sha256"] and one["llm"]["qbits_kv"] == int(bits)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kv", "oaken", "--qbits-kv", "4"), "--qbits-kv: --kv oaken says how keys and values are stored"),
        (("--kv", "oaken", "--granularity", "tile"), "tile commands know no encoded keys and values"),
        (("--kv", "oaken", "--set", "npu.kv_quant.outer_permille=950"), "with kv_quant.inner_permille = 60"),
        (("--kv", "uniform4", "--qbits-kv", "4"), "--qbits-kv: --kv uniform4 says how keys and values are stored"),
        (("--kv", "huffman"), "--kv huffman: choose fp16, fp8_e4m3, fp8_e5m2, uniform8, uniform4"),
        (("--kv", "kivi", "--granularity", "tile"), "--kv kivi: tile commands know no encoded keys and values"),
        (("--kv", "oaken", "--requests", "60000", "--context", "2047"), "npu.dram.size is 256.0 GB"),
        # 2 x 65 pages of a request: nibbles and entries of each of 32 heads, and the metadata
        (("--kv", "oaken", "--requests", "500000", "--context", "0"), "KV 266.2 GB (500000 x 1 tokens)"),
    ],
)
def test_what_cannot_be(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LAYER, *arguments]) in (64, 65)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("half", "said"),
    [
        (KvHalf((0, 0, 0, 0), policy=99), "policy 99 at 0x40: must be 1..13"),
        (KvHalf((0, 0, 0, 0), outlier_code=2), "outlier_code 2 at 0x40: must be 0, 1"),
        (KvHalf((0, 0, 0, 0), chunk=32), "chunk 32 at 0x40: must be 64"),
        (KvHalf((0, 0, 0, 0), table=64), "table 64 at 0x40: must be the distance of the codec's table; 0: none"),
        (KvHalf(policy=KvPolicy.TOKEN), "policy 9 at 0x40: was another one when the command was fetched"),
        (KvHalf((0, 0, 0, 0), kv_reserved=(0, 0, 0, 1)), "a reserved word at 0x40 is not zero"),
        (KvHalf((0x4000, 0, 0, 0)), "outer_low 2.0 is above the next threshold 0.0"),
        (KvHalf((0xFE00, 0, 0, 0)), "outer_low nan: must be a finite fp16 number"),
    ],
)
def test_wrong_parameter_blocks(half: KvHalf, said: str) -> None:
    data = np.frombuffer(half.pack(), np.uint8)
    with pytest.raises(DescriptorError, match=said) as caught:
        read_parameters(EncodedCache(0, 1, 4, 128), lambda _: data, 0x40)
    assert caught.value.code is TicketError.KV_BLOCK


def test_numbers_that_cannot_be_encoded() -> None:
    half = np.frombuffer(KvHalf((0xC000, 0xB800, 0x3800, 0x4000)).pack(), np.uint8)
    rows = np.full((1, 128), np.nan, np.float32)
    with pytest.raises(DescriptorError) as caught:
        append_tokens(EncodedCache(0, 1, 4, 128), lambda _: half, 0, rows, 0x40)
    assert caught.value.code is TicketError.KV_DATA


def test_tables_of_pages_are_there_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The run without engines begins when the device of the first one is gone."""
    alive = list[int]()
    real = engines.unhindered
    gc.collect()
    earlier = [one for one in gc.get_objects() if isinstance(one, Mmu)]
    """Those that other tests of the process keep."""

    def counted(npu: NpuConfig) -> NpuConfig:
        alive.append(sum(isinstance(one, Mmu) for one in gc.get_objects()) - len(earlier))
        return real(npu)

    monkeypatch.setattr(engines, "unhindered", counted)
    assert main(["run", "llama2-7b", "--layers", "1", "--context", "20", "--kv", "oaken"]) == 0
    assert alive == [0]


@pytest.mark.parametrize(
    ("layers", "requests", "limit"), [(1, 8, 0), *slow_rows((2, 32, 0), (2, 128, 2_600_000))]
)  # fmt: skip
def test_a_large_batch_is_faster_with_fewer_bits(
    layers: int, requests: int, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,024 tokens: neither appends nor activations hold the channels that read keys and values."""
    job = "--layers", str(layers), "--requests", str(requests), "--context", "1023", "--config", "oaken-lpddr"
    oaken, integers = (told(capsys, *job, "--kv", kv) for kv in ("oaken", "uniform8"))
    assert oaken["cycles"] < integers["cycles"]
    assert not limit or oaken["cycles"] <= limit
    engines = oaken["llm"]["kv_engines"]
    assert engines["exposed_cycles"] < oaken["cycles"] // 20
