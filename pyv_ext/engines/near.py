"""Devices close to the core in native code: the CLINT, from the programs that its Python form executes (`NativeForm`).

Native code reads and writes the words of the device in place, drives its bits of mip, and goes on to the next event of
anything else. What the clock has to know is told to it when Python is asked for the next thing: once, for the last
cycle in which the device was touched. Where anything else follows the device, Python serves it.
"""

import ast
from collections.abc import Mapping
from typing import Any

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.window import Window
from pyv_ext.devices.base import NOW, VALUE, NativeForm, statements
from pyv_ext.hart import slots
from pyv_ext.hart.csr import MIE
from pyv_ext.hart.hart import Hart
from pyv_ext.hart.traps import MACHINE
from pyv_jit.ir import Ir

LOAD, STORE, EVENT = "load_near", "store_near", "near_event"
"""`load_near(frame, address, size, cycles left) -> value | cycles << 32` and
`store_near(frame, address, size, value, cycles left) -> cycles`, as in `access`: 0 where Python must do it.
`near_event(frame, cycle, bits) -> limit`: the event that is due, if there is one, up to a cycle in which nothing else
is; then how far native code may go. 0, and nothing has changed, where something else is due, or where the event raises
none of the `bits` of mip that are asked for; no bits: it may raise any."""

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "udiv",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "lshr",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "ult", ast.LtE: "ule", ast.Gt: "ugt", ast.GtE: "uge",
}  # fmt: skip


