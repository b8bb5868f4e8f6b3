"""Evaluation of the core's combinational logic.

`ChangeDriven` is Py-V's own evaluation: a port that changes queues the methods that depend on it. `Ordered` runs every
method once per cycle, in the order of the data through the core, so that ports need no notification of changes. It
replaces the classes of this core's ports and registers by faster classes, and does not change Py-V's classes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol

from pyv.port import Input, Output, Wire
from pyv.reg import Reg

from pyv_ext.pyv_adapter.core import PyvCore
from pyv_ext.pyv_adapter.isolation import OwnSimulator

Method = Callable[[], None]


class Evaluation(Protocol):
    """Interface of an evaluation for the clock."""

    def settle(self) -> None:
        """Evaluate the cycle."""

    def settle_answer(self) -> None:
        """Evaluate again the logic that depends on an answer of the bus or of the system unit."""

    def requeue(self, *methods: Method) -> None:
        """Evaluate these methods in the next cycle even if no port on which they depend changes."""

    driving: AbstractContextManager[None]
    """Context in which ports are written outside of evaluation."""


class ChangeDriven:
    """Py-V's evaluation."""

    def __init__(self, core: PyvCore, simulator: OwnSimulator) -> None:
        self.settle = self.settle_answer = simulator.settle
        self.requeue = simulator.requeue
        self.driving: AbstractContextManager[None] = simulator.active


class Ordered:
    """Specialised evaluation."""

    def __init__(self, core: PyvCore, simulator: OwnSimulator) -> None:
        simulator.settle()
        for port in simulator.ports:
            port.__class__ = _FAST_CLASSES.get(type(port), type(port))
        for register in core.registers:
            register.__class__ = _FastReg
        decode, execute, access = core.id_stg, core.ex_stg, core.mem_stg
        decode.dec_imm = cache(decode.dec_imm)
        to_access = (decode.process, core.system.process, execute.pass_through, execute.process, core.connects)
        self._to_access = (core.if_stg.write_output, *to_access, access.process)
        self._loads = core.mem.read_port0.re_i
        self._load = (core.mem.process_read0, access.process_load)
        self._from_access = (core.excep.process, core.bu.process, core.mem.process_read1, core.wb_stg.process)
        self._access = access.process
        self.driving: AbstractContextManager[None] = nullcontext()

    def settle(self) -> None:
        for method in self._to_access:
            method()
        if self._loads.read():
            for method in self._load:
                method()
        for method in self._from_access:
            method()

    def settle_answer(self) -> None:
        self._access()
        for method in self._from_access:
            method()

    def requeue(self, *methods: Method) -> None:
        """Do nothing: every cycle evaluates every method."""


class _Fast:
    """Port without notification of changes, written only if it is the root of its net, as stock ports check."""

    _val: Any
    _root_driver: Any

    def read(self) -> Any:
        return self._root_driver._val

    def write(self, val: Any) -> None:
        self._val = val


class _FastInput(_Fast, Input):
    pass


class _FastOutput(_Fast, Output):
    pass


class _FastWire(_Fast, Wire):
    pass


class _FastReg(Reg):
    """Register that is never reset during a run, and holds numbers, which need no copy."""

    def _prepare_next_val(self) -> None:
        self._nextv = self.next._root_driver._val

    def _tick(self) -> None:
        self.cur._val = self._nextv


_FAST_CLASSES = {Input: _FastInput, Output: _FastOutput, Wire: _FastWire}
