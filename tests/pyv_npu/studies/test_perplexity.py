"""Accuracy of methods on the text that ships, in a small decoder with random weights: the same numbers as
onnxruntime's, differences of pairs, bits as counted, bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from npu_device.kv_quant.codec import Parameters, StoredTokens
from npu_device.kv_quant.methods import METHODS
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.kv_quant import encoded_kv
from pyv_npu.kv_quant.text_logits import text_logits
from pyv_npu.studies.perplexity import (
    Score,
    _unchanged,
    chart,
    likelihoods,
    methods_of,
    pareto_front,
    read_tokens,
    scores,
)  # fmt: skip
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationRequest
from toolchain.decoders.decoder import LOG, make_decoder
from toolchain.examples.decoder_kv import decoder_kv

ESSAY = Path(__file__).parents[3] / "pyv_npu" / "examples" / "essay.tokens"
COUNT, VOCAB = 140, 256
NPU = load([], None, {"npu.te.count": 1}).config.npu
"""One engine: nothing is measured while a step is compiled."""
TOKENS = [token % VOCAB for token in read_tokens(ESSAY)][: COUNT + 21]


@pytest.fixture(scope="module")
def rows() -> dict[str, Score]:
    proto = decoder_kv(layers=1, vocab=VOCAB, positions=256)
    names = ["fp16", "oaken", "kivi", "uniform2"]
    return {row.method: row for row in scores(make_decoder(proto, "d"), NPU, TOKENS, COUNT, names)}


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


@pytest.mark.parametrize(
    "name", ["oaken", "kivi", "kvquant",
             *(pytest.param(name, marks=pytest.mark.slow) for name in ("uniform4", "fp8_e5m2", "qserve", "tender"))]
)  # fmt: skip
def test_a_token_s_logits_are_those_that_the_device_generates(name: str) -> None:
    """Layer 0 makes keys and values of the prompt without attention, so that the tokens after it see the same ones,
    those of KIVI in the tail and outside."""
    decoder = make_decoder(decoder_kv(layers=1, vocab=VOCAB, positions=256), "d")
    prompt, new = tuple(TOKENS[:126]), tuple(TOKENS[126:131])
    config = load([], None, {"run.sim_level": "IA", "npu.te.count": 1}).config
    ready = Generation(decoder, GenerationRequest(prompt, len(new), new, kv=name)).prepare(config)
    made = ready.decoder
    device = made.logits(ready.decode(config.npu, new).read(LOG))[len(prompt) : -1]

    def store(index: int, x: Any) -> StoredTokens:
        found = encoded_kv.side_of(made, index).parameters if made.kv_blocks else None
        return METHODS[name].store(x, "kv"[index % 2], 32, found or Parameters())

    logits = text_logits(decoder, (*prompt, *new[:-1]), store)[len(prompt) :]
    assert np.linalg.norm(logits - device) < 2e-4 * np.linalg.norm(device)
    unchanged = text_logits(decoder, (*prompt, *new[:-1]), _unchanged)[len(prompt) :]
    assert np.linalg.norm(unchanged - device) > 5 * np.linalg.norm(logits - device)


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
    command += ["--set", "npu.te.count=1"]
    assert main([*command, "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)["methods"]] == ["fp32", "fp16"]
    assert "Pareto front" in (out / "report.html").read_text() and (out / "perplexity.csv").exists()


def test_the_pareto_front_has_no_method_that_another_beats() -> None:
    points = {"fp32": (32, 3.0), "small": (4, 5.0), "beaten": (5, 6.0), "equal bits": (4, 5.5), "middle": (8, 2.5)}
    rows = [Score(name, *point, 0.0, 0.0, 1.0, 1, 1.0) for name, point in points.items()]
    assert [row.method for row in pareto_front(rows)] == ["small", "middle"]
    line, marks, labels = chart(rows, "text").spec["layer"]
    assert line["transform"] and marks["mark"]["type"] == "point" and labels["encoding"]["text"] == {"field": "method"}


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = tmp_path / "d.onnx", tmp_path / "t.txt"
    onnx.save(decoder_kv(layers=1, vocab=VOCAB), model)
    path.write_text(" ".join(map(str, TOKENS[:9])))
    monkeypatch.setattr("pyv_npu.studies.perplexity.scores", lambda *_: pytest.fail("scored"))
    assert main(["perplexity", str(model), "--tokens", str(path), "--count", "4", "--report", str(path)]) == 64
    assert f"--report {path}: File exists: choose another place" in capsys.readouterr().err
    monkeypatch.setattr("pyv_npu.cli.verbs.profile_kv.profiled", lambda *_: pytest.fail("profiled"))
    output = ["--output", str(tmp_path / "thresholds.json")]
    assert main(["profile-kv", str(model), *output, "--tokens", str(path), "--study", str(path)]) == 64
    assert f"--study {path}: File exists: choose another place" in capsys.readouterr().err


def test_thresholds_come_from_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path, out = tmp_path / "d.onnx", tmp_path / "t.txt", tmp_path / "t.json"
    onnx.save(decoder_kv(layers=1, vocab=VOCAB, width=64), model)
    path.write_text(" ".join(map(str, TOKENS[:140])))
    command = ["profile-kv", str(model), "--tokens", str(path), "-o", str(out)]
    assert main(command) == 0
    assert "mean of 2 runs" in capsys.readouterr().out  # of 128 tokens and of 12
    assert json.loads(out.read_text())["n_quant_group"] == 3
    assert main([*command, "--inputs", str(tmp_path)]) == 64
    assert "--tokens: --inputs has runs already" in capsys.readouterr().err


def test_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("3, x")
    with pytest.raises(BadInputError, match="'x': must be a list of token ids"):
        read_tokens(path)
    path.write_text("[3, 1]\n")
    assert read_tokens(path) == [3, 1]
    with pytest.raises(BadInputError, match="none: No such file or directory; give a file of token ids"):
        read_tokens(tmp_path / "none")
    with pytest.raises(UsageError, match="--kv kiwi: must be one of fp32, fp16"):
        methods_of("kiwi")
    with pytest.raises(UsageError, match="is there twice"):
        methods_of("kivi,kivi")
    decoder = make_decoder(decoder_kv(layers=1, vocab=VOCAB), "d")
    with pytest.raises(UsageError, match=r"--count 2: must be 1\.\.1"):
        list(scores(decoder, NPU, [3, 1], 2, []))
