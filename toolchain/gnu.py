"""Firmware builds with riscv64-unknown-elf-gcc and picolibc, as packaged by Debian (docs/firmware.md).

`APPLICATIONS` lists the programs of this package and their sources.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from firmware import FOLDER
from npu_device.abi.instructions import CUSTOM_OPCODES, DEFAULT_SLOT
from pyv_native.code_cache import code_cache
from pyv_native.files import draft_of, write_text
from toolchain.errors import CompilerError, ToolchainError

LOOSE, TIGHT = "loose", "tight"
BOTH_MODES = (LOOSE, TIGHT)


class Application(NamedTuple):
    """Firmware program. Paths are relative to the firmware folder."""

    name: str
    text: str
    modes: tuple[str, ...] = BOTH_MODES
    """Submission modes that the program supports."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (f"apps/{self.name}.c",)


APPLICATIONS = (
    Application("hello", "prints what platform and NPU it finds itself on"),
    Application("submit_latency", "submits the same tile commands in bursts, paced, with interrupts, prebuilt"),
    Application("run_model", "submits the commands of a compiled model; `pyv-npu compile` makes its image"),
    Application("generate", "generates tokens with a compiled decoder; `pyv-npu run DECODER.onnx --generate N`"),
    Application("generate_kernels", "the same for a decoder of which some layers are kernels on the core"),
    Application("submit_load", "a queue under load: open and closed loop, streams, priorities, policies, back-off"),
    Application("gemm", "256x256x256 int8 in tiles through the scratchpad, checked by the core"),
    Application("irq_completion", "counts completions in the interrupt handler"),
    Application("serve", "the scheduler of an LLM server; `pyv-npu serve MODEL --scheduler firmware`"),
    Application("fault_illegal", "words of the custom opcode that do not exist trap; execution continues"),
    Application("fault_queue_full", "fills the queue under each policy; every ticket is accounted for"),
    Application("fault_descriptor", "each validation error ends in an error ticket; the queue goes on"),
    Application("fault_timeout", "waits that give up, unknown tickets, waits that are interrupted"),
    Application("fault_access", "wrong width, unknown offset, misaligned, unmapped: exact traps"),
    Application("fault_doorbell", "doorbells beyond the ring are ignored and reported"),
)

RUNTIME_SOURCES = (
    "lib/crt0.S",
    "lib/trap_entry.S",
    "lib/boot.c",
    "lib/console.c",
    "lib/c_library.c",
    "lib/trap.c",
    "lib/expect.c",
    "lib/npu_driver.c",
    "lib/npu_irq.c",
    "lib/npu_submit.c",
    "lib/npu_watch.c",
    "lib/kernels.c",
    "lib/busy.c",
)
"""Sources linked into every program."""

LINKER_SCRIPT = "lib/link.ld"
HEADERS = "include"


def application(name: str) -> Application:
    """Return the program of that name. ToolchainError: there is none."""
    names = [row.name for row in APPLICATIONS]
    if name not in names:
        raise ToolchainError(f"{name}: no such program; there are {', '.join(names)}")
    return APPLICATIONS[names.index(name)]


COMPILER = "riscv64-unknown-elf-gcc"
PACKAGES = "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
"""Debian packages of compiler and C library."""

SPECS = "picolibc.specs"
LIBRARY_FLAGS = (f"--specs={SPECS}",)
MARCH = "rv32im"
_MARCH = re.compile(r"rv(32|64)i[a-z]*(_[a-z][a-z0-9]*)*")
_ABI = {"rv32": "ilp32", "rv64": "lp64"}
"""Prefix of an instruction set -> ABI; a letter for floating point is appended."""
_MODEL = "-mcmodel=medany"
"""PC-relative code model: RAM addresses exceed the signed 32-bit range."""
_SYSTEM = ("zicsr", "zifencei")
"""Extensions required by the start-up code."""
COMPILE_FLAGS = (
    "-std=c99", "-O2", "-ffreestanding", *LIBRARY_FLAGS,
    "-Wall", "-Wextra", "-Werror", "-fno-common", "-ffunction-sections", "-fdata-sections",
)  # fmt: skip
"""Compiler flags for sources of this package."""
OWN_FLAGS = ("-O2", "-ffreestanding", *LIBRARY_FLAGS, "-ffunction-sections", "-fdata-sections")
"""Compiler flags for a user's sources, before the user's own flags."""
LINK_FLAGS = (
    *LIBRARY_FLAGS, "-nostartfiles", "-static", f"-T{LINKER_SCRIPT}",
    "-Wl,--gc-sections,--nmagic,--fatal-warnings",
)  # fmt: skip

CPLUSPLUS = (".cc", ".cpp", ".cxx")
CPLUSPLUS_FLAGS = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")
"""Flags for C++: Debian ships no C++ library for this target, and a hart has one thread."""


