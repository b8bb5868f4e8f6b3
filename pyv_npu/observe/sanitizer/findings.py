"""Sanitizer findings: rule, both accesses with source lines, memory range, and remedy (docs/reliability.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from pyv_ext.elf import Program

MAX_FINDINGS = 1000
"""Maximum number of distinct findings; further ones are only counted."""


class SanitizerRule(Enum):
    """Rule: key, description of the violation, and remedy."""

    UNORDERED_DOORBELL = (
        "unordered-doorbell", "doorbell without the fence that orders it: the store may still be on its way",
        "put `fence w, o` between the stores to memory and the store to DOORBELL",
    )  # fmt: skip
    UNOBSERVED_RESULT = (
        "unobserved-result", "result read before its completion was observed",
        "wait for the ticket first: TWAIT, TICKET_STATUS, COMPLETED, or the status word that was asked for",
    )  # fmt: skip
    OVERWRITTEN = (
        "overwritten-in-flight", "memory of a command overwritten while it belongs to the device",
        "wait for the ticket before the store, or give the command a buffer of its own",
    )  # fmt: skip
    SLOT_REUSED = (
        "ring-slot-reused", "ring slot reused while its descriptor belongs to the device",
        "read QUEUE_HEAD and wait until it has passed the slot; with write-back wait for the ticket",
    )  # fmt: skip

    STALE = (
        "stale-line", "memory loaded of which the L2 has newer bytes",
        "clean or flush the lines first: cbo.clean, cbo.flush, CTRL.FLUSH_L2; or l2.coherence: io_coherent",
    )  # fmt: skip
    STALE_COPY = (
        "stale-line", "old bytes read from the L2, past which the core has stored newer ones",
        "flush the lines first: cbo.flush, CTRL.FLUSH_L2 (cbo.clean leaves them there); or l2.coherence: io_coherent",
    )  # fmt: skip
    OLD_DESCRIPTOR = (
        "old-descriptor", "doorbell that hands over a slot into which nothing was stored since its last lap",
        "store the descriptor before the doorbell that counts it; DOORBELL takes the count of all descriptors so far",
    )  # fmt: skip
    UNORDERED_WRITE = (
        "unordered-write", "memory written by two commands in different streams, and nothing orders them",
        "one stream for both, a barrier between them, or wait for the first",
    )  # fmt: skip
    NO_STATUS = (
        "status-not-written-back", "status word polled that the device never writes",
        "set flags.write_status (bit 21) of the descriptor, or poll TICKET_STATUS",
    )  # fmt: skip
    TICKET_REUSED = (
        "ticket-reused", "ticket of a command in flight given to another one",
        "count tickets up, as the driver does, or wait for the older one first",
    )  # fmt: skip
    UNREAD_INTERRUPT = (
        "interrupt-lost", "interrupt acknowledged, and its completions not looked at afterwards",
        "acknowledge first, read IRQ_STATUS back, then look at the tickets, then mret",
    )  # fmt: skip
    FREED = (
        "freed-in-flight", "stack frame given back while a command in flight uses memory in it",
        "wait for the ticket before the function returns, or make the buffer static",
    )  # fmt: skip
    OUTSIDE = (
        "outside-symbol", "output that begins in a variable and ends beyond it",
        "make the variable as large as the output, or the tile smaller",
    )  # fmt: skip
    UNWRITTEN = (
        "uninitialised-read", "read of memory that nothing has written",
        "store to it first, or put it into .data or .bss, which the start-up code fills",
    )  # fmt: skip

    def __init__(self, key: str, text: str, remedy: str) -> None:
        self.key = key
        self.text = text
        self.remedy = remedy


RA = 1
"""Number of the register that holds the return address after a call."""


class AccessSide(NamedTuple):
    """One of the two accesses of a finding."""

    access: str
    """Name for messages: `store`, `doorbell`, `load`, `ENQCMD_T`."""
    cycle: int
    """Cycle at whose start the access began."""
    pc: int | None = None
    """Address of the instruction; None for an access of the device."""
    ticket: int | None = None
    back: int | None = None
    """Value of `ra` at the access; if it is in another function, that function is the caller."""


@dataclass
class Finding:
    """Violation of a rule by a pair of accesses."""

    rule: SanitizerRule
    first: AccessSide
    second: AccessSide
    address: int
    size: int
    note: str = ""
    count: int = 1
    """Number of occurrences; `first` and `second` are the accesses of the first occurrence."""


@dataclass(frozen=True)
class Findings:
    """Findings of a run of a program."""

    program: Program
    findings: Sequence[Finding]
    dropped: int = 0
    """Number of findings beyond `MAX_FINDINGS`."""

    def __bool__(self) -> bool:
        return bool(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the object `sanitizer` of the JSON result (docs/results.md)."""
        return {
            "findings": [
                {
                    "rule": finding.rule.key,
                    "text": finding.rule.text,
                    "count": finding.count,
                    "first": self._side_json(finding.first),
                    "second": self._side_json(finding.second),
                    "address": finding.address,
                    "bytes": finding.size,
                    "symbol": symbol_at(self.program, finding.address) or None,
                    "note": finding.note or None,
                    "remedy": finding.rule.remedy,
                }
                for finding in self.findings
            ],
            "dropped": self.dropped,
        }

    def place(self, side: AccessSide) -> str:
        """Return function and source line of a side; empty if unknown."""
        return "" if side.pc is None else self.program.place(side.pc)

    def caller(self, side: AccessSide) -> str:
        """Return function and source line of the call of a side's function; empty if unknown."""
        call = _call(self.program, side)
        return "" if call is None else self.program.place(call)

    def _side_json(self, side: AccessSide) -> dict[str, Any]:
        return {
            "what": side.access, "cycle": side.cycle, "pc": side.pc, "place": self.place(side) or None,
            "caller": self.caller(side) or None, "ticket": side.ticket,
        }  # fmt: skip


