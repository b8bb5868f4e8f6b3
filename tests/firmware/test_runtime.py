"""Start-up, console, traps, exit and arguments of the firmware's runtime, on QEMU and on our own platform."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, QEMU, need, needs

from pyv_ext.elf import read_elf
from pyv_npu import boot
from pyv_npu.config import load
from pyv_npu.workloads.firmware import run_program
from toolchain.gnu import build_program

HERE = Path(__file__).parent

pytestmark = needs(GCC, PICOLIBC)

PRINTED = """\
[-2147483648] [4294967295] [deadbeef] [z] [text] [%]
[  -42] [00042] [0000beef] [    ab]
[18446744073709551615] [123456789abcdef] [-1]
a line that is longer than the buffer of the console, which holds 128 characters, and therefore leaves in more than \
one piece without losing a character
quotient 999999993
argument {answer}, data 7
"""


MARCHES = ("rv32im", "rv64imac")


def on_qemu(elf: Path) -> tuple[int, str]:
    """Exit code and console of QEMU `virt`."""
    need(QEMU)
    qemu = QEMU.replace("32", str(read_elf(elf).xlen))
    command = [qemu, "-M", "virt", "-nographic", "-bios", "none", "-monitor", "none", "-kernel", str(elf)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode()


def on_platform(elf: Path) -> tuple[int, str]:
    program = read_elf(elf)
    takes = {argument.name for argument in boot.requirements(program).arguments}
    config = load().config
    if program.xlen > 32:
        config = load(overrides={"core.isa": config.core.isa.replace("rv32", f"rv{program.xlen}")}).config
    result = run_program(config, elf, {"answer": 7} if "answer" in takes else {})
    return result.exit_code or 0, result.json["uart"]


@pytest.fixture(scope="module", params=MARCHES)
def probe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runtime") / "probe.elf"
    return build_program(out, [HERE / "runtime_probe.c", HERE / "lost_registers.S"], march=request.param)


@pytest.mark.parametrize(("machine", "answer"), [(on_qemu, 42), (on_platform, 7)])
def test_runtime(probe: Path, machine: Callable[[Path], tuple[int, str]], answer: int) -> None:
    """64-bit division is linked and right; arguments are the note's defaults without npu_bootinfo."""
    code, text = machine(probe)
    assert text.startswith(PRINTED.format(answer=answer))
    assert "FAIL" not in text
    assert text.endswith("runtime: PASS (15 checks, 0 failures)\n")
    assert code == 0


@pytest.mark.parametrize("machine", [on_qemu, on_platform])
def test_a_trap_without_a_handler_ends_the_run(tmp_path: Path, machine: Callable[[Path], tuple[int, str]]) -> None:
    elf = build_program(tmp_path / "unhandled.elf", [HERE / "unhandled_trap.c"])
    code, text = machine(elf)
    main = read_elf(elf).symbols["main"].address
    assert text == f"unhandled trap: mcause 2, mepc {main:#010x}, mtval 0x00000000\n"
    assert code == 62


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_the_first_program_of_the_guide(tmp_path: Path, mode: str) -> None:
    guide = (HERE.parents[1] / "docs" / "firmware.md").read_text(encoding="utf-8")
    source = tmp_path / "first.c"
    source.write_text(guide.split("```c\n")[1].split("```")[0])
    elf = build_program(tmp_path / "first.elf", [source])
    result = run_program(load(overrides={"npu.mode": mode}).config, elf, {"n": 20})
    assert result.json["uart"] == f"{mode}, the last one: 0\n"
    assert result.json["npu"]["completed"] == 20
