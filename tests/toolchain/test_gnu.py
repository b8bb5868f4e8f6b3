"""Building firmware: same bytes anywhere, clear errors, and prebuilt programs that belong to their sources."""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from external_tools import GCC, PICOLIBC, need, needs

from npu_device.abi import memory_map as mm
from pyv_ext.elf import read_elf
from pyv_npu import boot
from toolchain import gnu
from toolchain.errors import CompilerError, ToolchainError
from toolchain.gnu import (
    APPLICATIONS,
    BOTH_MODES,
    RUNTIME_SOURCES,
    build,
    build_program,
    find_compiler,
    firmware_folder,
    source_hashes,
)

PREBUILT = firmware_folder() / "prebuilt"
NAMES = [row.name for row in APPLICATIONS]
MANIFEST = json.loads((PREBUILT / gnu.MANIFEST).read_text(encoding="utf-8"))
ONCE = ("npu_submit_once_loose", "npu_submit_once_loose_tail", "npu_submit_once_tight", "npu_submit_once_watched")
SUBMIT = {
    "npu_submit_loose", "npu_submit_loose_tail", "npu_submit_tight",
    "npu_submit_prebuilt_loose", "npu_submit_prebuilt_loose_tail", "npu_submit_prebuilt_tight",
    "npu_submit_stage_loose", *ONCE, "npu_submit_loose_watched", "npu_submit_tight_watched",
    "npu_submit_prebuilt_loose_watched", "npu_submit_prebuilt_tight_watched", "npu_submit_stage_watched",
}  # fmt: skip
STAGED = "npu_submit_staged"
"""Only in programs that submit batches."""
PAGE = 4096

needs_compiler = needs(GCC, PICOLIBC)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- what ships --------------------------------------------------------------------------------------------------


def test_the_catalogue_is_what_ships() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in PREBUILT.glob("*.elf")) == sorted(MANIFEST["programs"])
    assert all(set(row.modes) <= set(BOTH_MODES) and row.modes and row.text for row in APPLICATIONS)


def test_every_source_is_in_the_catalogue() -> None:
    used = {*RUNTIME_SOURCES, *(source for row in APPLICATIONS for source in row.sources)}
    there = {path for path in source_hashes(firmware_folder()) if path.endswith((".c", ".S"))}
    assert used == there


def test_prebuilt_programs_belong_to_the_sources() -> None:
    assert MANIFEST["sources"] == source_hashes(firmware_folder()), "stale: run scripts/build-firmware"
    assert MANIFEST["compile_flags"] == [*gnu.ISA.compile, *gnu.COMPILE_FLAGS]
    assert MANIFEST["link_flags"] == [*gnu.ISA.link, *gnu.LINK_FLAGS]


