"""Programs of one's own that use the C library and C++: the host's compiler says what they print."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs
from test_runtime import MARCHES, on_platform, on_qemu

from pyv_ext.elf import read_elf
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.workloads.firmware import run_program
from toolchain.gnu import build_program

HERE = Path(__file__).parent

pytestmark = needs(GCC, PICOLIBC)

MACHINES = pytest.mark.parametrize("machine", [on_qemu, on_platform])
FLAGS = ["-Wall", "-Wextra", "-Werror"]


def on_host(source: Path, folder: Path) -> tuple[int, str]:
    """Exit code and output of the same source on this computer."""
    program = folder / "host"
    compiler = "g++" if source.suffix == ".cpp" else "gcc"
    subprocess.run([compiler, "-O1", str(source), "-o", str(program), "-lm"], check=True)
    done = subprocess.run([str(program)], capture_output=True, check=False)
    return done.returncode, done.stdout.decode()


def built(folder: Path, text: str) -> Path:
    source = folder / "own.c"
    source.write_text(text)
    return build_program(folder / "own.elf", [source], flags=FLAGS)


@pytest.mark.parametrize("march", MARCHES)
@MACHINES
def test_a_program_prints_what_it_prints_on_the_host(
    machine: Callable[[Path], tuple[int, str]], march: str, tmp_path: Path
) -> None:
    """Constructors, thread variables, errno, heap, floating point, setjmp, exit handlers, and an unfinished line."""
    source = HERE / "library_probe.c"
    elf = build_program(tmp_path / "probe.elf", [source], flags=FLAGS, march=march)
    assert machine(elf) == on_host(source, tmp_path)


@pytest.mark.parametrize("march", MARCHES)
def test_c_plus_plus_prints_what_it_prints_on_the_host(march: str, tmp_path: Path) -> None:
    """Beside the driver, whose headers it reads."""
    source = HERE / "library_probe.cpp"
    elf = build_program(tmp_path / "probe.elf", [source], flags=FLAGS, march=march)
    assert on_platform(elf) == on_host(source, tmp_path)


@pytest.mark.parametrize(
    ("statement", "code", "text"),
    [
        ("abort();", 134, ""),
        ("assert(argc == 1); return 0;", 134, "assertion"),
        ("return 7;", 7, ""),
        ('fputs("lost?", stderr); _Exit(3);', 3, "lost?"),
        ('print("print "); printf("and printf "); print("keep their order"); return 0;', 0,
         "print and printf keep their order"),
    ],
)  # fmt: skip
def test_the_end_of_a_program(statement: str, code: int, text: str, tmp_path: Path) -> None:
    heading = '#include <assert.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include "runtime.h"\n'
    elf = built(tmp_path, f"{heading}int main(int argc, char **argv) {{ (void)argc; (void)argv; {statement} }}\n")
    seen, printed = on_platform(elf)
    assert seen == code
    assert text in printed


def test_the_heap_ends_with_dram(tmp_path: Path) -> None:
    """And malloc says so with errno; what was allocated lies between the image and there."""
    elf = built(tmp_path, """
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    unsigned blocks = 0;
    uintptr_t lowest = UINTPTR_MAX, highest = 0;
    for (char *block; (block = malloc(1 << 20)) != NULL; blocks++) {
        block[0] = block[(1 << 20) - 1] = 1;
        lowest = (uintptr_t)block < lowest ? (uintptr_t)block : lowest;
        highest = (uintptr_t)block > highest ? (uintptr_t)block : highest;
    }
    printf("%u %x %x %d\\n", blocks, (unsigned)lowest, (unsigned)highest, errno == ENOMEM);
    return 0;
}
""")  # fmt: skip
    config = load(overrides={"npu.dram.size": 16 << 20}).config
    words = run_program(config, elf, {}).json["uart"].split()
    image = read_elf(elf).symbols["__heap_start"].address
    assert words[0] == "15" and words[3] == "1"
    assert image <= int(words[1], 16) and int(words[2], 16) + (1 << 20) <= 0x8100_0000


def test_the_clock_is_simulated_time(tmp_path: Path) -> None:
    elf = built(tmp_path, """
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
int main(void)
{
    struct timeval begin, end;
    gettimeofday(&begin, NULL);
    for (volatile int i = 0; i < 100000; i++) {
    }
    gettimeofday(&end, NULL);
    printf("%ld\\n", (long)(end.tv_usec - begin.tv_usec));
    return 0;
}
""")  # fmt: skip
    result = run_program(load().config, elf, {})
    cycles = result.json["cycles"]
    microseconds = int(result.json["uart"])
    assert 0.9 * cycles / 1200 < microseconds <= cycles / 1200


def test_standard_input_is_the_uart(tmp_path: Path) -> None:
    elf = built(tmp_path, """
#include <stdio.h>
int main(void)
{
    int a, b;
    printf("two numbers? ");
    scanf("%d %d", &a, &b);
    printf("%d\\n", a * b);
    return 0;
}
""")  # fmt: skip
    platform = Platform(load().config)
    platform.load(elf)
    platform.run(until=100_000)
    assert platform.uart.text == "two numbers? "  # it leaves before the program waits
    platform.uart.feed(b"6 7\n")
    platform.run(until=200_000)
    assert platform.uart.text == "two numbers? 42\n"
