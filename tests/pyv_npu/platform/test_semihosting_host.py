"""Semihosting beyond exit: console, files of one folder, clock, command line; the same as on QEMU."""

import os
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, QEMU, needs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from semihosting_programs import Ran, build, ours, platform, qemu

from pyv_ext.pyv_adapter import loader
from pyv_npu.cli import main
from pyv_npu.snapshot import Snapshot

needs_pyv = pytest.mark.skipif(loader.missing() is not None, reason=str(loader.missing()))
tools = needs(GCC, PICOLIBC)
beside_qemu = needs(GCC, PICOLIBC, QEMU)

CALL = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
static int32_t call(uint32_t operation, const void *parameter)
{
    register uint32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = parameter;
    __asm__ volatile(".option push\\n.option norvc\\n.balign 16\\nslli zero, zero, 31\\nebreak\\nsrai zero, zero, 7\\n"
                     ".option pop" : "+r"(a0) : "r"(a1) : "memory");
    return (int32_t)a0;
}
#define BLOCK(...) ((uint32_t[]){__VA_ARGS__})
#define TEXT(text) (uint32_t)text, sizeof text - 1
static int32_t open(const char *name, uint32_t mode) { return call(1, BLOCK((uint32_t)name, mode, strlen(name))); }
"""

FILES = (
    CALL
    + """
int main(void)
{
    char text[64];
    FILE *file = fopen("out.txt", "w");
    for (int i = 0; i < 40; i++)
        fprintf(file, "line %d %08x\\n", i, i * 0x01234567u);
    fclose(file);
    file = fopen("out.txt", "r+");
    while (fgets(text, sizeof text, file))
        fputs(text, stdout);
    fseek(file, 7, SEEK_SET);
    fputs("HERE", file);
    fseek(file, 0, SEEK_SET);
    printf("%s", fgets(text, sizeof text, file));
    fclose(file);
    file = fopen("sub/more.txt", "a");
    fputs("appended\\n", file);
    fclose(file);
    printf("missing %d\\n", fopen("missing", "r") != 0);
    int32_t handle = open("out.txt", 0);
    printf("length %d\\n", (int)call(0x0c, BLOCK(handle)));
    memset(text, 0, sizeof text);
    printf("seek %d\\n", (int)call(0x0a, BLOCK(handle, 5)));
    printf("left %d %s\\n", (int)call(6, BLOCK(handle, (uint32_t)text, 10)), text);
    call(0x0a, BLOCK(handle, 10000));
    printf("left %d\\n", (int)call(6, BLOCK(handle, (uint32_t)text, 10)));
    printf("close %d\\n", (int)call(2, BLOCK(handle)));
    printf("rename %d\\n", (int)call(0x0f, BLOCK(TEXT("out.txt"), TEXT("new.txt"))));
    printf("gone %d\\n", (int)open("out.txt", 0) == -1);
    fopen("kept.txt", "w");
    printf("errno %d\\n", (int)open("nowhere/x", 4) == -1 ? (int)call(0x13, 0) : -1);
    printf("write0 %d\\n", (int)(call(4, "text of write0\\n"), 0));
    call(3, "c");
    call(5, BLOCK(open(":tt", 4), TEXT(" and :tt\\n")));
    printf("error %d %d\\n", call(8, BLOCK(-1)) != 0, call(8, BLOCK(3)) != 0);
    uint32_t line[2] = {(uint32_t)text, sizeof text};
    printf("command line %d <%s> %d\\n", (int)call(0x15, line), text, (int)line[1]);
    return 37;
}
"""
)


def folder_of(path: Path, name: str) -> Path:
    folder = path / name
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/more.txt").write_text("first\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@beside_qemu
@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_files_and_console_are_those_of_qemu(tmp_path: Path, engine: str) -> None:
    image = build(tmp_path, FILES)
    one, other = folder_of(tmp_path, "ours"), folder_of(tmp_path, "qemu")
    ran = ours(image, one, **{"semihosting.command_line": "prog one two", "core.engine": engine})
    assert ran == qemu(image, other, arguments="prog one two")
    assert ran.code == 37
    assert contents(one) == contents(other)
    assert set(contents(one)) == {"new.txt", "kept.txt", "sub/more.txt"}


@tools
def test_input_is_given_in_lines(tmp_path: Path) -> None:
    """As a terminal does; the console is one."""
    source = (
        CALL
        + """
