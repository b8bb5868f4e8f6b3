"""Expected structure of Py-V, as a table, and the check of the installed Py-V."""

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import pyv.clocked
import pyv.csr
import pyv.exception_unit
import pyv.isa
import pyv.mem
import pyv.models.singlecycle
import pyv.module
import pyv.port
import pyv.reg
import pyv.simulator
import pyv.stages

from pyv_ext.errors import PyvExtError
from pyv_ext.pyv_adapter.pinned import COMMAND, COMMIT

REMEDY = f"check out commit {COMMIT[:7]} (version 0.6.0) of github.com/kyaso/py-v, or {COMMAND} without PYV_HOME"

_CALLABLES: dict[ModuleType, dict[str, str]] = {
    pyv.models.singlecycle: {"SingleCycle": "", "SingleCycle.connects": "self"},
    pyv.stages: {
        "IFStage": "imem",
        "IFStage.write_output": "self",
        "IDStage": "regf csr",
        "IDStage.process": "self",
        "IDStage.wb_sel": "self opcode funct3",
        "IDStage.dec_imm": "self opcode inst",
        "EXStage": "",
        "EXStage.process": "self",
        "EXStage.pass_through": "self",
        "EXStage.alu": "self opcode rs1 rs2 imm pc f3 f7",
        "EXStage.write_output": "self",
        "MEMStage": "dmem_read dmem_write",
        "MEMStage.process": "self",
        "MEMStage.process_load": "self",
        "WBStage": "regf",
        "WBStage.process": "self",
        "BranchUnit": "",
        "BranchUnit.process": "self",
    },
    pyv.exception_unit: {"ExceptionUnit": "csr name", "ExceptionUnit.process": "self"},
    pyv.mem: {
        "Memory": "size",
        "Memory.process_read0": "self",
        "Memory.process_read1": "self",
        "Memory._read": "self addr w",
        "Memory._prepare_next_val": "self",
    },
    pyv.reg: {
        "Reg": "type resetVal sensitive_methods",
        "Reg._prepare_next_val": "self",
        "Regfile": "",
        "Regfile.read": "self reg",
        "Regfile.write_request": "self reg val",
        "Regfile._tick": "self",
    },
    pyv.port: {
        "Input": "type sensitive_methods",
        "Wire": "type sensitive_methods",
        "Output": "type",
        "PortRW.read": "self",
        "PortRW.write": "self val",
    },
    pyv.module: {"Module": "name"},
    pyv.simulator: {
        "Simulator": "",
        "Simulator.addObj": "self obj",
        "Simulator.init": "self",
        "Simulator._process_changes": "self",
        "Simulator._add_to_change_queue": "self fn",
    },
}
"""Classes and methods with the parameters that they take."""

_NAMES_USED: dict[str, str] = {
    "SingleCycle": "CSRUnit ExceptionUnit IFStage IDStage EXStage MEMStage WBStage BranchUnit Memory Regfile "
    "regf csr_unit mem if_stg id_stg ex_stg mem_stg wb_stg bu excep pc",
    "IFStage": "npc_i IFID_o pc_reg ir_reg pc_reg_w ir_reg_w",
    "EXStage": "exmem_val",
    "MEMStage": "EXMEM_i read_port write_port",
    "WBStage": "regfile",
    "BranchUnit": "pc_i raise_exception_i npc_o",
    "ExceptionUnit": "csr ecall_i mret_i raise_exception_o npc_o mcause_o mepc_o trap_return_o",
    "Memory": "mem read_port0 read_port1 write_port",
    "Reg": "next cur",
    "Regfile": "regs we",
    "Port": "_val _root_driver",
    "Simulator": "_change_queue _event_queue globalSim",
}
"""Names that a constructor uses or assigns to its object."""

_FIELDS = {
    "IFID_t": "inst pc",
    "EXMEM_t": "rd we wb_sel take_branch alu_res pc4 rs2 mem funct3 csr_addr csr_read_val csr_write_en csr_write_val",
}

_CLASS_STATE = (
    (pyv.clocked, "RegList._reg_list"),
    (pyv.clocked, "MemList._mem_list"),
    (pyv.port, "PortList.port_list"),
    (pyv.port, "PortList.port_list_filtered"),
    (pyv.simulator, "Simulator._stable_callbacks"),
    (pyv.simulator, "Simulator.globalSim"),
)


def check(folder: str) -> None:
    """Raise PyvExtError, in one line, if Py-V's structure differs from the table."""
    for wrong in _differences():
        raise PyvExtError(f"core pyv: the Py-V in {folder} is not the one extended here: {wrong}: {REMEDY}")


def _differences() -> Iterator[str]:
    classes: dict[str, Any] = {"Port": pyv.port.Port}
    for module, arguments in _CALLABLES.items():
        for name, parameters in arguments.items():
            member = _find(module, name)
            if member is None:
                yield f"{module.__name__} has no {name}"
                return
            if isinstance(member, type):
                classes[name] = member
            has = " ".join(inspect.signature(member).parameters)
            if has != parameters:
                yield f"{module.__name__}.{name} takes ({has}), not ({parameters})"
    for name, names in _NAMES_USED.items():
        absent = set(names.split()).difference(classes[name].__init__.__code__.co_names)
        yield from (f"{name} does not use {item}" for item in sorted(absent))
    for name, names in _FIELDS.items():
        member = getattr(pyv.stages, name, None)
        if not is_dataclass(member) or [item.name for item in fields(member)] != names.split():
            yield f"pyv.stages.{name} has not the fields {names}"
    yield from (f"{module.__name__} has no {name}" for module, name in _CLASS_STATE if not _has(module, name))


def _find(module: ModuleType, name: str) -> Any:
    member: Any = module
    for part in name.split("."):
        member = getattr(member, part, None)
    return member


def _has(module: ModuleType, name: str) -> bool:
    owner, _, attribute = name.partition(".")
    return hasattr(getattr(module, owner, None), attribute)
