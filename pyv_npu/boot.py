"""Programs: where they are found, what they ask of the platform, and what it tells them (docs/interface.md).

A program is a path, or the name of one that ships with the package. It may read files besides itself: weights of an
ONNX model, or of a compiled image.
"""

import struct
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from npu_device.abi import memory_map as mm
from npu_device.abi.registers import ABI_VERSION
from pyv_ext.elf import Program, read_elf
from pyv_ext.errors import PyvExtError
from pyv_ext.isa import EXTENSIONS, Isa
from pyv_npu.config import presets
from pyv_npu.config.tree import Config, CoreConfig
from pyv_npu.errors import BadInputError, UsageError
from toolchain.errors import ToolchainError


def shipped_programs() -> dict[str, Path]:
    """Name -> path of each prebuilt ELF of the package, by name."""
    folder = Path(str(resources.files("firmware"))) / "prebuilt"
    return {path.stem: path for path in sorted(folder.glob("*.elf"))}


def find_program(name: str) -> Path:
    """The file for `name`: an existing path, or a shipped program. BadInputError names both possibilities."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_programs()
    if name in shipped:
        return shipped[name]
    known = ", ".join(shipped) or "none"
    raise BadInputError(f"{name}: neither a file nor a firmware of this package; `pyv-npu info` lists them: {known}")


REBUILD = "rebuild it against this version's npu_abi.h (pyv-npu build-firmware)"


class Argument(NamedTuple):
    """A value the program takes from npu_bootinfo.args."""

    name: str
    slot: int
    default: int


class BesideFile(NamedTuple):
    """A sidecar file of the program, and its address in DRAM."""

    offset: int
    size: int
    name: str


class Requirements(NamedTuple):
    """What `.note.pyvnpu` says; zero means anything will do."""

    slot: int | None
    dram_bytes: int
    spm_bytes: int
    arguments: tuple[Argument, ...]
    files: tuple[BesideFile, ...] = ()


def requirements(program: Program) -> Requirements:
    """Read the notes; BadInputError when the ABI version differs or a note is broken."""
    slot, dram, spm = None, 0, 0
    arguments, files = [], []
    for note in program.notes:
        if note.owner != mm.NOTE_OWNER:
            continue
        try:
            if note.type == mm.NOTE_REQUIREMENTS:
                version, slot, dram, spm = struct.unpack_from("<4I", note.desc)
                if version != ABI_VERSION:
                    raise BadInputError(
                        f"{program.name}: built for NPU ABI version {version}, this is version {ABI_VERSION}: {REBUILD}"
                    )
            elif note.type == mm.NOTE_ARGUMENT:
                index, default = struct.unpack_from("<2I", note.desc)
                name = bytes(note.desc[8:]).split(b"\0")[0].decode("ascii")
                if not name or index >= mm.BOOTINFO_ARGS:
                    raise ValueError
                arguments.append(Argument(name, index, default))
            elif note.type == mm.NOTE_FILE:
                offset, size = struct.unpack_from("<2Q", note.desc)
                files.append(BesideFile(offset, size, bytes(note.desc[16:]).split(b"\0")[0].decode("ascii")))
                dram = max(dram, offset + size)
        except (struct.error, ValueError):
            raise BadInputError(
                f"{program.name}: note of type {note.type} in {mm.NOTE_SECTION} is broken: {REBUILD}"
            ) from None
    ordered = tuple(sorted(arguments, key=lambda argument: argument.slot))
    return Requirements(slot, dram, spm, ordered, tuple(files))


def content(program: Program, file: BesideFile) -> bytes:
    """What a file holds. BadInputError when it is not there, or not the one that the program was made with."""
    path = Path(program.name).with_name(file.name)
    data = program.sidecars.get(file.name)
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadInputError(f"{path}: {error.strerror}; {program.name} needs it in its folder") from None
    if len(data) != file.size:
        raise BadInputError(f"{path}: has {len(data)} bytes, {program.name} needs {file.size}: compile both again")
    return data


def check(program: Program, needs: Requirements, config: Config) -> None:
    """BadInputError when the platform of `config` is not what the program was built for."""
    _check_extensions(program, config.core)
    if needs.slot is not None and config.npu.mode == "tight" and needs.slot != config.core.custom_slot:
        raise BadInputError(
            f"{program.name}: built for opcode slot custom-{needs.slot}, "
            f"the core has custom-{config.core.custom_slot}: --set core.custom_slot={needs.slot}, or {REBUILD}"
        )
    for what, needed, key, given in (
        ("DRAM", needs.dram_bytes, "npu.dram.size", config.npu.dram.size),
        ("scratchpad", needs.spm_bytes, "npu.spm.size", config.npu.spm.size),
    ):
        if needed > given:
            raise BadInputError(
                f"{program.name}: needs {needed} bytes of {what}, there are {given}: --set {key}={needed}"
            )


def _check_extensions(program: Program, core: CoreConfig) -> None:
    """BadInputError when the program says that it has instructions which the core does not know."""
    present = Isa(core.isa).extensions
    named = [name for name in program.extensions[1:] if len(name) == 1 or name in EXTENSIONS]
    missing = [name for name in named if name not in present]
    if not missing:
        return
    wider = ""
    if core.engine != presets.PYV and all(name in EXTENSIONS for name in missing):
        base, _, rest = core.isa.partition("_")
        letters, words = (sorted(name for name in missing if (len(name) == 1) is letter) for letter in (True, False))
        wider = f", or --set core.isa={'_'.join(filter(None, [base + ''.join(letters), rest, *words]))}"
    raise BadInputError(
        f"{program.name}: built with {', '.join(missing)}, core {core.engine} is {core.isa}: "
        f"rebuild it with -march={core.isa}{wider}"
    )


def implied_arguments(config: Config, needs: Requirements) -> dict[str, int]:
    """What the driver has to know of the platform; a program with its own driver may do without `plic`."""
    implied = {}
    if config.driver.tail_write:
        implied["tail_write"] = 1
    if config.platform.irq == "plic" and any(argument.name == "plic" for argument in needs.arguments):
        implied["plic"] = 1
    return implied


def argument_words(program: Program, needs: Requirements, values: Mapping[str, int]) -> list[int]:
    """npu_bootinfo.args: the program's defaults, with `values` by name; UsageError for a name it does not take, or a
    value that is no word."""
    known = {argument.name: argument for argument in needs.arguments}
    words = [0] * mm.BOOTINFO_ARGS
    for argument in needs.arguments:
        words[argument.slot] = argument.default
    for name, value in values.items():
        if name not in known:
            takes = ", ".join(known) or "no arguments"
            raise UsageError(f"--arg {name}={value}: {program.name} does not take {name}; it takes: {takes}")
        if not -(1 << 31) <= value < 1 << 32:
            raise UsageError(f"--arg {name}={value}: an argument is a 32-bit word: must be -2147483648..4294967295")
        words[known[name].slot] = value & 0xFFFF_FFFF
    return words


def bootinfo(config: Config, args: list[int]) -> bytes:
    """The bytes of npu_bootinfo for a run."""
    npu = config.npu
    return mm.pack_bootinfo(
        {
            "magic": mm.BOOTINFO_MAGIC,
            "version": ABI_VERSION,
            "mmio_base": config.platform.mmio_base,
            "spm_base": mm.SPM_BASE,
            "spm_size": npu.spm.size,
            "dram_size": min(npu.dram.size, mm.DRAM_CORE_VISIBLE),
            "queue_size": npu.queue.size,
            "clock_hz": npu.clock_hz,
        },
        args,
    )


def files_beside(program: str) -> list[str]:
    """Their paths. What cannot be read has none, and a run of it says why."""
    path = Path(program)
    try:
        if path.suffix == ".onnx":
            from toolchain.onnx_model.file import external_files

            return [str(file) for file in external_files(path)]
        if path.is_file() and path.suffix != ".json":
            return [str(path.with_name(file.name)) for file in requirements(read_elf(path)).files]
    except (BadInputError, PyvExtError, ToolchainError):
        pass
    return []
