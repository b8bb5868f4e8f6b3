"""`pyv-npu completion`: what may follow a command line, and the script of a shell that asks for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyv_npu.cli import main
from pyv_npu.cli.completion import words
from pyv_npu.cli.main import VERBS, module_of
from pyv_npu.cli.shared.points import options_of


@pytest.mark.parametrize(
    ("line", "there", "absent"),
    [
        ([""], {"run", "completion", "get-py-v"}, {"--help"}),
        (["comp"], {"compare", "compile", "completion"}, {"run"}),
        (["run", "sub"], {"submit_latency", "submit_load"}, {"hello"}),
        (["run", "llama"], {"llama2-7b", "llama3-8b"}, set()),
        (["run", "cn"], {"cnn", "cnn_int8"}, set()),
        (["run", "--pre"], {"--preset", "--precision"}, {"--report"}),
        (["run", "hello", "--preset", ""], {"rocket", "ibex"}, {"hello"}),
        (["run", "hello", "--preset=ro"], {"--preset=rocket"}, {"--preset=ibex"}),
        (["run", "hello", "--set", "npu.te.c"], {"npu.te.count="}, {"npu.ve.count="}),
        (["run", "x.onnx", "--submit", ""], {"firmware", "generated"}, set()),
        (["run", "hello", "--trace", ""], {"commits", "vcd"}, set()),
        (["run", "hello", "--faults", "lost"], {"lost_doorbell", "lost_interrupt"}, {"racy"}),
        (["run", "hello", "--gdb", "0", "--rtos", ""], {"freertos"}, set()),
        (["compare", "hello", "--core", "r"], {"reference"}, {"fast"}),
        (["build", "--s"], {"--slot"}, set()),
        (["export-models", "models", "decoder_kv"], {"decoder_kv", "decoder_kv_mha"}, {"llama2-7b"}),
        (["docs", "la"], {"latency"}, {"llm"}),
        (["build", "sub"], set(), {"submit_latency"}),
        (["nonsense", ""], set(), {"run"}),
    ],
)
def test_what_may_follow(line: list[str], there: set[str], absent: set[str]) -> None:
    found = set(words(line))
    assert there <= found and not absent & found


def test_every_command_has_options() -> None:
    assert all("--help" in options_of(module_of(verb)) for verb in VERBS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "pyv-npu completion words -- " in script
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: apt-get install {shell}")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes() -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    line = "COMP_WORDS=(pyv-npu run --preset rock); COMP_CWORD=3"
    ask = f'eval "$(pyv-npu completion bash)"; {line}; _pyv_npu; echo "${{COMPREPLY[@]}}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ask], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "rocket\n"


def test_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "run"]) == 64
    assert capsys.readouterr().err == "pyv-npu: error: run: a shell takes no words; drop it\n"
    assert main(["completion", "bsh"]) == 64
    assert "did you mean bash?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["comapre", "hello"], "did you mean compare?"),
        (["run", "submit_latencyy"], "did you mean submit_latency?"),
        (["run", "llama2-7"], "did you mean llama2-7b?"),
        (["run", "hello", "--preset", "rockett"], "did you mean rocket?"),
        (["run", "hello", "--prset", "rocket"], "did you mean --preset?"),
        (["run", "hello", "--mode", "tihgt"], "did you mean tight?"),
        (["run", "hello", "--config", "onnxim-c2"], "did you mean onnxim-c1?"),
        (["run", "cnn", "--qconfig", "int4-weight"], "did you mean int4-weights?"),
        (["run", "hello", "--faults", "lost_dorbell"], "did you mean lost_doorbell?"),
        (["campaign", "campain.yaml"], "did you mean campaign?"),
        (["build", "rasy.c", "-o", "x.elf"], "did you mean racy?"),
        (["run", "hello", "--set", "npu.te.cuont=1"], "did you mean npu.te.count?"),
    ],
)
def test_did_you_mean(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (64, 65)
    error = capsys.readouterr().err
    assert hint in error and error.count("\n") == 1