class Architecture(NamedTuple):
    """Compiler options for the instruction set of a program."""

    compile: tuple[str, ...]
    runtime: tuple[str, ...]
    """Options for sources of the package, without Zbs: with it, gcc 12 fails with an internal error on the constant
    2048 in the driver."""
    link: tuple[str, ...]
    """Options for linking, without extension suffixes: with them, gcc 12 selects the wrong multilib."""

    @classmethod
    def of(cls, march: str) -> "Architecture":
        """Return the architecture of a string like `rv32imac_zba`. ToolchainError: any other string."""
        if not _MARCH.fullmatch(march):
            raise ToolchainError(
                f"--march {march}: must begin with rv32i or rv64i, for example rv32imac, rv64imac or {MARCH}"
            )
        base, *extensions = march.split("_")
        missing = [name for name in _SYSTEM if name not in extensions]
        abi = f"-mabi={_ABI[base[:4]]}" + ("d" if "d" in base[4:] else "f" if "f" in base[4:] else "")
        model = (_MODEL,) if base.startswith("rv64") else ()
        user, runtime = (
            "_".join([base, *(name for name in extensions if name != without), *missing]) for without in ("", "zbs")
        )
        return cls(*((f"-march={march}", abi, *model) for march in (user, runtime, base)))


def compile_flags(march: str = MARCH, slot: int = DEFAULT_SLOT) -> list[str]:
    """Return the `riscv64-unknown-elf-gcc` flags for compiling a source for this runtime in another build system.
    ToolchainError: invalid instruction set or slot."""
    folder = firmware_folder()
    options = _options(folder, slot, True, portable=False)
    return [*Architecture.of(march).compile, *OWN_FLAGS, *options, f"-I{folder / HEADERS}"]


def link_flags(march: str = MARCH) -> list[str]:
    """Return the flags for linking; every program needs the objects of `runtime_sources`."""
    script = f"-T{LINKER_SCRIPT}"
    flags = [f"-T{link_script()}" if flag == script else flag for flag in LINK_FLAGS]
    return [*Architecture.of(march).link, *flags]


def link_script() -> Path:
    return firmware_folder() / LINKER_SCRIPT


def runtime_sources() -> list[Path]:
    """Return the sources of start-up code and driver."""
    return [firmware_folder() / source for source in RUNTIME_SOURCES]


ISA = Architecture.of(MARCH)
"""Options for the programs of this package."""

DEBUG_FLAGS = ("-g",)
LINE_FLAGS = ("-g1", "-gno-column-info")

MANIFEST = "manifest.json"


class CrossCompiler(NamedTuple):
    """Installed compiler."""

    path: str
    version: str
    """Version string, including that of the package: equal versions give equal bytes."""
    library: str
    """Identity of the picolibc in use: path, size and time of its specs."""


def find_compiler() -> CrossCompiler:
    """Return the cross compiler. ToolchainError explains how to install it."""
    path = find_tool(COMPILER, PACKAGES, "it builds firmware")
    specs = Path(run_tool([path, f"-print-file-name={SPECS}"]).decode().strip())
    if specs == Path(SPECS):
        raise ToolchainError(f"{COMPILER} finds no {SPECS}: picolibc is missing; apt-get install {PACKAGES}")
    lines = [run_tool([path, option]).decode().splitlines()[0] for option in ("--version", "-Wl,--version")]
    about = specs.stat()
    return CrossCompiler(path, "; ".join(lines), f"{specs} {about.st_size} {about.st_mtime_ns}")


def firmware_folder() -> Path:
    """Return the folder of firmware sources and prebuilt programs."""
    return Path(FOLDER)


def build(
    out: Path,
    names: Iterable[str] | None = None,
    *,
    slot: int = DEFAULT_SLOT,
    debug: bool = True,
) -> list[Path]:
    """Compile the named programs of the package (default: all) into `out`/NAME.elf, with a manifest, and return the
    paths.

    `slot` is the opcode slot of the custom instructions. `debug` includes full debug information, else only source
    lines. Equal compilers give equal bytes on any machine. Raises ToolchainError: no compiler, unknown name, or a
    compiler diagnostic.
    """
    rows = APPLICATIONS if names is None else [application(name) for name in dict.fromkeys(names)]
    compiler, folder = find_compiler(), firmware_folder()
    out.mkdir(parents=True, exist_ok=True)
    elfs = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # the program exists by then
        job = _Job(compiler, folder, Path(scratch), _options(folder, slot, debug), ISA)
        runtime = job.compile(RUNTIME_SOURCES)
        for row in rows:
            elfs.append(out / f"{row.name}.elf")
            job.link([*runtime, *job.compile(row.sources)], elfs[-1])
    text = json.dumps(manifest(compiler, folder, elfs), indent=2) + "\n"
    write_text(out / MANIFEST, text)
    return elfs