@pytest.mark.parametrize("name", NAMES)
def test_a_prebuilt_program_is_small_and_names_no_machine(name: str) -> None:
    data = (PREBUILT / f"{name}.elf").read_bytes()
    assert MANIFEST["programs"][name] == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert len(data) < 112 << 10
    debian = rb"lib/(?:gcc|picolibc)/riscv64-unknown-elf/"  # headers, in the debugging information of picolibc too
    assert re.findall(rb"/(?:home|root|tmp|work|usr/(?!" + debian + rb"))/?[^\0]*", data) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_prebuilt_program_says_what_it_needs(name: str) -> None:
    program = read_elf(PREBUILT / f"{name}.elf")
    needs = boot.requirements(program)
    assert needs.slot == 0
    assert needs.dram_bytes == max(segment.end for segment in program.segments) - mm.DRAM_BASE
    assert needs.spm_bytes <= mm.SPM_SIZE
    indices = [argument.slot for argument in needs.arguments]
    assert sorted(set(indices)) == sorted(indices)
    assert {"tail_write", "plic"} <= {argument.name for argument in needs.arguments}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_shares_no_page_with_code(name: str) -> None:
    program = read_elf(PREBUILT / f"{name}.elf")
    code = {page for s in program.segments if s.executable for page in range(s.address // PAGE, -(-s.end // PAGE))}
    data = {page for s in program.segments if not s.executable for page in range(s.address // PAGE, -(-s.end // PAGE))}
    assert code and data and not code & data


def test_arguments_are_declared() -> None:
    arguments = {a.name: a.default for a in boot.requirements(read_elf(PREBUILT / "submit_latency.elf")).arguments}
    assert arguments == {
        "n": 1000, "phases": 15, "gap": 500, "op": 3, "tile": 64, "warmup": 0, "burst": 16, "prefetch": 1, "batch": 8,
        "values": 1,
        "timeout": 0, "plic": 0, "tail_write": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_only_complete_submissions_are_called_npu_submit(name: str) -> None:
    """Latency is measured at every function of that name: no part, clone or helper may have it."""
    found = {f.name for f in read_elf(PREBUILT / f"{name}.elf").functions if f.name.startswith("npu_submit")}
    assert found - {STAGED} == SUBMIT


# -- the hot path ------------------------------------------------------------------------------------------------


def disassemble(function: str) -> list[tuple[str, str]]:
    """(mnemonic, operands) of a function of submit_latency."""
    objdump = "riscv64-unknown-elf-objdump"
    need(objdump)
    command = [objdump, "-d", "-M", "no-aliases", f"--disassemble={function}", str(PREBUILT / "submit_latency.elf")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^[0-9a-f]+:\t[0-9a-f ]+\t(\S+)(?:\t(.*))?$", text, re.MULTILINE)


@pytest.mark.parametrize("function", sorted(SUBMIT - {"npu_submit_stage_watched"} - set(ONCE)))
def test_a_submission_calls_nothing_and_uses_no_stack(function: str) -> None:
    code = disassemble(function)
    assert code
    assert not [row for row in code if row[0] == "jal" and not row[1].startswith("zero")]
    assert [row for row in code if row[0] == "jalr"] == [("jalr", "zero,0(ra)")]
    assert not [row for row in code if "(sp)" in row[1] or row[1].startswith("sp")]


@pytest.mark.parametrize(
    ("function", "loads", "stores", "fences", "total"),
    [
        # 16 words of the descriptor, tail, doorbell; tail, limit, mask, base and in the poll base, head and limit
        ("npu_submit_loose", 6, 19, 1, 49),
        # 16 words, next buffer
        ("npu_submit_tight", 1, 17, 0, 31),
        # 15 words copied and the ticket
        ("npu_submit_prebuilt_loose", 6 + 15, 19, 1, 58),
        ("npu_submit_prebuilt_tight", 0, 0, 0, 5),
    ],
)
def test_the_hot_path_stays_lean(function: str, loads: int, stores: int, fences: int, total: int) -> None:
    """An upper bound on instructions; the exact number of memory accesses of this compiler's code."""
    names = [name for name, _ in disassemble(function)]
    assert (names.count("lw"), names.count("sw"), names.count("fence")) == (loads, stores, fences)
    assert len(names) <= total


def test_both_modes_write_the_same_words() -> None:
    """The fair pair: each word of the 64 bytes is stored once, by either mode."""
    for function in ("npu_submit_loose", "npu_submit_tight"):
        stores = [operands for name, operands in disassemble(function) if name == "sw"]
        base = max((operand.split("(")[1] for operand in stores), key=[o.split("(")[1] for o in stores].count)
        offsets = sorted(int(o.split(",")[1].split("(")[0]) for o in stores if o.split("(")[1] == base)
        assert offsets == list(range(0, 64, 4))


# -- building ----------------------------------------------------------------------------------------------------


@needs_compiler
def test_building_again_gives_the_same_bytes(tmp_path: Path) -> None:
    if find_compiler().version != MANIFEST["compiler"]:
        pytest.skip(f"another compiler than the manifest's {MANIFEST['compiler']}")
    elfs = build(tmp_path, debug=False)
    assert {elf.stem: sha256(elf) for elf in elfs} == {name: sha256(PREBUILT / f"{name}.elf") for name in NAMES}
    assert json.loads((tmp_path / gnu.MANIFEST).read_text()) == MANIFEST


@needs_compiler
def test_bytes_do_not_depend_on_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = build(tmp_path / "here", ["hello"], debug=False)[0]
    shutil.copytree(firmware_folder(), tmp_path / "else" / "where", ignore=shutil.ignore_patterns("prebuilt"))
    monkeypatch.setattr(gnu, "firmware_folder", lambda: tmp_path / "else" / "where")
    monkeypatch.chdir(tmp_path)
    there = build(Path("there"), ["hello"], debug=False)[0]
    assert here.read_bytes() == there.read_bytes()


class Tools:
    """In place of GNU's: an object is what it is made from, a program its objects."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.specs = folder, folder / "picolibc.specs"
        self.version = "gcc 1"
        self.compiled: list[str] = []

    def __call__(self, command: Sequence[str], folder: Path | None = None, data: bytes = b"") -> bytes:
        if len(command) == 2:
            return (str(self.specs) if command[1].startswith("-print") else self.version).encode()
        *flags, _, out = command
        if "-c" in flags:
            self.compiled.append(flags.pop())
            inputs = [self.specs, *sorted(self.folder.rglob("*.h")), (folder or Path()) / self.compiled[-1]]
            made = [self.version, *flags, *(path.read_text() for path in inputs)]
            Path(out).write_text("\n".join(made))
        else:
            objects = (Path(path) for path in flags if path.endswith(".o"))
            Path(out).write_bytes(b"\n".join(path.read_bytes() for path in objects))
        return b""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "firmware"
    shutil.copytree(firmware_folder(), folder, ignore=shutil.ignore_patterns("prebuilt"))
    made = Tools(folder)
    made.specs.write_text("picolibc 1")
    monkeypatch.setattr(gnu, "firmware_folder", lambda: folder)
    monkeypatch.setattr(gnu, "find_tool", lambda *_: "/usr/bin/gcc")
    monkeypatch.setattr(gnu, "run_tool", made)
    return made


def test_objects_of_the_package_are_kept(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes into an object and has changed, a build with the cache gives what one without gives."""
    own = tmp_path / "own.c"
    own.write_text("int main(void) { return 3; }\n")

    def made(cache: str, options: Mapping[str, Any]) -> bytes:
        monkeypatch.setenv("PYV_NPU_CACHE", cache)
        tools.compiled.clear()
        return build_program(tmp_path / "own.elf", [own], **options).read_bytes()

    def append(path: Path) -> None:
        path.write_text(path.read_text() + "/* changed */\n")

    cache = tmp_path / "cache"
    for change, compiled, options in (
        (lambda: None, RUNTIME_SOURCES, {}),
        (lambda: None, (), {}),
        (lambda: append(own), (), {}),
        (lambda: None, (), {"flags": ["-DN=4"]}),
        (lambda: None, RUNTIME_SOURCES, {"slot": 1}),
        (lambda: None, RUNTIME_SOURCES, {"march": "rv32imac"}),
        (lambda: None, RUNTIME_SOURCES, {"debug": False}),
        (lambda: append(tools.folder / "include" / "npu_driver.h"), RUNTIME_SOURCES, {}),
        (lambda: append(tools.folder / "lib" / "boot.c"), RUNTIME_SOURCES, {}),
        (lambda: append(tools.specs), RUNTIME_SOURCES, {}),
        (lambda: setattr(tools, "version", "gcc 2"), RUNTIME_SOURCES, {}),
        (lambda: [path.write_bytes(path.read_bytes()[:-1]) for path in cache.iterdir()], RUNTIME_SOURCES, {}),
        (lambda: None, (), {}),
    ):  # fmt: skip
        change()
        found = made(str(cache), options)
        assert sorted(tools.compiled) == sorted([str(own), *compiled])
        assert found == made("off", options)
        assert sorted(tools.compiled) == sorted([str(own), *RUNTIME_SOURCES])


@needs_compiler
def test_the_slot_is_in_note_and_code(tmp_path: Path) -> None:
    (elf,) = build(tmp_path, ["hello"], slot=2)
    program = read_elf(elf)
    assert boot.requirements(program).slot == 2
    tight = program.symbols["npu_submit_prebuilt_tight"]
    segment = next(s for s in program.segments if s.executable)
    code = segment.data[tight.address - segment.address :][: tight.size]
    words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, len(code), 4)]
    assert [word & 0xFE00_707F for word in words].count(0x5C00_005B) == 1


@needs_compiler
def test_the_compilers_message_is_passed_on(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int main(void) { int unused; return later; }\n")
    with pytest.raises(
        CompilerError, match=r"^riscv64-unknown-elf-gcc failed with 1: .*broken.c: In function"
    ) as caught:
        build_program(tmp_path / "broken.elf", [source])
    assert f"{source}:1:37: error: 'later' undeclared" in caught.value.output
    assert "[-Wunused" not in caught.value.output  # warnings are those that the user asks for
    with pytest.raises(CompilerError, match="In function"):
        build_program(tmp_path / "broken.elf", [source], flags=["-Dlater=0", "-Wall", "-Werror"])
    build_program(tmp_path / "works.elf", [source], flags=["-Dlater=0", "-Wall"])


@needs_compiler
def test_debug_information_can_be_kept(tmp_path: Path) -> None:
    (elf,) = build(tmp_path, ["hello"])
    sections = subprocess.run(["readelf", "-SW", str(elf)], capture_output=True, text=True, check=True).stdout
    assert ".debug_line" in sections


def test_a_missing_compiler_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError) as caught:
        build(tmp_path)
    assert str(caught.value) == (
        "riscv64-unknown-elf-gcc is not on the PATH: it builds firmware; "
        "apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
    )


def test_a_missing_library_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / GCC
    compiler.write_text("#!/bin/sh\necho picolibc.specs\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ToolchainError) as caught:
        find_compiler()
    assert str(caught.value) == (
        "riscv64-unknown-elf-gcc finds no picolibc.specs: picolibc is missing; "
        "apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
    )


@needs_compiler
def test_unknown_names_and_slots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="nothing: no such program; there are hello, submit_latency, "):
        build(tmp_path, ["nothing"])
    with pytest.raises(ToolchainError, match=r"opcode slot 4: must be 0\.\.3"):
        build(tmp_path, ["hello"], slot=4)


@needs_compiler
def test_a_scratch_folder_that_stays_is_no_error_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is there already: an error would say that the earlier one is."""
    source = tmp_path / "a.s"
    source.write_text(".globl main\nmain: li a0,0\nret\n")
    monkeypatch.setattr(os, "rmdir", deny)
    assert build_program(tmp_path / "a.elf", [source]).exists()


def deny(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
