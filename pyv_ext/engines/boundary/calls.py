"""Calls from native code: functions of the machine (`pyv_ext.machine.bus`, `log`), and Python by guarded callbacks.

Both set the status at the beginning of the machine's records where something was raised: native code is left then.
"""

from pyv_ext.engines.boundary import frame
from pyv_ext.engines.boundary.frame import RECORDS_AT
from pyv_ext.machine import bus, log
from pyv_ext.machine.functions import MachineState
from pyv_ext.machine.state import LogKind, Machine
from pyv_native.arena import ROOT, STATUS
from pyv_native.compiler import variable
from pyv_native.emitter import Definition
from pyv_native.ir import Ir, Target
from pyv_native.records import WORD, layout

LOAD, STORE, PROCEED, WAIT = "bus_load", "bus_store", "bus_proceed", "bus_wait"
MARK, LOG_CYCLES, LOG_TRAP = "log_mark", "log_cycles", "log_trap"
_FUNCTIONS: dict[str, Definition] = {
    LOAD: bus.load_hart, STORE: bus.store_hart, PROCEED: bus.proceed, WAIT: bus.wait_for_interrupt,
    MARK: log.mark, LOG_CYCLES: log.log_cycles, LOG_TRAP: log.log_trap,
}  # fmt: skip


def variables() -> str:
    """The IR of the pointers to functions of the machine."""
    return "".join(map(variable, _FUNCTIONS))


def pointers() -> dict[str, int]:
    """Addresses of the functions, by variable."""
    return {name: MachineState.address(function) for name, function in _FUNCTIONS.items()}


def call(ir: Ir, name: str, *arguments: str) -> str:
    """Emit the call of a function of the machine with i64 arguments; the i64 that it returns."""
    function, records = ir.load("ptr", f"@{name}"), ir.load("ptr", "%frame", 8 * RECORDS_AT)
    operands = "".join(f", i64 {argument}" for argument in arguments)
    return ir.value(f"call i64 {function}(ptr {records}{operands})")


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
