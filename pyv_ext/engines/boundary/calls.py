"""Calls from native code: functions of the machine in the native subset, and Python by guarded callbacks.

Functions of clock and bus, and callbacks, set the status at the beginning of the machine's records where something was
raised: native code is left then. Regions inline the functions of the hart, which become a part of their modules.
"""

from functools import cache

from pyv_ext.engines.boundary import frame
from pyv_ext.engines.boundary.frame import RECORDS_AT
from pyv_ext.isa import Isa
from pyv_ext.machine import pmp
from pyv_ext.machine.functions import LINKAGE
from pyv_ext.machine.state import LogKind, Machine
from pyv_native.arena import LINKS, ROOT, STATUS
from pyv_native.emitter import Definition
from pyv_native.ir import Ir, Target
from pyv_native.module import module_context, module_text, symbol
from pyv_native.records import WORD, layout

_OUTLINED = {function: LINKAGE.slots[function] for function in (pmp.guard, pmp.write_config, pmp.write_address)}
"""Functions that are too long to be inlined."""


class HartFunctions:
    """Functions of the hart (`pyv_ext.machine.hart`, `csr`) that a function of IR calls."""

    def __init__(self, ir: Ir, isa: Isa, *, linked: bool = False) -> None:
        """Parts that the ISA rules out are removed from their code. `linked`: only the shortest are inlined."""
        self._ir = ir
        self._linked = linked
        flags = {
            "user_mode": isa.user_mode, "supervisor_mode": isa.supervisor_mode, "floating": isa.floating,
            "alignment": isa.alignment,
        }  # fmt: skip
        self._constants = tuple((f"HartState.{name}", int(value)) for name, value in flags.items())
        self._called: dict[Definition, None] = {}

    def call(self, function: Definition, *arguments: str | int) -> str:
        """Emit a call with i64 arguments; the i64 that it returns."""
        if self._linked and function in LINKAGE.slots:
            return call(self._ir, function, *arguments)
        self._called[function] = None
        records = self._ir.load("ptr", "%frame", 8 * RECORDS_AT)
        operands = "".join(f", i64 {argument}" for argument in arguments)
        return self._ir.value(f"call i64 @{symbol(function)}(ptr {records}{operands})")

    def holds(self, function: Definition, *arguments: str | int) -> str:
        """Emit a call; whether the result is other than 0, as an i1."""
        return self._ir.value(f"icmp ne i64 {self.call(function, *arguments)}, 0")

    def text(self) -> str:
        """The IR of what is called, a part of the module."""
        return _hart_text(tuple(self._called), self._constants) if self._called else ""


@cache
def _hart_text(functions: tuple[Definition, ...], constants: tuple[tuple[str, int], ...]) -> str:
    return module_text(functions, module_context(functions, Machine, dict(constants), {}, False), outlined=_OUTLINED)


def call(ir: Ir, function: Definition, *arguments: str | int) -> str:
    """Emit the call of a function of the machine's module, with i64 arguments; the i64 that it returns."""
    records = ir.load("ptr", "%frame", 8 * RECORDS_AT)
    address = ir.load("ptr", records, LINKS + WORD * LINKAGE.slots[function])
    operands = "".join(f", i64 {argument}" for argument in arguments)
    return ir.value(f"call i64 {address}(ptr {records}{operands})")


def unless_raised(ir: Ir, target: Target) -> None:
    """Emit a branch to `target` for the case that a callback has raised."""
    status = ir.load("i64", ir.load("ptr", "%frame", 8 * RECORDS_AT), WORD * STATUS)
    ir.unless(ir.value(f"icmp eq i64 {status}, 0"), target)


def get(ir: Ir, name: str) -> str:
    """A field of the root record, as an i64."""
    field = layout(Machine).fields[name]
    value = ir.load(f"i{8 * field.shape.size}", ir.load("ptr", "%frame", 8 * RECORDS_AT), ROOT + field.offset)
    return value if field.shape.size == WORD else ir.value(f"zext i{8 * field.shape.size} {value} to i64")


def put(ir: Ir, name: str, value: str) -> None:
    """Write a field of the root record, in the width that it has there."""
    field = layout(Machine).fields[name]
    ir.store(f"i{8 * field.shape.size}", value, ir.load("ptr", "%frame", 8 * RECORDS_AT), ROOT + field.offset)


def logs(ir: Ir, *kinds: LogKind) -> str:
    """Whether one of these kinds of the core log is on."""
    bits = ir.value(f"and i64 {get(ir, 'kinds')}, {sum(1 << kind for kind in kinds)}")
    return ir.value(f"icmp ne i64 {bits}, 0")


def goes_on(ir: Ir, progress: str, end: str) -> str:
    """Progress at cycle `end`, up to what comes next now."""
    limit = get(ir, "limit")
    later = ir.value(f"icmp sgt i64 {limit}, {end}")
    limit = ir.value(f"select i1 {later}, i64 {limit}, i64 {end}")
    ir.store("i64", limit, "%frame", 8 * frame.LIMIT)
    return frame.with_left(ir, progress, ir.value(f"sub i64 {limit}, {end}"))
