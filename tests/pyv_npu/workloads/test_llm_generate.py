"""ONNX decoders with a key/value cache: every token against onnx.reference, every level against the others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from shares import slow

from npu_device.abi.errors import TicketError
from pyv_ext.elf import parse_elf
from pyv_npu.boot import program_data
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.errors import PyvNpuError, UsageError
from pyv_npu.result import Result
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.decoder import Generation, ReadyDecoder
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from pyv_npu.workloads.ia import FunctionalMachine
from pyv_npu.workloads.workload import Session
from toolchain.decoders.decoder import CONVERSATION, POSITION, Decoder, compile_decoder, make_decoder
from toolchain.decoders.generation import GENERATE
from toolchain.decoders.reference import Reference
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.program_image import build_image

PROMPT = (3, 1, 4, 1, 5)
CONFIG = load().config
SMALL: dict[str, Any] = {"width": 64, "vocab": 96}


def model(**settings: Any) -> Decoder:
    return make_decoder(decoder_kv(**{**SMALL, **settings}), "decoder_kv")


def generated(
    decoder: Decoder, request: GenerationRequest, level: str = "IA", mode: str = "tight"
) -> Result[GenerationDetail]:
    return Generation(decoder, request).run(load(overrides={"run.sim_level": level, "npu.mode": mode}).config)


def steps(made: Result[GenerationDetail]) -> list[Mapping[str, Any]]:
    return list(made.json["generate"]["steps"])


@pytest.mark.parametrize("kind", ["float32", *slow("float16")])
@pytest.mark.parametrize("kv_heads", [pytest.param(2, id="GQA"), *slow(4, ids=("MHA",))])
def test_every_token_is_that_of_the_reference_at_every_level(kind: str, kv_heads: int) -> None:
    decoder = model(kind=kind, kv_heads=kv_heads)
    request = GenerationRequest(PROMPT, 5, given=(9, 2))
    first = generated(decoder, request)
    assert first.correct
    assert first.detail.tokens[:7] == (*PROMPT, 9, 2)
    assert first.detail.tokens[7:] == tuple(step["reference_next"] for step in steps(first)[6:])
    taken: dict[str, int] = {}
    for level, mode in (("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")):
        made = generated(decoder, request, level, mode)
        assert made.detail.tokens == first.detail.tokens
        assert made.json["generate"]["outputs_sha256"] == first.json["generate"]["outputs_sha256"]
        assert made.correct
        taken[level] = sum(made.json["cycles_by_step"])
    assert abs(taken["IA_TIMING"] - taken["CA_HYBRID"]) < 0.1 * taken["CA_HYBRID"]
    counts = made.json["generate"]["commands"]
    assert made.json["npu"]["accepted"] == counts["prompt"] + 4 * counts["step"]


def test_a_decoder_has_the_core_do_its_work_at_every_level() -> None:
    """TopK of more than 16 logits is a kernel on the core: of the prompt, and again of every token."""
    proto = decoder_kv(**SMALL)
    nodes = proto.graph.node
    (last,) = (node for node in nodes if "logits" in node.output)
    last.output[0] = "raw"
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.array([value], np.int64), name) for name, value in (("k", 20), ("axis", -1))
    )
    nodes.append(helper.make_node("TopK", ["raw", "k"], ["best", "places"]))
    nodes.append(helper.make_node("ReduceMax", ["best", "axis"], ["largest"]))
    nodes.append(helper.make_node("Sub", ["raw", "largest"], ["logits"]))
    decoder, plain = make_decoder(proto, "decoder_kv"), model()
    request, taken = GenerationRequest(PROMPT, 3), list[int]()
    expected = generated(plain, request).detail.tokens
    for level, mode in (("IA", "tight"), ("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")):
        made = generated(decoder, request, level, mode)
        assert made.correct and made.detail.tokens == expected
        taken.append(sum(made.json.get("cycles_by_step") or [0]))
    assert made.json["npu"]["core_kernels"]["count"] == 3
    assert abs(taken[1] - taken[3]) < 0.05 * taken[3]


def test_the_caches_hold_what_the_reference_calls_present() -> None:
    decoder, request = model(), GenerationRequest(PROMPT, 4, t_max=13)
    made = compile_decoder(decoder, target_of(CONFIG.npu), len(PROMPT), 13)
    machine = FunctionalMachine(made.compiled, CONFIG.npu, ReadyDecoder(request, made).inputs)
    machine.run(made.compiled.commands[: made.prompt_commands])
    present = Reference(decoder).step(PROMPT, Reference(decoder).empty()).past
    for cache in decoder.caches:
        cached = np.frombuffer(machine.read(cache.past), np.float32).reshape(1, cache.heads, 13, cache.head_dim)
        np.testing.assert_allclose(cached[:, :, :5], present[cache.past], rtol=1e-4, atol=1e-5)
        assert not cached[:, :, 5:].any()


def test_a_prompt_at_once_is_the_prompt_token_by_token() -> None:
    decoder = model()
    whole, single = (
        generated(decoder, GenerationRequest(PROMPT, 2)),
        generated(decoder, GenerationRequest(PROMPT[:1], 6, given=PROMPT[1:])),
    )
    assert whole.detail.tokens == single.detail.tokens
    np.testing.assert_allclose(whole.detail.logits, single.detail.logits, rtol=1e-4, atol=1e-5)


def test_a_window_hides_what_is_too_far_behind() -> None:
    near, far = (generated(model(window=window), GenerationRequest(PROMPT, 6)) for window in (3, 0))
    assert near.correct
    assert far.correct
    assert not np.allclose(near.detail.logits[-1], far.detail.logits[-1], rtol=1e-2)


def test_narrow_caches_report_their_error_and_hold_fewer_bytes() -> None:
    made = {
        bits: generated(model(), GenerationRequest(PROMPT, 4, given=(7, 7, 7, 7), kv_bits=bits)) for bits in (16, 8, 4)
    }
    worst = {bits: max(step["error"] for step in steps(one)) for bits, one in made.items()}
    assert 0 < worst[16] < worst[8] < worst[4] < 1
    assert all(step["ok"] is None for one in made.values() for step in steps(one))
    sizes = {bits: one.json["generate"]["kv_bytes_alloc"] for bits, one in made.items()}
    scales = sizes[8] - sizes[16] // 2  # 4 bytes for each head and token of integers
    assert scales > 0 and sizes[4] == sizes[16] // 4 + scales


def test_narrow_weights_report_their_error(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text("qbits_weight_default: 8\n")
    made = generated(model(), GenerationRequest(PROMPT, 3, qconfig=path))
    assert 1e-4 < max(step["error"] for step in steps(made)) < 0.2
    assert all(step["ok"] is None for step in steps(made))
    names = made.detail.compiled.compiled.graph.constants
    assert not any(name.startswith("prompt.w") for name in names)  # both graphs share the codes
    path.write_text("override:\n  layer_1: {weight: 4}\n")
    one = generated(model(), GenerationRequest(PROMPT, 3, qconfig=path)).detail.compiled.compiled.graph
    narrow = {layer.id for layer in one.layers for name in layer.inputs if one.tensors[name].dtype.name == "INT4"}
    assert narrow == {"prompt.matmul3", "matmul3"}  # the same product in the prompt and in a step


def test_a_step_beyond_the_caches_is_an_error() -> None:
    decoder, request = model(), GenerationRequest(PROMPT, 1, t_max=6)
    made = compile_decoder(decoder, target_of(CONFIG.npu), len(PROMPT), 6)
    inputs = ReadyDecoder(request, made).inputs
    machine = FunctionalMachine(made.compiled, CONFIG.npu, inputs)
    machine.memory.write_bytes(made.address(POSITION), (6).to_bytes(4, "little"))
    with pytest.raises(PyvNpuError, match="t_max is 6"):
        machine.run(made.compiled.commands[made.prompt_commands :])
    inputs[CONVERSATION] = made.conversation((*PROMPT, 7, 7, 7), 8)
    arguments = {"prefill": made.prompt_commands, "conversation": made.address(CONVERSATION)}
    image = build_image(program_data(GENERATE), made.compiled, inputs, arguments)
    text: list[bytes] = []
    outcome = run_program(CONFIG, parse_elf(image, "image"), session=Session(text.append))
    assert outcome.stop.code == 1
    assert f"the last with code {TicketError.POSITION.value}" in b"".join(text).decode()
    assert "token 5: 7" in b"".join(text).decode()


def test_an_image_without_a_decoder_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", GENERATE]) == 0
    assert "no decoder in this image" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (GenerationRequest((96,), 3), r"--prompt: token 96: the vocabulary has 0\.\.95"),
        (GenerationRequest((1,), 0), "--generate 0: must be at least 1"),
        (GenerationRequest((1,), 1, given=(2, 3)), "--given: 2 tokens, --generate asks for 1"),
        (GenerationRequest(PROMPT, 3, t_max=7), "--t-max 7: prompt and new tokens are 8"),
        (GenerationRequest((1,), 1, kv_bits=5), "--qbits-kv 5: must be one of 16, 8, 4, 2"),
    ],
)
def test_a_request_that_cannot_be_is_refused(wanted: GenerationRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generated(model(), wanted)


def test_the_command_line_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(**SMALL), path)
    words = ["run", str(path), "--generate", "3", "--prompt", "3,1,4"]
    assert main([*words, "--json", "--report", str(tmp_path / "out")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["generate"]["prompt"] == [3, 1, 4]
    assert len(made["generate"]["tokens"]) == 6
    rows = (tmp_path / "out" / "timeline.csv").read_text().splitlines()[1:]
    steps_, prompt = (sum(row.endswith(f",{name}attention.0.1") for row in rows) for name in ("", "prompt."))
    assert steps_ > prompt > 0  # two of the three new tokens take a step
    assert "decoder.onnx" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert main([*words, "--sim-level", "IA_TIMING"]) == 0
    assert "same choice            5 of 5 positions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["missing.onnx", "--generate", "3", "--prompt", "1"], 65, "missing.onnx: No such file or directory"),
        (["missing.onnx", "--generate", "3"], 65, "missing.onnx: No such file or directory"),
        (["missing.onnx", "--generate", "3", "--prompt", "a"], 64, "--prompt a: must be a list of tokens"),
        (["cnn", "--prompt", "1"], 64, "--prompt: is for ONNX decoders"),
        (["llama2-7b", "--generate", "1"], 64, "--generate: is for ONNX decoders"),
        (["decoder_kv", "--generate", "3", "--prompt", "1", "--phase", "decode"], 64, "--phase: is for built-in"),
    ],
)
def test_bad_arguments_are_one_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_prompt_that_is_left_open_is_drawn_with_the_seed_of_the_run() -> None:
    def drawn(seed: int) -> Result[GenerationDetail]:
        config = load(overrides={"run.sim_level": "IA", "run.seed": seed}).config
        return Generation(model(), GenerationRequest((), 2)).run(config)

    one, again, other = drawn(3), drawn(3), drawn(4)
    prompt = one.detail.tokens[:-2]
    assert len(prompt) == 4 and one.detail.tokens == again.detail.tokens and other.detail.tokens[:-2] != prompt
    assert generated(model(), GenerationRequest(prompt, 2)).detail.tokens == one.detail.tokens
