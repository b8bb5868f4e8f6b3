"""Programs: their files, their requirements of the platform, and their boot information (docs/interface.md).

A program is a path, or the name of a shipped program. It may have sidecar files: weights of an ONNX model, or of a
compiled image.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from firmware import FOLDER
from npu_device.abi import ABI_VERSION
from npu_device.abi import memory_map as mm
from pyv_ext.elf import Program, read_elf
from pyv_ext.errors import PyvExtError
from pyv_ext.isa import EXTENSIONS, Isa
from pyv_ext.isa.instruction_set import complete, extensions_of, xlen_of
from pyv_native.files import MANIFEST, MANIFEST_FORMAT, MAX_DATA, check_input, write_bytes
from pyv_npu.config import presets
from pyv_npu.config.package_data import data_files
from pyv_npu.config.serial import KEY, parse
from pyv_npu.config.tree import Config, CoreConfig
from pyv_npu.errors import BadInputError, UsageError, did_you_mean
from toolchain.errors import ToolchainError

if TYPE_CHECKING:
    from pathlib import Path

MODEL_SUFFIXES = (".onnx", ".mlir")
"""Suffixes of model files, which commands treat alike."""


def shipped_programs() -> dict[str, str]:
    """Return the prebuilt ELFs of the package: name -> path."""
    return data_files(os.path.join(FOLDER, "prebuilt"), ".elf")


def serial_input(text: str) -> bytes:
    """Return the initial input of a UART from its line of `platform.serial`: the content of a file, or empty.
    BadInputError for a file that cannot be read."""
    line = parse(text)
    if line.kind != "file":
        return b""
    try:
        check_input(line.argument, MAX_DATA)
        with open(line.argument, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadInputError(f"{KEY} = {text}: {error.strerror}; name a file") from None


def find_program(name: str) -> str:
    """Return the file of `name`: an existing path, a shipped program, or an example model. BadInputError names
    alternatives."""
    if os.path.lexists(name) and not os.path.isdir(name):
        try:
            check_input(name, MAX_DATA)
        except OSError as error:
            raise BadInputError(f"{name}: {error.strerror}; give a program or a model") from None
        check_manifest(name)
        return name
    shipped = shipped_programs()
    if name in shipped:
        return shipped[name]
    if is_example(name):
        return str(model_file(name))
    from pathlib import Path

    from toolchain.decoders.shapes import MODELS
    from toolchain.examples import DECODERS, EXAMPLES

    path = Path(name)
    siblings = [str(entry) for entry in path.parent.glob(f"*{path.suffix}") if entry.is_file()] if path.suffix else []
    hint = (
        did_you_mean(name, [*shipped, *MODELS, *EXAMPLES, *DECODERS, *siblings])
        or "; `pyv-npu info` lists what ships with the package"
    )
    raise BadInputError(f"{name}: neither a file, nor firmware or a model of this package{hint}")


def check_manifest(name: str) -> None:
    """Raise BadInputError if a program's content differs from the manifest in its folder."""
    try:
        with open(os.path.join(os.path.dirname(name), MANIFEST), "rb") as file:
            if MANIFEST_FORMAT.encode() not in file.read(64):
                return
    except FileNotFoundError:
        return
    from pathlib import Path

    from pyv_npu import manifest  # few programs have a manifest

    manifest.check(Path(name))


def program_data(name: str) -> bytes:
    """Return the content of a shipped program."""
    with open(find_program(name), "rb") as file:
        return file.read()


def is_example(name: str) -> bool:
    """Check whether a name is that of an example model, and not of a file or a shipped program."""
    if not name.isidentifier() or os.path.isfile(name) or name in shipped_programs():
        return False
    from toolchain.examples import DECODERS, EXAMPLES

    return name in EXAMPLES or name in DECODERS


_EXAMPLES = "models"
"""Folder of example models in the cache."""


def model_name(path: "Path") -> str:
    """Return the name of a model for messages: its path, or the name of an example model."""
    from pyv_native.code_cache import code_cache

    cache = code_cache()
    cached = cache is not None and path.parent.parent == cache.folder / _EXAMPLES
    return path.stem if cached else str(path)


def model_file(program: str) -> "Path":
    """Return the file of a model: the path itself, or an example model by its name, which is built on first use.

    BadInputError when an example model has no cache to be built in.
    """
    from pathlib import Path  # here and below: not needed for firmware

    if not is_example(program):
        return Path(program)
    from hashlib import sha256
    from importlib import metadata

    import toolchain.examples as examples
    from pyv_native.code_cache import VARIABLE, code_cache

    cache = code_cache()
    if cache is None or (reason := cache.write_refusal()):
        detail = f": {reason}" if cache is not None else ""
        raise BadInputError(
            f"{program}: there is no cache to make example models in{detail}; set {VARIABLE} to a folder"
        )
    digest = sha256(metadata.version("onnx").encode())
    for source in sorted(Path(str(examples.__file__)).parent.glob("*.py")):
        digest.update(source.read_bytes())
    path = cache.folder / _EXAMPLES / digest.hexdigest()[:16] / f"{program}.onnx"
    if not path.is_file():
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        data = (examples.EXAMPLES | examples.DECODERS)[program]().SerializeToString()
        write_bytes(path, data)
    return path


