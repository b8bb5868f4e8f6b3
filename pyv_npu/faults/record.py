"""Record of a run with injected faults: their firings, and the driver's recovery notes."""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from npu_device.abi.recovery import RECOVERIES, RECOVERY_WORDS, SYMBOL, Recovery
from pyv_ext.bus.bus import Bus
from pyv_ext.elf import Program
from pyv_ext.hart.hart import Hart
from pyv_npu.coupling.memory_traffic import Outputs
from pyv_npu.faults.injection import Injection
from pyv_npu.faults.plan import Fault
from pyv_npu.faults.triggers import Firing

WORD = 4
_ENTRY = RECOVERY_WORDS[-1].offset + WORD


class InjectedFault(NamedTuple):
    """Fault of the plan with its firings."""

    fault: Fault
    fired: Sequence[Firing]


class RecoveryNote(NamedTuple):
    """Entry of the driver's record. Cycles are mcycle modulo 2^32, which the program may have set."""

    code: int
    since: int
    cycle: int
    detail: int

    @property
    def text(self) -> str:
        """Description for people."""
        return Recovery(self.code).text if self.code in list(Recovery) else f"recovery {self.code}"


class Record(NamedTuple):
    """Record of the faults of a run."""

    injected: Sequence[InjectedFault] = ()
    recovered: Sequence[RecoveryNote] = ()
    """First entries, as many as the driver's record holds."""
    recoveries: int = 0
    """Number of all recoveries."""
    retried: Sequence[tuple[int, int]] = ()
    """Retries of ENQCMD_T after a false answer that the queue is full: (cycle of the answer, cycle of the retry)."""
    exceptions: int = 0
    """Number of synchronous traps."""
    results_sha256: str = ""
    """SHA-256 of all bytes that the NPU has written, with their addresses."""


class Ran(Protocol):
    """A platform at the end of its run."""

    @property
    def bus(self) -> Bus: ...
    @property
    def hart(self) -> Hart: ...
    @property
    def outputs(self) -> Outputs: ...


def record_of(platform: Ran, injection: Injection, program: Program) -> Record:
    """Return the record at the end of a run; recovery notes only of a program with a driver."""
    injected = tuple(InjectedFault(armed_fault.request, tuple(armed_fault.fired)) for armed_fault in injection.armed)
    symbol = program.symbols.get(SYMBOL)
    content = None if symbol is None else platform.bus.peek(symbol.address, WORD + RECOVERIES * _ENTRY)
    words = [0] if content is None else [*(word for (word,) in struct.iter_unpack("<I", content))]
    entries = [RecoveryNote(*words[1 + 4 * index : 5 + 4 * index]) for index in range(min(words[0], RECOVERIES))]
    exceptions = platform.hart.traps - platform.hart.interrupts
    results = platform.outputs.sha256(everywhere=False)
    return Record(injected, tuple(entries), words[0], tuple(injection.retried), exceptions, results)