def build_program(
    out: Path,
    sources: Iterable[Path],
    *,
    march: str = MARCH,
    flags: Sequence[str] = (),
    slot: int = DEFAULT_SLOT,
    debug: bool = True,
    objects: Iterable[Path] = (),
) -> Path:
    """Compile a user's C, C++ or assembly program with start-up code and driver of this package into `out`; `objects`
    are linked too. Debug information refers to the driver sources of this installation.

    `flags` are passed to the compiler for each source, for example `-DN=4` or `-Wall`; paths in them are relative to
    the working directory. Raises ToolchainError as `build` does.
    """
    compiler, folder = find_compiler(), firmware_folder()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # the program exists by then
        options = _options(folder, slot, debug, portable=False)
        job = _Job(compiler, folder, Path(scratch), options, Architecture.of(march))
        user_objects = [job.compile_own(source, flags) for source in sources]
        job.link([*job.compile(RUNTIME_SOURCES), *user_objects, *(path.resolve() for path in objects)], out)
    return out


class _Job(NamedTuple):
    """One build. Sources of the package are named relative to `folder`, so the output contains no local path."""

    compiler: CrossCompiler
    folder: Path
    scratch: Path
    options: Sequence[str]
    architecture: Architecture

    def compile(self, sources: Iterable[str]) -> list[Path]:
        """Compile sources of the package. Objects are cached with native code."""
        cache, hashes = code_cache(), source_hashes(self.folder)
        flags = [*self.architecture.runtime, *COMPILE_FLAGS, *self.options, f"-I{HEADERS}"]
        objects = []
        for source in sources:
            objects.append(self.scratch / (source.replace("/", "_") + ".o"))
            inputs = repr((self.compiler, source, flags, str(self.folder), hashes))
            key = hashlib.sha256(inputs.encode()).digest()
            cached = None if cache is None else cache.get(key)
            if cached is not None:
                objects[-1].write_bytes(cached)
                continue
            run_tool([self.compiler.path, *flags, "-c", source, "-o", str(objects[-1])], self.folder)
            if cache is not None:
                cache.put(key, objects[-1].read_bytes())
        return objects

    def compile_own(self, source: Path, flags: Sequence[str]) -> Path:
        """Compile a user's source, under the name the user gave."""
        output = self.scratch / f"own_{len(list(self.scratch.iterdir()))}.o"
        language = CPLUSPLUS_FLAGS if source.suffix in CPLUSPLUS else ()
        options = [*self.architecture.compile, *OWN_FLAGS, *language, *self.options]
        options += [*flags, f"-I{self.folder / HEADERS}"]
        run_tool([self.compiler.path, *options, "-c", str(source), "-o", str(output)])
        return output

    def link(self, objects: Iterable[Path], out: Path) -> None:
        flags = [*self.architecture.link, *LINK_FLAGS]
        with draft_of(out.resolve()) as draft:
            run_tool([self.compiler.path, *flags, *map(str, objects), "-o", draft], self.folder)


def _options(folder: Path, slot: int, debug: bool, *, portable: bool = True) -> list[str]:
    """Return the flags of every source; `portable`: source names omit the path of this installation, so a debugger
    cannot locate the driver sources."""
    if not 0 <= slot < len(CUSTOM_OPCODES):
        raise ToolchainError(f"opcode slot {slot}: must be 0..{len(CUSTOM_OPCODES) - 1}")
    paths = [f"-f{kind}-prefix-map={folder}=firmware" for kind in ("file", "debug")]  # gcc passes only debug on to as
    return [f"-DNPU_CUSTOM_SLOT={slot}", *(paths if portable else ()), *(DEBUG_FLAGS if debug else LINE_FLAGS)]


def manifest(compiler: CrossCompiler, folder: Path, elfs: Sequence[Path]) -> dict[str, Any]:
    """Return the manifest of the programs: compiler, flags, hashes of sources and programs."""
    return {
        "compiler": compiler.version,
        "compile_flags": [*ISA.compile, *COMPILE_FLAGS],
        "link_flags": [*ISA.link, *LINK_FLAGS],
        "sources": source_hashes(folder),
        "programs": {elf.stem: {"sha256": _sha256(elf), "bytes": elf.stat().st_size} for elf in elfs},
    }


def source_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every source file of the programs, by path relative to `folder`."""
    kinds = (".c", ".h", ".S", ".ld")
    folders = (HEADERS, "lib", "apps")
    paths = sorted(path for name in folders for path in (folder / name).rglob("*") if path.suffix in kinds)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in paths}


def find_tool(name: str, packages: str, purpose: str) -> str:
    """Return the path of a tool. ToolchainError names its Debian packages."""
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(f"{name} is not on the PATH: {purpose}; apt-get install {packages}")
    return path


def run_tool(command: Sequence[str], folder: Path | None = None, data: bytes = b"") -> bytes:
    """Run a tool on `data` and return its output. CompilerError: a nonzero exit code, with the tool's own message."""
    done = subprocess.run(command, cwd=folder, input=data, capture_output=True, check=False)
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise CompilerError(f"{Path(command[0]).name} failed with {done.returncode}", text)
    return done.stdout


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
