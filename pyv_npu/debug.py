"""GDB server of a platform: registers of the NPU, monitor commands, and reverse execution."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from npu_device.abi.opcodes import TicketState
from npu_device.abi.registers import REGISTERS, TOTALS, TOTALS_OFFSET, Mode
from npu_device.abi.registers import Register as NpuRegister
from npu_device.device import NpuDevice
from npu_device.trace.events import FRONTEND, Kind, unit_index, unit_kind
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.debugger import Debugger
from pyv_ext.gdb.history import TimeMachine
from pyv_ext.gdb.registers import RegisterFeature, RegisterView
from pyv_ext.gdb.rtos import Read, Tasks
from pyv_ext.gdb.session import Monitor, serve
from pyv_native.files import write_bytes
from pyv_npu import ctrl_c
from pyv_npu.config.rtos_file import find_rtos
from pyv_npu.errors import PyvNpuError
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot

FEATURE = "org.pyv-npu.registers"
_COUNTERS = range(TOTALS_OFFSET, TOTALS_OFFSET + 8 * len(TOTALS))
SHOWN = [row for row in REGISTERS if row.mode in (Mode.RO, Mode.RW) and row.offset not in _COUNTERS]
"""Readable registers, without the halves of counters, which `monitor npu regs` shows."""


def debug(
    platform: Platform,
    address: int | str,
    listening: Callable[[str], None],
    rtos: Path | None = None,
    files: Path | None = None,
) -> Stop:
    """Run the program under control of GDB; after GDB detaches, run it to its end.

    `address` and `listening` are those of `serve`; `rtos` describes the tasks of the program, if no shipped description
    fits; `files` is the folder in which `monitor save` writes. PyvExtError when the address is in use; BadInputError
    and UsageError for `rtos`, see `find_rtos`.
    """
    debugger = Debugger(
        platform.engine,
        features=[npu_feature(platform)],
        tasks=tasks_of(platform, rtos),
        time_machine=time_machine(platform),
        limit=platform.config.run.max_cycles or NEVER,
    )

    def interrupt() -> None:
        if not debugger.running:
            raise KeyboardInterrupt
        platform.engine.stop(Stop(StopReason.INTERRUPTED))

    try:
        with ctrl_c.caught(interrupt):
            stop = serve(debugger, address, monitors(platform, files), listening)
    except KeyboardInterrupt:
        stop = Stop(StopReason.INTERRUPTED)
    if stop is None:
        return platform.run()
    platform.events.flush()
    return stop


def tasks_of(platform: Platform, file: Path | None = None) -> Callable[[Read], Tasks | None]:
    """Return a function that reads the program's RTOS tasks, by a description in `file` or a shipped description."""
    program = platform.program
    rtos = None if program is None else find_rtos(program, file)
    if program is None or rtos is None:
        return lambda read: None
    return lambda read: Tasks(rtos, program, read)


def time_machine(platform: Platform) -> TimeMachine:
    """Return snapshots for reverse execution; replays do not repeat the output of the UART."""

    def take(before: Snapshot | None) -> Snapshot:
        try:
            return platform.save(before)
        except PyvNpuError as error:
            raise PyvExtError(str(error)) from None

    @contextmanager
    def replaying() -> Iterator[None]:
        sink, platform.console.sink = platform.console.sink, None
        try:
            yield
        finally:
            platform.console.sink = sink

    return TimeMachine(take, platform.restore, replaying)


# -- registers ---------------------------------------------------------------------------------------------------


def npu_feature(platform: Platform) -> RegisterFeature:
    """Return the NPU's registers, such as `$npu_ctrl`, read-only for GDB."""
    return RegisterFeature(FEATURE, [_register(platform, register) for register in SHOWN], "npu")


def _register(platform: Platform, register: NpuRegister) -> RegisterView:
    return RegisterView(
        f"npu_{register.name.lower()}", lambda: platform.npu.registers.peek(register.offset, platform.cycle)
    )


