"""What a short command imports: a run starts in a fraction of a second because most of the package stays unread."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyv_native.code_cache import OFF, VARIABLE
from pyv_npu.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent.parent
LIMIT, ALL = 147, 278
"""Modules of ours that a run of a program imports which does not use the NPU, packages included. And all modules."""
USED = 31
"""Modules more where the program reads registers of the NPU, submits nothing, and is found by its name."""
PROGRAM = """
lui x1, 0x100
lui x2, 0x5
addi x2, x2, 0x555
sw x2, 0(x1)
end: jal x0, end
"""
"""Exits, and does nothing else."""
OWN = ("npu_device", "pyv_ext", "pyv_native", "pyv_npu", "toolchain", "firmware")


def modules(*arguments: str, cache: str = OFF) -> set[str]:
    """What a command has imported at its end, on a machine where no program has come to native code."""
    program = f"import sys, pyv_npu.cli as c; code = c.main({list(arguments)!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, VARIABLE: cache},
    )  # fmt: skip
    assert "exit" in done.stdout
    return set(done.stderr.split())


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    source = tmp_path_factory.mktemp("start") / "exit.s"
    source.write_text(PROGRAM)
    program = str(source.with_suffix(".elf"))
    assert main(["asm", str(source), "-o", program]) == 0
    return modules("run", program)


@pytest.fixture(scope="module")
def hello() -> set[str]:
    return modules("run", "hello")


@pytest.fixture(scope="module")
def imported(everything: set[str]) -> set[str]:
    return {name for name in everything if name.partition(".")[0] in OWN}


def test_a_run_imports_few_modules(everything: set[str], imported: set[str]) -> None:
    assert len(imported) <= LIMIT, sorted(imported)
    assert len(everything) <= ALL, sorted(everything)


def test_firmware_imports_neither_the_compiler_nor_the_report_nor_the_other_workloads(imported: set[str]) -> None:
    others = (
        "toolchain.codegen", "toolchain.onnx_frontend", "toolchain.decoders", "pyv_npu.report", "pyv_npu.studies",
        "pyv_npu.observe.sanitizer", "pyv_ext.bus.shadow",
    )  # fmt: skip
    assert not [name for name in imported if name.startswith(others)]
    assert {name for name in imported if name.startswith("pyv_npu.workloads.")} == {
        "pyv_npu.workloads.firmware", "pyv_npu.workloads.workload",
    }  # fmt: skip


HEAVY = {"numpy", "elftools", "llvmlite", "hashlib", "threading", "heapq", "pathlib"}
"""Modules of others that such a run does without."""
NPU = (
    "npu_device.host", "npu_device.issue", "npu_device.event_loop", "npu_device.decode", "npu_device.abi.registers",
    "npu_device.abi.descriptor", "npu_device.abi.opcodes", "pyv_npu.observe.latency.probe",
    "pyv_npu.observe.latency.recorder", "pyv_npu.observe.latency.submissions", "pyv_npu.observe.latency.rows",
)  # fmt: skip
"""What programs talk to, what is behind it, and what listens there."""


def test_firmware_that_submits_nothing_waits_for_no_numbers(everything: set[str]) -> None:
    assert not HEAVY & everything


def test_firmware_that_does_not_use_the_npu_waits_for_nothing_of_it(everything: set[str]) -> None:
    assert not [name for name in everything if name.startswith(NPU)]


FAULTS = """
import resource
from pyv_npu.config import load
from pyv_npu.platform import Platform
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
config = load().config
first = Platform(config)
before = faults()
second = Platform(config)
made = faults() - before
second.outputs.sha256()
print(made, faults() - before - made)
"""


def test_memory_that_a_run_does_not_write_is_not_touched() -> None:
    """Pages of the host that a machine of 128 MiB takes, whose tables have a byte for each page and each line, and that
    the hash of its empty scratchpad takes: a page that is only read is the host's page of zeros."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=60)
    made, hashed = map(int, done.stdout.split())
    assert made < 220 and hashed < 600, (made, hashed)


def test_a_program_that_reads_registers_of_the_npu_needs_what_is_in_front_of_its_queue(
    hello: set[str], everything: set[str]
) -> None:
    assert not HEAVY - {"heapq"} & hello
    assert len(hello - everything) <= USED, sorted(hello - everything)


def test_an_elf_by_its_path_needs_no_more(hello: set[str]) -> None:
    found = modules("run", "--json", str(ROOT / "firmware" / "prebuilt" / "hello.elf"))
    assert not HEAVY - {"heapq"} & found
    assert len(found) <= len(hello) + 5, sorted(found - hello)  # json


WARM = """
li x1, 100000
loop: addi x1, x1, -1
bnez x1, loop
lui x1, 0x100
lui x2, 0x5
addi x2, x2, 0x555
sw x2, 0(x1)
end: jal x0, end
"""
"""More instructions than closures execute."""
TEXT = (
    "pyv_ext.engines.fast.interpreter", "pyv_ext.engines.fast.operations", "pyv_ext.engines.fast.region",
    "pyv_ext.engines.lowering", "pyv_native.llvm",
)  # fmt: skip
"""What makes the text of native code."""


def test_native_code_of_the_last_run_needs_nothing_that_makes_any(tmp_path: Path) -> None:
    source = tmp_path / "warm.s"
    source.write_text(WARM)
    program = str(source.with_suffix(".elf"))
    assert main(["asm", str(source), "-o", program]) == 0
    cold, warm = (modules("run", "--json", program, cache=str(tmp_path / "cache")) for _ in range(2))
    assert set(TEXT) <= cold and "pyv_ext.engines.fast.native" in warm
    assert not {*TEXT, "llvmlite", "hashlib"} & warm


def test_neither_a_snapshot_nor_a_debugger_needs_numbers(tmp_path: Path) -> None:
    """A debugger takes its first snapshot where the program begins: what this imports delays every session."""
    assert not {"numpy", "npu_device.issue.execution"} & modules("run", "hello", "--save", f"{tmp_path}/x@1000")
    program = """
import sys
from pyv_npu import debug
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.platform import Platform
platform = Platform(load().config)
platform.load(find_program("hello"))
debug.time_machine(platform).save(None)
debug.tasks_of(platform)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"numpy", "importlib.metadata", "npu_device.issue.execution"}
    assert not heavy & set(done.stdout.split())


THREADS = "OPENBLAS_NUM_THREADS"


@pytest.mark.parametrize("chosen", [None, "3"])
def test_products_take_one_thread_unless_the_user_says_otherwise(chosen: str | None) -> None:
    """Two threads take ten times as long as one for tiles of 128 beside other processes."""
    environment = {name: value for name, value in os.environ.items() if name != THREADS}
    program = f"import pyv_npu.__main__, os; print(os.environ[{THREADS!r}])"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60,
        env=environment | ({} if chosen is None else {THREADS: chosen}),
    )  # fmt: skip
    assert process.stdout.strip() == (chosen or "1")
