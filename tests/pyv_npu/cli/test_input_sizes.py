"""Inputs without an end, and sparse files of 128 GiB: refused in one line before they are read, whatever takes them."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pyv_npu.cli import main

INPUTS = {
    "faults": ["run", "submit_latency", "--faults", "IN"],
    "restore": ["run", "hello", "--restore", "IN"],
    "config": ["run", "hello", "--config", "IN"],
    "preset": ["run", "hello", "--preset", "IN.yaml"],
    "rtos": ["run", "hello", "--gdb", "0", "--rtos", "IN"],
    "plugin": ["run", "hello", "--plugin", "IN"],
    "program": ["run", "IN"],
    "disasm": ["disasm", "IN"],
    "onnx": ["check", "IN.onnx"],
    "mlir": ["check", "IN.mlir"],
    "list": ["run", "IN.json", "--sim-level", "IA_TIMING"],
    "arrays": ["run", "mlp", "--sim-level", "IA", "--inputs", "IN.npz"],
    "array": ["run", "mlp", "--sim-level", "IA", "--input", "x=IN.npy"],
    "picture": ["run", "cnn", "--sim-level", "IA", "--input", "x=IN.png"],
    "calibration": ["run", "mlp", "--sim-level", "IA", "--precision", "int8", "--calibration", "IN"],
    "qconfig": ["run", "mlp", "--sim-level", "IA", "--qconfig", "IN"],
    "thresholds": ["run", "decoder_kv", "--sim-level", "IA", "--prompt", "1", "--generate", "1", "--kv", "oaken",
                   "--thresholds", "IN"],
    "shape": ["run", "IN.yaml", "--context", "100"],
    "energy": ["run", "cnn", "--timing-only", "--set", "energy.table=IN.yaml"],
    "arrivals": ["run", "submit_load", "--set", "load.arrivals=recorded", "--set", "load.file=IN"],
    "tokens": ["perplexity", "decoder_kv", "--tokens", "IN"],
    "charts": ["charts", "IN"],
    "workload": ["serve", "llama2-7b", "--workload", "IN"],
    "sweep": ["sweep", "IN.yaml", "-o", "out"],
    "campaign": ["campaign", "IN", "hello", "-n", "1"],
    "replay": ["run", "--replay", "IN"],
    "diff": ["diff", "IN", "IN"],
    "assembly": ["asm", "IN"],
    "semihosting": ["run", "hello", "--set", "semihosting.console=true", "--set", "semihosting.input=IN"],
}  # fmt: skip


@pytest.mark.parametrize("what", ["device", "sparse"])
@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_is_refused_before_it_is_read(
    kind: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(word for word in INPUTS[kind] if "IN" in word).rpartition("=")[2]
    if what == "device":
        Path(name).symlink_to("/dev/zero")
    else:
        with open(name, "wb") as file:
            file.truncate(1 << 37)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(INPUTS[kind]) in (64, 65)
    error = capsys.readouterr().err
    reason = "is no regular file" if what == "device" else "has 137438953472 bytes, the most is "
    assert error.startswith("pyv-npu: error: ") and f"{name}: " in error.replace(" =", ":") and error.count("\n") == 1
    assert reason in error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_a_sidecar_is_not_read_when_its_size_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "mlp", "-o", "out", "--weights-bin"]) == 0
    weights = Path("out/weights.bin")
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.truncate(1 << 37)
    capsys.readouterr()
    assert main(["run", "out/image.elf"]) == 65
    assert f"out/weights.bin: has {1 << 37} bytes, the most is {size}; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["run", "hello", "--set", "npu.dram.size=64000000000"], "npu.dram.size = 64000000000: the host gives no"),
        (["run", "mlp", "--sim-level", "IA", "--set", "npu.dram.size=64000000000"], "npu.dram.size=64000000000"),
    ],
)
def test_out_of_memory_says_what_was_asked_for(words: list[str], asked: str) -> None:
    limit = 16 << 30

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-m", "pyv_npu", *words]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, check=False)
    assert done.returncode == 65 and asked in done.stderr and done.stderr.count("\n") == 1


MACHINES = """
import gc
from pyv_npu.config import load
from pyv_npu.platform import Platform
gc.disable()  # as between two collections
config = load(overrides={"npu.dram.size": "256MiB"}).config
for _ in range(12):
    Platform(config)
"""


def test_discarded_machines_give_their_memory_back_before_the_host_refuses_some() -> None:
    limit = 4 << 30
    done = subprocess.run(
        [sys.executable, "-c", MACHINES], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
