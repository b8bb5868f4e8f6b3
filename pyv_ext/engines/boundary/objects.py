"""Python objects that native code looks at, and their attributes: where they lie, or else by CPython's interface."""

from collections.abc import Sequence

from pyv_ext.engines.boundary.python_calls import api, free, number_of
from pyv_native.attributes import slot_of
from pyv_native.compiler import variable
from pyv_native.ir import Ir


class Objects:
    """Python objects that the functions of a module look at, and attributes of them."""

    def __init__(self, prefix: str, attributes: Sequence[tuple[str, str]] = (), **objects: object) -> None:
        """`prefix`: of the variables that point to them; `attributes`: (object, name of one)."""
        self._prefix = prefix
        self._objects = {**objects, **{name: name for _, name in attributes}}
        self._slots = {(owner, name): slot_of(objects[owner], name) for owner, name in attributes}

    def variables(self) -> str:
        """The IR of the variables."""
        return "".join(map(variable, self.pointers))

    @property
    def pointers(self) -> dict[str, int]:
        """What these point to, which this object keeps alive."""
        objects = {f"{self._prefix}.{name}": id(value) for name, value in self._objects.items()}
        return objects | {f"{self._prefix}.{owner}.{name}": slot for (owner, name), slot in self._slots.items()}

    def load(self, ir: Ir, name: str) -> str:
        """The pointer to an object."""
        return ir.load("ptr", f"@{self._prefix}.{name}")

    def get(self, ir: Ir, owner: str, name: str, odd: str) -> str:
        """An attribute, which its owner keeps alive; to `odd`, with an exception, if it has none."""
        ask, known = ir.fresh(), ir.fresh()
        ir.goto(known, (self._in_slot(ir, owner, name, ask),))
        ir.block(ask)
        value = self._asked(ir, owner, name, odd)
        free(ir, value)
        ir.goto(known, (value,))
        (value,) = ir.block(known, "ptr")
        return value

    def integer(self, ir: Ir, owner: str, name: str, odd: str) -> str:
        """An attribute that is an integer from 0 on; to `odd`, maybe with an exception, if it is none."""
        ask, known = ir.fresh(), ir.fresh()
        ir.goto(known, (number_of(ir, self._in_slot(ir, owner, name, ask)),))
        ir.block(ask)
        attribute = self._asked(ir, owner, name, odd)
        value = number_of(ir, attribute)
        free(ir, attribute)
        ir.goto(known, (value,))
        (value,) = ir.block(known, "i64")
        ir.unless(ir.value(f"icmp sge i64 {value}, 0"), (odd, ()))
        return value

    def set(self, ir: Ir, owner: str, name: str, value: str) -> None:
        """Let an attribute be this object."""
        ask, done = ir.fresh(), ir.fresh()
        slot = self._slot(ir, owner, name, ask)
        ir.do(f"call void {api(ir, 'Py_IncRef')}(ptr {value})")
        before = ir.load("ptr", slot)
        ir.store("ptr", value, slot)
        free(ir, before)
        ir.goto(done)
        ir.block(ask)
        given = f"ptr {self.load(ir, owner)}, ptr {self.load(ir, name)}, ptr {value}"
        ir.value(f"call i32 {api(ir, 'PyObject_SetAttr')}({given})")
        ir.goto(done)
        ir.block(done)

    def _slot(self, ir: Ir, owner: str, name: str, ask: str) -> str:
        """Where it is; to `ask` where that is not known."""
        slot = self.load(ir, f"{owner}.{name}")
        ir.unless(ir.value(f"icmp ne ptr {slot}, null"), (ask, ()))
        return slot

    def _in_slot(self, ir: Ir, owner: str, name: str, ask: str) -> str:
        """What is there; to `ask` where nothing is."""
        value = ir.load("ptr", self._slot(ir, owner, name, ask))
        ir.unless(ir.value(f"icmp ne ptr {value}, null"), (ask, ()))
        return value

    def _asked(self, ir: Ir, owner: str, name: str, odd: str) -> str:
        given = f"ptr {self.load(ir, owner)}, ptr {self.load(ir, name)}"
        value = ir.value(f"call ptr {api(ir, 'PyObject_GetAttr')}({given})")
        ir.unless(ir.value(f"icmp ne ptr {value}, null"), (odd, ()))
        return value