def _call(program: Program, side: AccessSide) -> int | None:
    """Return the call address of a side's function if `ra` still points into another function."""
    if side.pc is None or not side.back:
        return None
    call = side.back - 2  # in the call instruction, whether it has 2 or 4 bytes
    function, caller = program.function_at(side.pc), program.function_at(call)
    return None if caller is None or caller == function else call


def symbol_at(program: Program, address: int) -> str:
    """Return the variable at an address, with the offset; empty if there is none."""
    for symbol in program.symbols.values():
        if symbol.size and symbol.address <= address < symbol.address + symbol.size:
            offset = address - symbol.address
            return f"{symbol.name}+{offset:#x}" if offset else symbol.name
    return ""


_CallPath = tuple[int | None, int | None]


class Notebook:
    """Collector of findings; findings of one rule with sides in the same functions are merged."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._findings: dict[tuple[SanitizerRule, _CallPath, _CallPath, str], Finding] = {}
        self._dropped = 0

    def add(
        self, rule: SanitizerRule, first: AccessSide, second: AccessSide, address: int, size: int, note: str = ""
    ) -> None:
        """Add a violation of a rule in `size` bytes at an address."""
        key = rule, self._functions(first), self._functions(second), note
        finding = self._findings.get(key)
        if finding is not None:
            finding.count += 1
        elif len(self._findings) >= MAX_FINDINGS:
            self._dropped += 1
        else:
            self._findings[key] = Finding(rule, first, second, address, size, note)

    def findings(self) -> Findings:
        """Return all findings so far, in order of discovery."""
        return Findings(self._program, tuple(self._findings.values()), self._dropped)

    def _functions(self, side: AccessSide) -> "_CallPath":
        """Return the functions of a side and of its caller; the address if no function is known."""
        return self._function(side.pc), self._function(_call(self._program, side))

    def _function(self, pc: int | None) -> int | None:
        function = None if pc is None else self._program.function_at(pc)
        return pc if function is None else function.address
