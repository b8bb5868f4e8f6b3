"""Host: processor and LLVM, on which native code depends in addition to its text. Determined without LLVM where
possible, because cached code needs no LLVM."""

import os
import sys
from importlib.util import find_spec
from typing import NamedTuple

CPUINFO = "/proc/cpuinfo"
_LIBRARY = "llvmlite."
"""Part of the file name of llvmlite's library on every system."""
_LINES = (b"vendor_id", b"cpu family", b"model", b"model name", b"stepping", b"flags")
"""Lines that distinguish processors; other lines, such as the clock frequency, vary over time."""


class Host(NamedTuple):
    """Machine for which LLVM compiles here."""

    about: str
    """Properties of the host on which LLVM's code for a text depends."""
    fused: bool
    """Whether the processor has a fused multiply-add."""


def x86_64_linux() -> bool:
    return sys.platform == "linux" and sys.maxsize >> 32 > 0 and os.uname().machine == "x86_64"


def known_host() -> Host | None:
    """Return this machine; None where only LLVM itself can determine it."""
    spec = find_spec("llvmlite")
    if not x86_64_linux() or spec is None or spec.origin is None:
        return None
    processor = _processor()
    if b"flags" not in processor:
        return None
    llvm = _library_identity(os.path.dirname(spec.origin))
    return Host(repr((llvm, sorted(processor.items()))), b"fma" in processor[b"flags"].split())


def _processor() -> dict[bytes, bytes]:
    """Read the lines of the first processor, by name; the text of all processors may be long."""
    block = b""
    try:
        with open(CPUINFO, "rb", buffering=0) as file:
            while b"\n\n" not in block and (part := file.read(4096)):
                block += part
    except OSError:
        return {}
    lines = (line.partition(b":") for line in block.partition(b"\n\n")[0].split(b"\n"))
    return {name.strip(): value.strip() for name, _, value in lines if name.strip() in _LINES}


def _library_identity(package: str) -> tuple[object, ...]:
    """Return the identity of the installed llvmlite: its version, and size and time of its library."""
    with open(os.path.join(package, "_version.py"), "rb") as file:
        version = file.read()
    with os.scandir(os.path.join(package, "binding")) as files:
        libraries = [(file.name, file.stat()) for file in files if _LIBRARY in file.name]
    return version, *((name, status.st_size, status.st_mtime_ns) for name, status in sorted(libraries))
