"""Policies say of keys and values what the device stores of them, and what the others would."""

import numpy as np
import pytest

from npu_device.abi.opcodes import DataType
from npu_device.kv_quant import oaken
from npu_device.kv_quant.policies import COMPARED, DEVICE, FP16, OAKEN, POLICIES
from npu_device.kv_quant.storage import EncodedCache, Parameters
from npu_device.kv_quant.thresholds import Thresholds
from npu_device.memory.kv import KvCache
from pyv_npu.cli.shared.work import KV_METHODS
from pyv_npu.cli.verbs.serve import KV_DEFAULT
from pyv_npu.errors import UsageError
from pyv_npu.serving.study import kv_storage
from toolchain.decoders.shapes import KV_BITS

TOKENS, HEADS, HEAD_DIM = 32, 4, 32
PARAMETERS = Parameters(Thresholds(-2, -0.075, 0.075, 2))
X = np.random.default_rng(3).standard_normal((TOKENS, HEADS * HEAD_DIM)).astype(np.float32)


def test_run_and_serve_have_one_default() -> None:
    assert DEVICE[KV_DEFAULT].bits == KV_BITS and DEVICE[KV_DEFAULT].kind(DataType.INT4) is DataType.INT4


def test_the_command_line_names_all_of_them() -> None:
    assert sorted(KV_METHODS) == sorted(POLICIES)
    assert [name for name, one in POLICIES.items() if not one.refused] == list(DEVICE)


@pytest.mark.parametrize("name", DEVICE)
def test_bytes_of_tokens_are_those_that_their_appends_write(name: str) -> None:
    """To the entries of a token, which are rounded up where they are counted by themselves; tables come on top."""
    policy = DEVICE[name]
    cache = KvCache(0, 1, HEADS, TOKENS, HEAD_DIM, (policy.bits,) * HEADS)
    tables = EncodedCache(0, HEADS, TOKENS, HEAD_DIM).chunks * TOKENS if policy is OAKEN else 0
    written = TOKENS * sum(policy.written(HEADS, HEAD_DIM)) - tables
    assert policy.stored_bytes(cache, TOKENS) <= written < policy.stored_bytes(cache, TOKENS) + TOKENS
    if policy is not OAKEN:
        assert written == X.size * policy.bits // 8 and policy.stated(cache, TOKENS) == {}


def test_what_is_assumed_of_oaken_is_what_its_codec_stores_of_as_many_outliers() -> None:
    encoded = oaken.encode(X, PARAMETERS.thresholds)
    share = round(1000 * len(encoded.sparse) / X.size)
    policy = kv_storage("oaken", share)
    cache = KvCache(0, 1, HEADS, TOKENS, HEAD_DIM, (4,) * HEADS)
    assert policy.stored_bytes(cache, TOKENS) == pytest.approx(encoded.payload, abs=X.size / 1000)
    assert policy.stated(cache, TOKENS)["b_eff"] == pytest.approx(
        OAKEN.stored_bits(X, "k", HEAD_DIM, PARAMETERS), abs=0.01
    )
    table = np.frombuffer(policy.table(EncodedCache(0, HEADS, TOKENS, HEAD_DIM)), np.uint8)
    assert len(table) == encoded.counts.size and abs(int(table.sum()) - len(encoded.sparse)) <= X.size / 1000


def test_more_bits_read_back_closer() -> None:
    error = {
        name: float(np.linalg.norm(one.read_back(X, "v", HEAD_DIM, PARAMETERS) - X)) for name, one in POLICIES.items()
    }
    assert error["fp16"] < error["uniform8"] < error["uniform4"] < error["uniform2"]
    assert error["per_token5"] < error["per_token4"] < error["uniform4"]
    assert all(
        one.stored_bits(X, "k", HEAD_DIM, PARAMETERS) > one.bits for name, one in COMPARED.items() if name[0] != "u"
    )
    assert FP16.stored_bits(X, "k", HEAD_DIM, PARAMETERS) == 16


def test_scales_per_channel_are_shared_by_the_tokens_that_are_there() -> None:
    """KIVI: 32 bits for each channel and 128 tokens, of keys; KVQuant: for each channel, of keys."""
    x = np.ones((23, 192), np.float32)
    kivi, kvquant = ([COMPARED[name].stored_bits(x, side, 64, PARAMETERS) for side in "kv"]
                     for name in ("kivi", "kvquant"))  # fmt: skip
    assert kivi == pytest.approx([4 + 32 / 23, 4 + 32 / 192]) and sum(kivi) / 2 == pytest.approx(4.78, abs=0.005)
    assert kvquant == pytest.approx([4.32 + 32 / 23, 4.32 + 32 / 192])
    assert COMPARED["kivi"].stored_bits(np.ones((300, 128), np.float32), "k", 64, PARAMETERS) == 4 + 32 * 3 / 300


def test_integers_are_read_as_the_device_reads_them() -> None:
    """A scale for each head, the largest number of it is the largest integer."""
    read = DEVICE["uniform4"].read_back(X, "k", HEAD_DIM, PARAMETERS)
    for head in range(HEADS):
        own, got = (x[:, head * HEAD_DIM : (head + 1) * HEAD_DIM] for x in (X, read))
        scale = np.abs(own).max() / 7
        np.testing.assert_allclose(got, np.rint(own / scale) * scale, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - set(DEVICE)))
def test_a_server_says_why_it_does_not_store_them_so(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        kv_storage(name)
    assert str(raised.value) == f"--kv {name}: {POLICIES[name].refused}"