# -- monitor commands --------------------------------------------------------------------------------------------


def monitors(platform: Platform, files: Path | None = None) -> list[Monitor]:
    """Return the subcommands of the debugger's `monitor`."""
    return [
        Monitor("npu queue", "the ring, and the commands that have not completed", lambda _: queue_text(platform.npu)),
        Monitor("npu regs", "registers and counters of the NPU", lambda _: registers_text(platform)),
        Monitor("npu latency", "submission latency so far", lambda _: latency_text(platform)),
        Monitor("save", "write a snapshot, for `--restore FILE`", lambda name: save(platform, files, name), "FILE"),
    ]


def save(platform: Platform, folder: Path | None, name: str) -> str:
    """Write a snapshot of the machine, only into the folder, as the client may be untrusted."""
    if folder is None:
        raise PyvExtError("no folder for files was given; start the run with --gdb-files DIR")
    file = folder / name
    if file.name != name:
        raise PyvExtError(f"{name}: must be the name of a file in {folder}, without a folder")
    if os.path.lexists(file) and (file.is_symlink() or not file.is_file()):
        raise PyvExtError(f"{file}: is no file that can be replaced; choose another name")
    try:
        write_bytes(file, platform.save().to_bytes())
    except PyvNpuError as error:
        raise PyvExtError(str(error)) from None
    except OSError as error:
        raise PyvExtError(f"{file}: {error.strerror}; name a file that can be written") from None
    return f"cycle {platform.cycle} is saved in {file}"


def queue_text(npu: NpuDevice) -> str:
    """Return a line for the ring, then a line for each command in flight."""
    ring = npu.ring
    lines = [f"ring at {ring.base:#x}: {ring.occupied} of {ring.size} entries, head {ring.head}, tail {ring.tail}"]
    commands = npu.in_flight
    waiting = sum(1 for _, state in commands if state is TicketState.QUEUED)
    lines.append(f"device: {len(commands)} commands in flight, {waiting} not started")
    for command, state in commands:
        entry = npu.entry(command)
        unit = "" if entry.unit == FRONTEND else f" on {Kind(unit_kind(entry.unit)).name}{unit_index(entry.unit)}"
        waits = f", hazards: {entry.hazards}" if entry.hazards else ""
        waits += f", barriers: {entry.barriers_pending}" if entry.barriers_pending else ""
        lines.append(
            f"  ticket {command.ticket}: {command.opcode.name} stream {command.stream} prio {command.prio} "
            f"{state.name.lower()}{unit}{waits}"
        )
    return "\n".join(lines)


def registers_text(platform: Platform) -> str:
    """Return the text of all registers with their fields, and of the counters."""
    peek = platform.npu.registers.peek
    lines = []
    for register in SHOWN:
        value = peek(register.offset, platform.cycle)
        fields = " ".join(f"{bits.name}={value >> bits.low & (1 << bits.width) - 1}" for bits in register.fields)
        lines.append(f"{register.name:14} {value:#010x}  {fields}".rstrip())
    for index, counter in enumerate(TOTALS):
        low, high = (peek(TOTALS_OFFSET + 8 * index + half, platform.cycle) for half in (0, 4))
        lines.append(f"{counter.name:20} {high << 32 | low}")
    return "\n".join(lines)


def latency_text(platform: Platform) -> str:
    """Return the latency stages so far, in core cycles, from a copy, as the run continues."""
    probe = platform.latency
    if probe is None:
        return "no program is loaded"
    from npu_device.trace.records import batch_of  # imports NumPy, which a debugger needs only here

    latency = probe.latency_at(batch_of(platform.events.mark().pending))
    if latency.to_json() is None:
        return "nothing was submitted yet"
    lost = f", {latency.lost} never accepted" if latency.lost else ""
    return f"{latency.text()}\n{latency.rejected} rejected, {latency.errors} with errors{lost}"