int main(void)
{
    for (int i = 0; i < 7; i++)
        printf("%d ", (int)call(7, 0));
    char text[8] = "";
    int32_t left = call(6, BLOCK(open(":tt", 0), (uint32_t)text, 4));
    printf("%d %s %d\\n", (int)left, text, (int)call(9, BLOCK(open(":tt", 4))));
    return 0;
}
"""
    )
    image = build(tmp_path, source)
    (tmp_path / "given").write_bytes(b"ab\nc\xff\0defgh")
    ran = ours(image, None, **{"semihosting.input": str(tmp_path / "given")})
    assert ran == Ran(0, "97 98 10 99 255 0 100 0 efgh 1\n")


@tools
def test_the_console_ends_with_its_input(tmp_path: Path) -> None:
    source = (
        CALL
        + """
int main(void)
{
    char text[8];
    int32_t tt = open(":tt", 0), first = call(6, BLOCK(tt, (uint32_t)text, 8));
    printf("%d %d %d\\n", (int)first, (int)call(6, BLOCK(tt, (uint32_t)text, 8)), (int)call(7, 0));
    return 0;
}
"""
    )
    (tmp_path / "given").write_bytes(b"ab\n")
    image = build(tmp_path, source)
    assert ours(image, None, **{"semihosting.input": str(tmp_path / "given")}) == Ran(0, "5 8 -1\n")


CLOCK = (
    CALL
    + """
int main(void)
{
    uint64_t first, second;
    uint32_t heap[4], *block = heap;
    call(0x30, &first);
    call(0x30, &second);
    printf("%u %u %d %d %d\\n", (unsigned)first, (unsigned)(second - first), (int)call(0x31, 0), (int)call(0x11, 0),
           (int)call(0x10, 0));
    call(0x16, &block);
    extern char __heap_end[];
    printf("%d %d\\n", heap[0] < heap[1] && heap[0] % 16 == 0, heap[2] == heap[1] && heap[3] == heap[0]);
    return 0;
}
"""
)


@tools
def test_the_clock_is_that_of_the_core(tmp_path: Path) -> None:
    """Cycles, so every engine and host gives the same; 1,000 Hz make a second of 1,000 cycles."""
    image = build(tmp_path, CLOCK)
    ran = {
        engine: ours(image, None, **{"core.engine": engine, "npu.clock_hz": 1000}) for engine in ("reference", "fast")
    }
    assert ran["reference"] == ran["fast"]
    first, between, frequency, seconds, hundredths = map(int, ran["fast"].output.split("\n")[0].split())
    assert 0 < between < 100 and frequency == 1000
    assert 0 <= seconds - first // 1000 <= 1 and abs(hundredths - first // 10) < 10
    assert ran["fast"].output.endswith("\n1 1\n")


@tools
def test_the_time_begins_where_the_key_says(tmp_path: Path) -> None:
    source = CALL + 'int main(void) { printf("%u %d\\n", (unsigned)call(0x11, 0), (int)call(0x10, 0) < 10); }'
    image = build(tmp_path, source)
    assert ours(image, None, **{"semihosting.time": 4_000_000_000}) == Ran(0, "4000000000 1\n")


@needs_pyv
@tools
def test_py_v_serves_the_same_calls(tmp_path: Path) -> None:
    image = build(tmp_path, CLOCK)
    isa = {"core.isa": "rv32im_zicsr_zifencei", "npu.clock_hz": 1000}
    outputs = []
    for engine in ("reference", "pyv"):
        from pyv_npu.config import load
        from pyv_npu.platform import Platform

        keys = {"semihosting.console": True, "core.engine": engine, "npu.mode": "loose", **isa}
        machine = Platform(load(preset="pyv", overrides=keys).config)
        machine.load(image)
        outputs.append((machine.run(until=400_000), machine.cycle, machine.hart.instret, machine.console.text))
    assert outputs[0] == outputs[1]
    assert outputs[0][0].code == 0


# -- what a program may not do ---------------------------------------------------------------------------------

REFUSED = ("../secret", "sub/../../secret", "/etc/passwd", "link", "linked/secret", "", ".", "sub", "pipe", "sub\\0x")


@tools
def test_a_program_stays_in_its_folder(tmp_path: Path) -> None:
    """No name leads out of it: neither by .. nor by links; what is no file is not opened, which could wait for ever."""
    names = ", ".join(f'"{name}"' for name in REFUSED)
    sizes = ", ".join(f'sizeof "{name}" - 1' for name in REFUSED)
    source = (
        CALL
        + f"""
