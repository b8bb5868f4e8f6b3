"""Decoders whose keys and values Oaken encodes: the same numbers at every level, counted bytes, errors, bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from shares import slow

from npu_device.kv_quant import oaken
from npu_device.kv_quant.methods import METHODS
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.errors import BadInputError, PyvNpuError, UsageError
from pyv_npu.kv_quant.encoded_kv import parameters_of, tokens_by_channels
from pyv_npu.platform import Platform
from pyv_npu.report.vega import charts_of
from pyv_npu.result import Result
from pyv_npu.snapshot import Snapshot
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from pyv_npu.workloads.ia import FunctionalMachine
from toolchain.decoders.decoder import Decoder, make_decoder
from toolchain.decoders.reference import Reference
from toolchain.errors import ModelError
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.onnx_operators.attention import POSITION, SCALES

PROMPT, NEW = (3, 1, 4), 4
REQUEST = GenerationRequest(PROMPT, NEW, kv="oaken")


def model(**settings: Any) -> Decoder:
    return make_decoder(decoder_kv(**{"vocab": 96, "layers": 2, **settings}), "decoder_kv")


def generated(
    request: GenerationRequest = REQUEST, level: str = "IA", mode: str = "tight", **settings: Any
) -> Result[GenerationDetail]:
    config = load(overrides={"run.sim_level": level, "npu.mode": mode}).config
    return Generation(model(**settings), request).run(config)


@pytest.fixture(scope="module")
def functional() -> Result[GenerationDetail]:
    return generated()


@pytest.mark.parametrize(("level", "mode"), [("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")])
def test_every_level_and_mode_leaves_the_same_bytes(
    level: str, mode: str, functional: Result[GenerationDetail]
) -> None:
    """And the DMA writes exactly what is stored there: nibbles, entries, metadata."""
    wanted, made = functional.json["generate"], generated(level=level, mode=mode).json["generate"]
    assert made["tokens"] == wanted["tokens"] and made["outputs_sha256"] == wanted["outputs_sha256"]
    assert made["kv_encoded"] == wanted["kv_encoded"] and made["kv_errors"] == wanted["kv_errors"]
    for layer in made["kv_layers"]:
        rows = [row for row in made["kv_encoded"] if row["layer"] == layer["layer"]]
        stored = sum(row["dense_bytes"] + row["sparse_bytes"] + row["meta_bytes"] for row in rows)
        assert layer["kv_bytes_written"] == stored
        assert layer["kv_bytes_total"] == stored + sum(row["count_bytes"] for row in rows)
    by_side = {"k": 0, "v": 0}
    for row in made["kv_encoded"]:
        by_side[row["side"]] += row["dense_bytes"] + row["sparse_bytes"] + row["meta_bytes"]
    last = made["kv_tokens"][-1]  # its step reads the tokens before it and writes its own
    assert (last["bytes_k"], last["bytes_v"]) == (by_side["k"], by_side["v"]) and by_side["k"] != by_side["v"]


@pytest.mark.parametrize("method", ["kivi", "delta", *slow("kvquant", "qserve", "rle", "sparse", "grouped_heads")])
def test_rival_methods_leave_the_same_bytes_at_every_level(method: str) -> None:
    """A group of KIVI leaves the tail in a step; KVQuant has entries, keys of QServe a table;
    differences have a tail and entries."""
    request = GenerationRequest(tuple(range(1, 91)) + tuple(range(1, 37)), 5, kv=method)
    runs = [generated(request, level, layers=1) for level in ("IA", "IA_TIMING", "CA_HYBRID")]
    apart = generated(request._replace(passes="-kv-forwarding"), "CA_HYBRID", layers=1)
    wanted = runs[0].json["generate"]
    for run in (*runs[1:], apart):
        made = run.json["generate"]
        assert made["tokens"] == wanted["tokens"] and made["outputs_sha256"] == wanted["outputs_sha256"]
        assert made["kv_encoded"] == wanted["kv_encoded"] and made["kv_errors"] == wanted["kv_errors"]
    for row in wanted["kv_encoded"]:
        named = {one["method"]: one for one in wanted["kv_methods"] if one["layer"] == 0}
        assert wanted["kv_errors"][0][f"error_{row['side']}"] == pytest.approx(
            named[method][f"error_{row['side']}"], rel=0.2
        )
    stored = sum(row[f"{part}_bytes"] for row in wanted["kv_encoded"] for part in ("dense", "sparse", "meta", "tail"))
    written = runs[2].json["generate"]["kv_layers"][0]["kv_bytes_written"]
    if method in ("rle", "delta"):
        assert written > stored
        return
    if method == "kivi":  # tokens of the tail are written once more when they are encoded
        tail = {row["side"]: row["tail_bytes"] for row in wanted["kv_encoded"]}
        assert tail == {"k": 2 * 2 * 64, "v": 2 * 128 * 64} and written > stored
        return
    assert written == stored


def test_fp8_caches_are_of_numbers() -> None:
    made = {kv: generated(REQUEST._replace(kv=kv)).json["generate"] for kv in ("fp16", "fp8_e4m3", "fp8_e5m2")}
    assert [one["kv_type"] for one in made.values()] == ["FP16", "E4M3FN", "E5M2"]
    errors = [one["kv_errors"][0]["error_k"] for one in made.values()]
    assert errors[0] < 1e-3 < errors[1] < errors[2] < 0.1
    assert made["fp8_e4m3"]["kv_bytes_used"] * 2 == made["fp16"]["kv_bytes_used"]


def test_what_is_stored_in_the_first_layer_is_the_encoding_of_the_reference(
    functional: Result[GenerationDetail],
) -> None:
    """The first layer's keys and values depend on no cache: numbers that go in are those of the model."""
    made = functional.detail.compiled
    past = list(Reference(model()).steps(functional.detail.tokens, len(PROMPT)))[-1].past
    for side, cache in enumerate(made.decoder.caches[:2]):
        x = tokens_by_channels(np.asarray(past[cache.past], np.float32))
        found = parameters_of(made, side)
        encoded = oaken.encode(x, found.thresholds, found.code)
        row = functional.json["generate"]["kv_encoded"][side]
        assert (row["sparse_bytes"], row["count_bytes"]) == (len(encoded.sparse), encoded.counts.size)
        assert row["b_eff"] == pytest.approx(4 + 8 * row["p_out"] + 96 / x.shape[1])
        got = oaken.decode(encoded, found.thresholds, found.code).astype(np.float64)
        error = functional.json["generate"]["kv_errors"][0][f"error_{'kv'[side]}"]
        assert error == pytest.approx(np.linalg.norm(got - x) / np.linalg.norm(x), rel=1e-3)