class Lowered:
    """Programs over the words of a device in IR, one after the other; words are written by `save`."""

    def __init__(self, ir: Ir, form: NativeForm, words: str) -> None:
        """`words`: the pointer to them."""
        self._ir = ir
        self._numbers = {name: number for number, name in enumerate(form.names)}
        self._words = words
        self.values: dict[str, str] = {}
        self._changed: dict[str, None] = {}

    def execute(self, program: str, given: Mapping[str, str]) -> str:
        """The result of a program, an i64."""
        self.values.update(given)
        result = "0"
        for line in statements(program):
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.values[name] = self._value(value)
                    if name in self._numbers:
                        self._changed[name] = None
                case ast.Expr(value=value):
                    result = self._value(value)
                case _:
                    raise ValueError(f"{ast.unparse(line)!r} is no line of a program: see pyv_ext.devices.base")
        return result

    def save(self) -> None:
        """Write the words that have changed."""
        for name in self._changed:
            self._ir.store("i64", self.values[name], self._words, 8 * self._numbers[name])

    def _value(self, node: ast.expr) -> str:
        ir = self._ir
        match node:
            case ast.Constant(value=int(number)):
                return str(number if number < 1 << 63 else number - (1 << 64))
            case ast.Name(id=name):
                if name not in self.values:
                    self.values[name] = ir.load("i64", self._words, 8 * self._numbers[name])
                return self.values[name]
            case ast.BinOp(left=left, op=op, right=right):
                one, two = self._value(left), self._value(right)
                return ir.value(f"{_OPERATORS[type(op)]} i64 {one}, {two}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return ir.value(f"xor i64 {self._value(operand)}, -1")
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                one, two = self._value(left), self._value(right)
                flag = ir.value(f"icmp {_COMPARISONS[type(op)]} i64 {one}, {two}")
                return ir.value(f"zext i1 {flag} to i64")
            case ast.IfExp(test=test, body=body, orelse=other):
                flag = ir.value(f"icmp ne i64 {self._value(test)}, 0")
                one, two = self._value(body), self._value(other)
                return ir.value(f"select i1 {flag}, i64 {one}, i64 {two}")
        raise ValueError(f"{ast.unparse(node)!r} has no native form: see pyv_ext.devices.base")


class Places:
    """The words of the frame that are used here, by their offsets in bytes."""

    def __init__(self, x: int, limit: int, others: int, touched: int, words: int, epoch: int) -> None:
        self.x, self.limit, self.others, self.touched, self.words, self.epoch = x, limit, others, touched, words, epoch


class NearDevice:
    """The device of one hart that has a native form, on its bus."""

    def __init__(self, hart: Hart, bus: Bus, window: Window, places: Places) -> None:
        device: Any = window.device
        self.window = window
        self.number = window.number
        self.words: memoryview[int] = device.words
        self._form: NativeForm = device.native
        self._hart = hart
        self._bus = bus
        self._at = places
        self._followers: object = None
        self._followed = False

    @property
    def ready(self) -> bool:
        """Whether native code may serve it: only the wiring of the hart's interrupts follows it, and nothing observes
        it."""
        followers = self._bus.clock.followers(self.number)
        if followers is not self._followers:
            self._followers = followers
            listeners, dependents = followers
            wiring = getattr(listeners[0], "__self__", None) if len(listeners) == 1 else None
            drives = getattr(wiring, "drives", None)
            self._followed = (
                drives is not None
                and drives(self.window.device, self._hart.set_lines)
                and [self._bus.clock.device(number) for number in dependents] == [wiring]
            )
        return self._followed and not self.window.observers

    def synchronize(self, cycle: int) -> None:
        """Tell the clock that the device was touched, the last time with effect from `cycle` on."""
        clock = self._bus.clock
        if cycle > clock.now + 1:
            clock.now = cycle - 1
        clock.touched(self.number, cycle)

    # -- IR ----------------------------------------------------------------------------------------------------

    def functions(self) -> str:
        """The IR of `LOAD`, `STORE` and `EVENT`."""
        return self._load() + self._store() + self._event()

    def _begin(self, ir: Ir) -> str:
        """The pointer to the words; to `python` while Python serves the device."""
        ir.block("entry")
        on = ir.value(f"icmp ne i64 {ir.load('i64', '%frame', self._at.epoch)}, 0")
        ir.unless(on, ("python", ()))
        words = ir.load("ptr", "%frame", self._at.words)
        ir.unless(ir.value(f"icmp ne ptr {words}, null"), ("python", ()))
        return words

    def _register(self, ir: Ir, acts: int, offsets: Mapping[int, str]) -> None:
        """To the block of the register, which is accessed `acts` cycles after the start, if nothing is due before."""
        size = ir.value("icmp eq i64 %size, 4")
        free = ir.value(f"icmp ult i64 {acts}, %left")
        ir.unless(ir.value(f"and i1 {size}, {free}"), ("python", ()))
        offset = ir.value(f"sub i64 %address, {self.window.base}")
        ir.switch("i64", offset, ((each, f"r{each:x}") for each in offsets), ("python", ()))

    def _python(self, ir: Ir) -> None:
        ir.block("python")
        ir.do("ret i64 0")

    def _start(self, ir: Ir) -> str:
        return ir.value(f"sub i64 {ir.load('i64', '%frame', self._at.limit)}, %left")

    def _load(self) -> str:
        ir, form = Ir(), self._form
        words = self._begin(ir)
        cycles, acts, _ = self.window.costs
        self._register(ir, acts, form.loads)
        for offset, program in form.loads.items():
            ir.block(f"r{offset:x}")
            now = ir.value(f"add i64 {self._start(ir)}, {acts}")
            value = Lowered(ir, form, words).execute(program, {NOW: now})
            if offset not in form.quiet:
                ir.store("i64", ir.value(f"add i64 {now}, 1"), "%frame", self._at.touched)
            ir.do(f"ret i64 {ir.value(f'or i64 {value}, {cycles << 32}')}")
        self._python(ir)
        return ir.text(f"i64 @{LOAD}(ptr %frame, i64 %address, i64 %size, i64 %left)")

    def _store(self) -> str:
        ir, form = Ir(), self._form
        words = self._begin(ir)
        _, _, cycles = self.window.costs
        self._register(ir, cycles - 1, form.stores)
        for offset, program in form.stores.items():
            ir.block(f"r{offset:x}")
            old = ir.load("i64", "%frame", self._at.limit)
            after = ir.value(f"add i64 {ir.value(f'sub i64 {old}, %left')}, {cycles}")
            made = Lowered(ir, form, words)
            low = ir.value("zext i32 %value to i64")
            made.execute(program + form.settle, {NOW: after, VALUE: low})
            limit = self._touch(ir, made, after)
            interrupts = self._interrupts(ir)
            limit = ir.value(f"select i1 {interrupts}, i64 {after}, i64 {limit}")
            busy = ir.value(f"sub i64 {ir.value(f'add i64 {old}, {cycles}')}, {limit}")
            none = ir.value(f"icmp eq i64 {busy}, 0")  # it would say that nothing was done
            limit = ir.value(f"sub i64 {limit}, {ir.value(f'zext i1 {none} to i64')}")
            ir.store("i64", limit, "%frame", self._at.limit)
            ir.do(f"ret i64 {ir.value(f'select i1 {none}, i64 1, i64 {busy}')}")
        self._python(ir)
        return ir.text(f"i64 @{STORE}(ptr %frame, i64 %address, i64 %size, i32 %value, i64 %left)")

    def _event(self) -> str:
        ir, form = Ir(), self._form
        words = self._begin(ir)
        others = ir.load("i64", "%frame", self._at.others)
        ir.unless(ir.value(f"icmp ugt i64 {others}, %cycle"), ("python", ()))
        made = Lowered(ir, form, words)
        due = made.execute(form.due, {})
        is_due = ir.value(f"icmp ule i64 {due}, %cycle")
        ir.branch(is_due, ("happens", ()), ("later", ()))
        ir.block("happens")
        made.execute(form.settle, {NOW: due})
        bits = ir.value(f"trunc i64 {made.execute(form.lines, {})} to i32")
        again = ir.value(f"icmp ugt i64 {made.values[form.due]}, %cycle")
        asked = ir.value(f"and i32 {bits}, %bits")
        fine = ir.value(f"or i1 {ir.value('icmp eq i32 %bits, 0')}, {ir.value(f'icmp ne i32 {asked}, 0')}")
        ir.unless(ir.value(f"and i1 {again}, {fine}"), ("python", ()))
        limit = self._touch(ir, made, due)
        ir.goto("known", (limit,))
        ir.block("later")
        ir.unless(ir.value("icmp eq i32 %bits, 0"), ("python", ()))
        sooner = ir.value(f"icmp ult i64 {due}, {others}")
        ir.goto("known", (ir.value(f"select i1 {sooner}, i64 {due}, i64 {others}"),))
        (limit,) = ir.block("known", "i64")
        ir.store("i64", limit, "%frame", self._at.limit)
        ir.do(f"ret i64 {limit}")
        self._python(ir)
        return ir.text(f"i64 @{EVENT}(ptr %frame, i64 %cycle, i32 %bits)")

    def _touch(self, ir: Ir, made: Lowered, cycle: str) -> str:
        """The device has settled in a cycle: words, lines, and the cycle up to which nothing is due."""
        bits = ir.value(f"trunc i64 {made.execute(self._form.lines, {})} to i32")
        made.save()
        x = ir.load("ptr", "%frame", self._at.x)
        kept = ir.value(f"and i32 {ir.load('i32', x, 8 * slots.MIP)}, {~self._form.mask}")
        ir.store("i32", ir.value(f"or i32 {kept}, {bits}"), x, 8 * slots.MIP)
        ir.store("i64", cycle, "%frame", self._at.touched)
        others, due = ir.load("i64", "%frame", self._at.others), made.values[self._form.due]
        sooner = ir.value(f"icmp ult i64 {due}, {others}")
        return ir.value(f"select i1 {sooner}, i64 {due}, i64 {others}")

    def _interrupts(self, ir: Ir) -> str:
        """Whether an interrupt comes before the next instruction."""
        x = ir.load("ptr", "%frame", self._at.x)
        get = {slot: ir.load("i32", x, 8 * slot) for slot in (slots.MIP, slots.MIE, slots.MSTATUS, slots.PRIV)}
        pending = ir.value(f"and i32 {get[slots.MIP]}, {get[slots.MIE]}")
        user = ir.value(f"icmp ne i32 {get[slots.PRIV]}, {MACHINE}")
        enabled = ir.value(f"icmp ne i32 {ir.value(f'and i32 {get[slots.MSTATUS]}, {MIE}')}, 0")
        taken = ir.value(f"or i1 {user}, {enabled}")
        return ir.value(f"and i1 {ir.value(f'icmp ne i32 {pending}, 0')}, {taken}")


def find_near_device(hart: Hart, bus: Bus, places: Places) -> NearDevice | None:
    """The device with a native form on the bus, if there is one."""
    for window in bus.windows:
        if window.near and getattr(window.device, "native", None) is not None:
            return NearDevice(hart, bus, window, places)
    return None


def stubs() -> str:
    """The IR where no device has a native form."""
    text = ""
    for name, given in (
        (LOAD, "i64 %a, i64 %s, i64 %l"),
        (STORE, "i64 %a, i64 %s, i32 %v, i64 %l"),
        (EVENT, "i64 %c, i32 %b"),
    ):
        text += f"define i64 @{name}(ptr %frame, {given}) nounwind {{\nentry:\nret i64 0\n}}\n"
    return text