REBUILD = "rebuild it against this version's npu_abi.h (pyv-npu build-firmware)"


class Argument(NamedTuple):
    """Argument that the program reads from npu_bootinfo.args."""

    name: str
    slot: int
    default: int
    values: range = range(-(1 << 31), 1 << 32)
    """Legal values; by default every 32-bit word, signed or unsigned."""


class BesideFile(NamedTuple):
    """Sidecar file of the program, with its offset in DRAM."""

    offset: int
    size: int
    sha256: str
    name: str


class Requirements(NamedTuple):
    """Requirements of a program, from its note `.note.pyvnpu`; zero means no requirement."""

    slot: int | None
    dram_bytes: int
    spm_bytes: int
    arguments: tuple[Argument, ...]
    files: tuple[BesideFile, ...] = ()
    noise: tuple[str, ...] = ()
    """Output texts whose numbers (`#`) are no results."""


def requirements(program: Program) -> Requirements:
    """Read the notes of a program; BadInputError when the ABI version differs or a note is broken."""
    slot, dram, spm = None, 0, 0
    arguments, files, noise, ranges = [], [], [], dict[str, range]()
    for note in program.notes:
        if note.owner != mm.NOTE_OWNER:
            continue
        try:
            if note.type == mm.NOTE_REQUIREMENTS:
                version, slot, dram, spm = struct.unpack_from("<2I2Q" if program.xlen > 32 else "<4I", note.desc)
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
            elif note.type == mm.NOTE_RANGE:
                low, high = struct.unpack_from("<2I", note.desc)
                ranges[bytes(note.desc[8:]).split(b"\0")[0].decode("ascii")] = range(low, high + 1)
            elif note.type == mm.NOTE_FILE:
                offset, size = struct.unpack_from("<2Q", note.desc)
                digest = bytes(note.desc[16:48])
                name = bytes(note.desc[48:]).split(b"\0")[0].decode("ascii")
                if not name or name in (".", "..") or "/" in name:
                    raise ValueError
                files.append(BesideFile(offset, size, digest.hex(), name))
                dram = max(dram, offset + size)
            elif note.type == mm.NOTE_NOISE:
                noise.append(bytes(note.desc).split(b"\0")[0].decode("ascii"))
        except (struct.error, ValueError):
            raise BadInputError(
                f"{program.name}: note of type {note.type} in {mm.NOTE_SECTION} is broken: {REBUILD}"
            ) from None
    arguments = [argument._replace(values=ranges.get(argument.name, argument.values)) for argument in arguments]
    ordered = tuple(sorted(arguments, key=lambda argument: argument.slot))
    return Requirements(slot, dram, spm, ordered, tuple(files), tuple(noise))


def content(program: Program, file: BesideFile) -> bytes:
    """Return the content of a sidecar file. BadInputError for a file that is missing or belongs to another image."""
    path = os.path.join(os.path.dirname(program.name), file.name)
    if file.name in program.sidecars:
        return program.sidecars[file.name]
    try:
        check_input(path, file.size)
        with open(path, "rb") as stream:
            data = stream.read(file.size)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}; {program.name} needs it in its folder") from None
    if len(data) != file.size:
        raise BadInputError(f"{path}: has {len(data)} bytes, {program.name} needs {file.size}: compile both again")
    from hashlib import sha256

    if sha256(data).hexdigest() != file.sha256:
        raise BadInputError(f"{path}: belongs to another image than {program.name}: compile both again")
    return data


def check(program: Program, needs: Requirements, config: Config) -> None:
    """Raise BadInputError when the platform of `config` does not meet the requirements of the program."""
    _check_extensions(program, config.core)
    if needs.slot is not None and config.npu.mode == "tight" and needs.slot != config.core.custom_slot:
        raise BadInputError(
            f"{program.name}: built for opcode slot custom-{needs.slot}, "
            f"the core has custom-{config.core.custom_slot}: --set core.custom_slot={needs.slot}, or {REBUILD}"
        )
    for memory, size, key, available in (
        ("DRAM", needs.dram_bytes, "npu.dram.size", config.npu.dram.size),
        ("scratchpad", needs.spm_bytes, "npu.spm.size", config.npu.spm.size),
    ):
        if size > available:
            raise BadInputError(
                f"{program.name}: needs {size} bytes of {memory}, there are {available}: --set {key}={size}"
            )