def test_errors_are_small_and_those_of_wider_groups_are_reported_beside(functional: Result[GenerationDetail]) -> None:
    made = functional.json["generate"]
    for row in made["kv_errors"]:
        assert 0 < row["error_k"] < 0.15 and 0 < row["error_v"] < 0.15 and 0 < row["error_attention"] < 0.2
    rows = made["kv_methods"]
    names = list(METHODS)
    assert [row["method"] for row in rows if row["layer"] == "all"] == names
    for name in names:
        whole, *layers = (row for row in rows if row["method"] == name)
        assert [row["layer"] for row in layers] == list(range(len(made["kv_errors"])))
        assert whole["bits"] == pytest.approx(np.mean([row["bits"] for row in layers]))
        for key in ("error_k", "error_v"):
            assert min(row[key] for row in layers) <= whole[key] <= max(row[key] for row in layers)
    assert made["kv_type"] == "oaken"
    assert {row["qbits_kv"] for name in ("kv_errors", "kv_layers") for row in made[name]} == {"oaken"}
    assert sum(row["kv_bytes_total"] for row in made["kv_layers"]) == made["kv_bytes_used"]


PAGED = {"npu.kv_quant.page_bytes": 64, "npu.dram.channels": 4, "npu.dram.interleave": 64, "npu.dram.row_model": "open"}


def started(overrides: dict[str, Any]) -> Platform:
    """A platform that is about to run the request through firmware."""
    config = load(overrides={**overrides, "run.sim_level": "CA_HYBRID"}).config
    platform = Platform(config)
    platform.load(Generation(model(), REQUEST).prepare(config).program())
    return platform


@pytest.mark.parametrize("mode", ["tight", *slow("loose")])
def test_a_run_goes_on_from_a_snapshot_with_its_pages(mode: str) -> None:
    """Small pages on several channels: the tables decide where transfers go, in the events of the rest of the run."""
    first = started({"npu.mode": mode, **PAGED})
    assert first.run(until=60_000) is None or first.cycle < 61_000
    saved = Snapshot.from_bytes(first.save().to_bytes())
    before = first.npu.counters.to_json()["kv_pages"]
    first.run()
    second = started({"npu.mode": mode, **PAGED})
    second.restore(saved)
    second.run()
    assert second.events.hexdigest() == first.events.hexdigest()
    after = second.npu.counters.to_json()["kv_pages"]
    assert 0 < before["used"] < after["used"] == first.npu.counters.to_json()["kv_pages"]["used"]


