"""Accuracy of methods on the text that ships, in a small decoder with random weights: the same numbers as
onnxruntime's, differences of pairs, bits as counted, bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from npu_device.config import NpuConfig
from pyv_npu.cli.main import main
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.studies.perplexity import Score, likelihoods, methods_of, read_tokens, scores
from toolchain.decoders.decoder import make_decoder
from toolchain.examples.decoder_kv import decoder_kv

ESSAY = Path(__file__).parents[3] / "pyv_npu" / "examples" / "essay.tokens"
COUNT, VOCAB = 140, 256
TOKENS = [token % VOCAB for token in read_tokens(ESSAY)][: COUNT + 21]


@pytest.fixture(scope="module")
def rows() -> dict[str, Score]:
    proto = decoder_kv(layers=1, vocab=VOCAB, positions=256)
    names = ["fp16", "oaken", "kivi", "uniform2"]
    return {row.method: row for row in scores(make_decoder(proto, "d"), NpuConfig(), TOKENS, COUNT, names)}


def test_the_text_that_ships_has_more_tokens_than_are_scored() -> None:
    assert len(read_tokens(ESSAY)) > 512 + 128 and max(read_tokens(ESSAY)) < 49152


def test_the_model_as_it_is_has_onnxruntime_s_perplexity(rows: dict[str, Score]) -> None:
    proto = decoder_kv(layers=1, vocab=VOCAB, positions=256)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    prompt, targets = TOKENS[-COUNT - 1 : -1], TOKENS[-COUNT:]
    given: dict[str, Any] = {"input_ids": np.array([prompt]), "position_ids": np.arange(COUNT)[None]}
    given |= {one.name: np.zeros((1, 2, 0, 32), np.float32) for one in session.get_inputs() if "past" in one.name}
    logits = session.run(["logits"], given)[0][0]
    assert rows["fp32"].perplexity == pytest.approx(np.exp(-likelihoods(logits, targets).mean()), rel=1e-4)


def test_differences_are_of_pairs_and_bits_are_counted(rows: dict[str, Score]) -> None:
    base = rows["fp32"]
    assert (base.bits, base.difference, base.error, base.agreement) == (32, 0, 0, 1)
    for row in rows.values():
        assert row.perplexity == pytest.approx(base.perplexity * np.exp(-row.difference))
        assert 0 <= row.error < 0.2 and row.cycles > 0
    assert rows["fp16"].bits == 16 and abs(rows["fp16"].difference) < 1e-3 and rows["fp16"].agreement > 0.97
    assert rows["uniform2"].bits == 2 + 32 / 32 and rows["uniform2"].agreement < rows["oaken"].agreement
    assert rows["kivi"].bits == pytest.approx((((5 * 128 + 16 * 12) + (5 * 12 + 16 * 128)) / 140) / 2, abs=0.4)
    assert 5.0 < rows["oaken"].bits < 8.0


def test_a_page_and_a_table_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "d.onnx", tmp_path / "out"
    onnx.save(decoder_kv(layers=1, vocab=VOCAB, positions=64, width=64), model)
    path = tmp_path / "t.txt"
    path.write_text(" ".join(map(str, TOKENS[:12])))
    command = ["perplexity", str(model), "--tokens", str(path), "--count", "4", "--kv", "fp16", "--report", str(out)]
    assert main([*command, "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)["methods"]] == ["fp32", "fp16"]
    assert "Pareto front" in (out / "report.html").read_text() and (out / "perplexity.csv").exists()


def test_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("3, x")
    with pytest.raises(BadInputError, match="'x': must be a list of token ids"):
        read_tokens(path)
    path.write_text("[3, 1]\n")
    assert read_tokens(path) == [3, 1]
    with pytest.raises(UsageError, match="--kv kiwi: must be one of fp32, fp16"):
        methods_of("kiwi")
    with pytest.raises(UsageError, match="is there twice"):
        methods_of("kivi,kivi")
    decoder = make_decoder(decoder_kv(layers=1, vocab=VOCAB), "d")
    with pytest.raises(UsageError, match=r"--count 2: must be 1\.\.1"):
        list(scores(decoder, NpuConfig(), [3, 1], 2, []))