def _check_extensions(program: Program, core: CoreConfig) -> None:
    """Raise BadInputError when the program contains instructions of extensions that the core lacks."""
    xlen, present = xlen_of(core.isa), extensions_of(core.isa)
    if program.xlen != xlen:
        raise BadInputError(
            f"{program.name}: built for rv{program.xlen}, core.isa is {core.isa}: rebuild it for that, or set "
            f"core.isa to an instruction set of rv{program.xlen}"
        )
    single_names = [name for name in program.extensions[1:] if len(name) == 1 or name in EXTENSIONS]
    missing = [name for name in single_names if name not in present]
    if not missing or core.missing_extensions == "trap":
        return
    missing = sorted(extensions_used(program) & set(missing), key=missing.index)
    if not missing:
        return
    remedy = f"rebuild it with -march={core.isa}"
    if core.engine != presets.PYV and all(name in EXTENSIONS for name in missing):
        base, _, rest = core.isa.partition("_")
        letters, words = (sorted(name for name in missing if (len(name) == 1) is letter) for letter in (True, False))
        remedy += f", or --set core.isa={'_'.join(filter(None, [base + ''.join(letters), rest, *words]))}"
    raise BadInputError(
        f"{program.name}: has instructions of {', '.join(missing)}, core {core.engine} is {core.isa}: {remedy}, or let "
        "them trap: --set core.missing_extensions=trap"
    )


def extensions_used(program: Program) -> set[str]:
    """Return the extensions of the known instructions in a program's code; data in the code may decode as such."""
    complete_isa = Isa(complete(program.xlen))
    of_row = {row.name: name for name, rows in EXTENSIONS.items() for row in rows}
    extensions: set[str] = set()
    for word in set(_words(program)):
        instruction = complete_isa.decode(word)
        if instruction is not None:
            extensions.add(of_row.get(instruction.name, "i"))
    return extensions


def _words(program: Program) -> Iterator[int]:
    """Yield the instruction words of a program's code in order, 16 bits for a compressed instruction."""
    for address, size in program.code:
        for segment in program.segments:
            data = segment.data[max(address - segment.address, 0) : max(address + size - segment.address, 0)]
            at = 0
            while at + 1 < len(data):
                length = 4 if data[at] & 3 == 3 else 2
                yield int.from_bytes(data[at : at + length], "little")
                at += length


def implied_arguments(config: Config, needs: Requirements, *, values: bool = True) -> dict[str, int]:
    """Return arguments that describe the platform to the driver; a program with its own driver takes few of them.
    `values`: whether the NPU computes results."""
    implied = {}
    takes = {argument.name for argument in needs.arguments}
    if config.driver.tail_write:
        implied["tail_write"] = 1
    if config.platform.irq == "plic" and "plic" in takes:
        implied["plic"] = 1
    if not values and "values" in takes:
        implied["values"] = 0
    if config.driver.timeout and "timeout" in takes:
        implied["timeout"] = config.driver.timeout
    return implied


def argument_words(program: Program, needs: Requirements, values: Mapping[str, int]) -> list[int]:
    """Return the words of npu_bootinfo.args: the program's defaults, updated by `values`. UsageError for an unknown
    name or an illegal value."""
    arguments_by_name = {argument.name: argument for argument in needs.arguments}
    words = [0] * mm.BOOTINFO_ARGS
    for argument in needs.arguments:
        words[argument.slot] = argument.default
    for name, value in values.items():
        if name not in arguments_by_name:
            takes = ", ".join(arguments_by_name) or "no arguments"
            raise UsageError(f"--arg {name}={value}: {program.name} does not take {name}; it takes: {takes}")
        if value not in (legal := arguments_by_name[name].values):
            raise UsageError(f"--arg {name}={value}: {program.name} takes {name} of {legal.start}..{legal.stop - 1}")
        words[arguments_by_name[name].slot] = value & 0xFFFF_FFFF
    return words


def bootinfo(config: Config, args: list[int]) -> bytes:
    """Return the bytes of npu_bootinfo for a run."""
    npu = config.npu
    return mm.pack_bootinfo(
        {
            "magic": mm.BOOTINFO_MAGIC,
            "version": ABI_VERSION,
            "mmio_base": config.platform.mmio_base,
            "spm_base": mm.SPM_BASE,
            "spm_size": npu.spm.size,
            "dram_size": min(npu.dram.size, mm.DRAM_CORE_VISIBLE),
            "queue_size": npu.queue_limit,
            "clock_hz": npu.clock_hz,
        },
        args,
    )


def files_beside(program: str) -> list[str]:
    """Return the paths of a program's sidecar files; [] for a program that cannot be read, whose run reports it."""
    from pathlib import Path

    path = Path(program)
    try:
        if path.suffix == ".onnx":
            from toolchain.onnx_model.file import external_files

            return [str(file) for file in external_files(path)]
        if path.is_file() and path.suffix not in (".json", *MODEL_SUFFIXES):
            check_input(path, MAX_DATA)
            return [str(path.with_name(file.name)) for file in requirements(read_elf(path)).files]
    except (BadInputError, PyvExtError, ToolchainError, OSError):
        pass
    return []