const char *names[] = {{{names}}};
unsigned sizes[] = {{{sizes}}};
int main(void)
{{
    for (int i = 0; i < {len(REFUSED)}; i++) {{
        uint32_t name = (uint32_t)names[i];
        for (unsigned mode = 0; mode < 12; mode++)
            if (call(1, BLOCK(name, mode, sizes[i])) != -1)
                printf("opened %s %u\\n", names[i], mode);
        if (!call(0x0e, BLOCK(name, sizes[i])) || !call(0x0f, BLOCK(name, sizes[i], TEXT("mine")))
            || !call(0x0f, BLOCK(TEXT("own"), name, sizes[i])))
            printf("changed %s\\n", names[i]);
    }}
    printf("system %d, mode 12 %d\\n", (int)call(0x12, BLOCK(TEXT("touch x"))), (int)open("own", 12));
    printf("nowhere %d\\n", (int)call(5, BLOCK(open("own", 4), 0x10, 8)));
    return 0;
}}
"""
    )
    image, folder = build(tmp_path, source), folder_of(tmp_path, "folder")
    (tmp_path / "secret").write_text("secret")
    (folder / "own").write_text("own")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    assert ours(image, folder) == Ran(0, "system -1, mode 12 -1\nnowhere -1\n")
    assert (tmp_path / "secret").read_text() == "secret"
    assert {path.name for path in folder.iterdir()} == {"sub", "own", "link", "linked", "pipe"}
    assert (folder / "own").read_bytes() == b""


@tools
def test_without_a_folder_no_file_is_opened(tmp_path: Path) -> None:
    image = build(
        tmp_path, CALL + 'int main(void) { printf("%d %d", (int)open("x", 4), (int)call(0x13, 0)); return 0; }'
    )
    assert ours(image, None) == Ran(0, "-1 13")


@tools
def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    """The first call beyond exit traps."""
    machine = platform(build(tmp_path, FILES), None, **{"semihosting.console": False, "run.max_cycles": 200_000})
    machine.run()
    assert machine.console.text == "" and machine.hart.csrs.mcause == 3


# -- snapshots -------------------------------------------------------------------------------------------------


@tools
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.floats(0, 1, exclude_max=True), again=st.floats(0, 1, exclude_max=True))
def test_a_snapshot_has_the_open_files(tmp_path_factory: pytest.TempPathFactory, cut: float, again: float) -> None:
    """A machine that goes on elsewhere from any cycle, or back in its own time, leaves the same output and files."""
    base = tmp_path_factory.mktemp("snapshot")
    image = build(base, FILES)
    folders = [folder_of(base, f"folder{number}") for number in range(3)]
    whole = platform(image, folders[0])
    assert whole.run().code == 37
    expected, end = (whole.console.text, contents(folders[0])), whole.cycle
    first = platform(image, folders[1])
    first.run(until=int(cut * end))
    saved = first.save().to_bytes()
    first.run(until=int(cut * end + again * (end - cut * end)))
    for machine, here in ((first, folders[1]), (platform(image, folders[2]), folders[2])):
        machine.restore(Snapshot.from_bytes(saved))
        assert machine.run().code == 37
        assert (machine.console.text, contents(here)) == expected


# -- command line ----------------------------------------------------------------------------------------------


@tools
def test_the_command_line_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, folder = build(tmp_path, FILES), folder_of(tmp_path, "folder")
    assert main(["run", str(image), "--semihosting", str(folder), "--mode", "loose"]) == 37
    assert "rename 0" in capsys.readouterr().out
    assert (folder / "kept.txt").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--semihosting", "/no/such"],
            "semihosting.folder = /no/such: there is no such folder; make it, or name anot",
        ),
        (
            ["--set", "semihosting.input=x"],
            "semihosting.input is set, and semihosting is off: set semihosting.console too, or semihosting.folder",
        ),
        (["--set", "semihosting.time=1"], "semihosting.time is set, and semihosting is off"),
        (
            ["--set", "semihosting.input=/no/such", "--set", "semihosting.console=true"],
            "semihosting.input = /no/such: No such file or directory; name a file",
        ),
    ],
)
def test_what_cannot_be_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hello", *options]) == 65
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "semihosting" in line]
    assert message in line


@tools
def test_what_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder is gone at the end of the run."""
    image, folder = build(tmp_path, CALL + 'int main(void) { open("x", 4); for (;;); }'), tmp_path / "gone"
    folder.mkdir()
    machine = platform(image, folder, **{"run.max_cycles": 100_000})
    machine.run()
    folder.rmdir()
    with pytest.raises(Exception, match=r"semihosting: what the program wrote cannot be kept: .*gone"):
        machine.deliver()
