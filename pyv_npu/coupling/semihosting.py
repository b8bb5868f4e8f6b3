"""Semihosting from its configuration."""

from pathlib import Path

from pyv_ext.bus.bus import Bus
from pyv_ext.devices.host_files import HostFolder
from pyv_ext.devices.program_exit import ExitCalls
from pyv_ext.devices.semihosting import FreeMemory, Semihosting
from pyv_ext.devices.uart import Console
from pyv_ext.elf import Program
from pyv_ext.hart.hart import Hart
from pyv_native.files import MAX_RESULT, check_input
from pyv_npu.config import Config
from pyv_npu.errors import BadInputError

_ALIGNMENT = 16
"""Alignment of stacks and heaps, bytes."""


def semihosting(
    config: Config, program: Program, hart: Hart, bus: Bus, console: Console, exits: ExitCalls
) -> Semihosting:
    """Return the semihosting handler of a loaded program. BadInputError for a missing folder or input file."""
    options, memory = config.semihosting, bus.rams[0]
    folder = None if options.folder is None else Path(options.folder)
    if folder is not None and not folder.is_dir():
        raise BadInputError(f"semihosting.folder = {options.folder}: there is no such folder; make it, or name another")
    try:
        content = b""
        if options.input is not None:
            check_input(options.input, MAX_RESULT)
            content = Path(options.input).read_bytes()
    except OSError as error:
        raise BadInputError(f"semihosting.input = {options.input}: {error.strerror}; name a file") from None
    program_end = max(
        (end for end in (segment.end for segment in program.segments) if memory.base <= end <= memory.end),
        default=memory.base,
    )
    return Semihosting(
        hart,
        bus,
        console,
        exits,
        folder=HostFolder(folder),
        command_line=options.command_line.encode(),
        console_input=content,
        clock_hz=config.npu.clock_hz,
        start=options.time,
        free=FreeMemory(-(-program_end // _ALIGNMENT) * _ALIGNMENT, memory.end),
    )