@pytest.mark.parametrize("mode", ["tight", *slow("loose")])
def test_pages_decide_where_transfers_go_and_not_what_is_stored(mode: str) -> None:
    """The depth of tiles, and with it the order of sums, depends on the DRAM: both levels have the same."""
    made, functional = (
        Generation(model(), REQUEST).run(load(overrides={"run.sim_level": level, "npu.mode": mode, **PAGED}).config)
        for level in ("CA_HYBRID", "IA")
    )
    assert made.json["generate"]["outputs_sha256"] == functional.json["generate"]["outputs_sha256"]
    rows = made.json["generate"]["kv_encoded"]
    least = sum(row["pages"] for row in rows)
    assert least <= made.json["npu"]["kv_pages"]["used"] <= least + 4 * len(rows), "streams may begin within an access"
    other = Generation(model(), REQUEST).run(load(overrides={"npu.mode": mode, "npu.kv_quant.pool_pages": 8}).config)
    assert "KV_PAGES" in {entry["name"] for entry in other.json["npu"]["error_log"]}


@pytest.mark.slow
def test_pages_before_a_window_are_given_back() -> None:
    """Numbers stay where they are, so that results are those without pages."""
    request, sizes = GenerationRequest(PROMPT, 14, kv="oaken"), {"layers": 1, "window": 4}
    run = Generation(model(**sizes), request).run(load(overrides=PAGED).config)
    pages = run.json["npu"]["kv_pages"]
    assert pages["used"] + pages["given_back"] == pages["taken"] and pages["peak"] < pages["taken"]
    assert pages["used"] < 0.7 * sum(row["pages"] for row in run.json["generate"]["kv_encoded"])
    functional = generated(request, **sizes).json["generate"]
    assert run.json["generate"]["outputs_sha256"] == functional["outputs_sha256"]


@pytest.mark.parametrize("settings", [{"width": 64, "kv_heads": 4}, *slow({"kv_heads": 4}, {"kind": "float16"})])
def test_other_shapes_and_types(settings: dict[str, Any]) -> None:
    made = generated(**settings).json["generate"]
    both = generated(level="CA_HYBRID", **settings).json["generate"]
    assert made["outputs_sha256"] == both["outputs_sha256"]


def test_tokens_that_are_appended_first_are_read_as_they_were_forwarded(functional: Result[GenerationDetail]) -> None:
    made = generated(REQUEST._replace(passes="-kv-forwarding"), "CA_HYBRID")
    assert made.json["generate"]["outputs_sha256"] == functional.json["generate"]["outputs_sha256"]


def test_profile_and_run_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(decoder_kv(vocab=96), "decoder_kv.onnx")
    Path("inputs").mkdir()
    for index in range(2):
        np.savez(f"inputs/{index}.npz", input_ids=np.arange(8)[None] + index)
    assert main(["profile-kv", "decoder_kv.onnx", "--inputs", "inputs", "-o", "t.json", "--study", "study"]) == 0
    assert "side known" in capsys.readouterr().out
    assert Path("study/ratios.csv").read_text().startswith("outer,middle,inner,b_eff,keys,values\n0.1,0.8,0.1,")
    assert len(Path("study/ablations.csv").read_text().splitlines()) == 9
    names = [chart.name for chart in charts_of(Path("study/report.html").read_text())]
    assert names == ["ablations", "ratios"]
    assert json.loads(Path("t.json").read_text())["n_quant_group"] == 3
    command = "run decoder_kv.onnx --prompt 3,1,4 --generate 2 --kv oaken --thresholds t.json --sim-level IA"
    assert main([*command.split(), "--report", "out"]) == 0
    assert "error of attention" in capsys.readouterr().out
    assert (
        Path("out/kv_encoded.csv")
        .read_text()
        .startswith("layer,side,elements,p_out,b_eff,b_eff_inline,entropy_bound,outer")
    )


@pytest.mark.parametrize(
    ("request_", "settings", "kind", "said"),
    [
        (REQUEST._replace(kv_bits=4), {}, UsageError, "--qbits-kv: --kv oaken says how keys and values are stored"),
        (REQUEST._replace(granularity="tile"), {}, UsageError, "--granularity tile: --kv oaken says"),
        (REQUEST, {"width": 64}, ModelError, "a token-vector of 32 elements: must be a multiple of 64"),
        (REQUEST._replace(kv="", thresholds=Path("t.json")), {}, UsageError, "--thresholds: are for --kv oaken"),
    ],
)
def test_what_cannot_be(
    request_: GenerationRequest, settings: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        generated(request_, **settings)


def test_a_block_that_is_overwritten_and_counts_that_are_none_are_refused_by_name() -> None:
    """Ticket errors KV_BLOCK and KV_DATA, as a run without a core words them."""
    config = load(overrides={"run.sim_level": "IA"}).config
    ready = Generation(model(), REQUEST).prepare(config)
    made, (keys, *_) = ready.decoder, ready.decoder.decoder.caches
    graph = made.compiled.graph
    cache = graph.tensors[keys.past].encoded(made.address(keys.past))
    cases = (
        (made.address(keys.past + SCALES), bytes(64), "parameter block of keys and values is wrong: policy 0"),
        (
            made.address(keys.past + SCALES),
            b"\x63" + bytes(63),
            "parameter block of keys and values is wrong: policy 99",
        ),
        (
            cache.address("counts"),
            b"\xff" * cache.chunks,
            "is no encoding: counts at .*: token 0 has a chunk of 255 outliers",
        ),
    )
    for address, data, said in cases:
        blamed = PyvNpuError if "block" in said else BadInputError
        machine = FunctionalMachine(made.compiled, config.npu, ready.inputs)
        machine.run(made.compiled.commands[: made.prompt_commands])
        machine.memory.write_bytes(address, data)
        machine.memory.write_bytes(made.address(POSITION), len(PROMPT).to_bytes(4, "little"))
        with pytest.raises(blamed, match=said) as raised:
            machine.run(made.step(0))
        assert ("a bug of the compiler" in str(raised.value)) == (blamed is PyvNpuError)


@pytest.mark.parametrize("value", [float("nan"), 1e6])
@pytest.mark.parametrize("level", ["IA", "IA_TIMING"])
def test_keys_that_are_no_fp16_numbers_are_the_model_s_fault(value: float, level: str, tmp_path: Path) -> None:
    """At CA_HYBRID they are ticket error KV_DATA."""
    proto = decoder_kv(vocab=96, layers=1)
    keys = next(one for one in proto.graph.initializer if list(one.dims) == [128, 64])
    wrong = onnx.numpy_helper.to_array(keys).copy()
    wrong[:] = value
    keys.CopyFrom(onnx.numpy_helper.from_array(wrong, keys.name))
    side = {"upper_threshold": [[2.0, 0.1, 0.0]], "lower_threshold": [[-2.0, -0.1, 0.0]]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"n_quant_group": 3, "key": side, "value": side}))
    request = REQUEST._replace(thresholds=path)
    with pytest.raises(BadInputError, match="Oaken: token 0 has an element that is NaN, infinite or beyond fp16"):
        Generation(make_decoder(proto, "wrong"), request).run(load(overrides={"run.sim_level": level}).config)


@pytest.mark.slow
def test_a_run_goes_on_from_a_snapshot_in_the_middle_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes that a command read when it started are found again, wherever it is interrupted."""
    monkeypatch.chdir(tmp_path)
    onnx.save(decoder_kv(vocab=96, layers=1), "d.onnx")
    command = ["run", "d.onnx", "--prompt", "3,1,4", "--generate", "2", "--kv", "oaken", "--json"]

    def run(*more: str) -> Any:
        assert main([*command, *more]) == 0
        return json.loads(capsys.readouterr().out)

    whole = run()
    last = whole["cycles"]
    for at in range(last - last // 3, last, last // 12):
        run("--save", f"s.snapshot@{at}")
        made = run("--restore", "s.snapshot")
        assert made["cycles"] == last
        assert made["generate"]["outputs_sha256"] == whole["generate"]["outputs_sha256"]


def test_thresholds_of_another_model_and_of_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match=r"t\.json: no JSON: 'utf-8' codec"):
        generated(REQUEST._replace(thresholds=path))
    side = {"upper_threshold": [[2.0, 0.1, 0.0]], "lower_threshold": [[-2.0, -0.1, 0.0]]}
    path.write_text(json.dumps({"n_quant_group": 3, "key": side, "value": side}))
    with pytest.raises(BadInputError, match="thresholds of 1 layers: the decoder has 2"):
        generated(REQUEST._replace(thresholds=path))
