"""From a command list (`abi.cmdq`) to descriptors, and its run (specification 50, "CMDQ")."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from npu_device.abi.cmdq import LOAD_TILE, MOVED_AS, STORE_TILE, Code, Fault, faults
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import AbiError, NpuDeviceError
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode, Scope
from npu_device.analytic import Analytic
from npu_device.config import NpuConfig
from npu_device.decode import Decoder
from npu_device.descriptor_error import DescriptorError
from npu_device.events import Batch, EventStream, records
from npu_device.explain import Explanation, explain
from npu_device.hazards import Hazards
from npu_device.runner import Listed, Runner, list_config

LEVELS = ("IA_TIMING", "CA_HYBRID")


class ListError(NpuDeviceError):
    """A list that cannot run: one line for each fault."""

    def __init__(self, found: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, found)))
        self.faults = tuple(found)


class ListRun(NamedTuple):
    """What came of a list."""

    cycles: int
    """Cycle of the last completion."""
    events: EventStream
    records: Batch
    counters: Mapping[str, Any] | None
    """The `npu` object of results; None at IA_TIMING."""
    explanation: Explanation


def load(document: Any, config: NpuConfig) -> list[Listed]:
    """The commands of a list. ListError names every fault at once."""
    found = faults(document)
    if found:
        raise ListError(found)
    commands = document["commands"]
    made = []
    for index, command in enumerate(commands):
        try:
            made.append(_listed(command, config))
        except AbiError as error:
            found.append(Fault(Code.RANGE, f"commands[{index}]", command["opcode"], str(error)))
    if found:
        raise ListError(found)
    found = _check(commands, made, config)
    if found:
        raise ListError(found)
    return made


def run(commands: Sequence[Listed], config: NpuConfig, level: str = "CA_HYBRID", *, values: bool = False) -> ListRun:
    """Run a list without a core and explain it. `values`: whether results are computed (CA_HYBRID)."""
    config = list_config(config, len(commands))
    events = EventStream()
    collected = records(events)
    runner = Runner(config, events, values=values and level == "CA_HYBRID")
    accepted = [max(one.at, index * config.submit.cost) for index, one in enumerate(commands)]
    path = Analytic(config, runner.memory, unlimited=True).run(runner.place(commands), accepted)
    counters = None
    if level == "IA_TIMING":
        Analytic(config, runner.memory, events).run(runner.place(commands), accepted)
    else:
        counters = runner.run(commands).device.counters.to_json()
    seen = collected()
    explanation = explain(seen, config, path.cycles)
    return ListRun(explanation.makespan, events, seen, counters, explanation)


# -- one command -------------------------------------------------------------------------------------------------------


def _listed(command: Mapping[str, Any], config: NpuConfig) -> Listed:
    shared = {name: command[name] for name in ("stream", "prio", "rank", "affinity", "cluster") if name in command}
    opcode, at = command["opcode"], command.get("at", 0)
    if opcode in (LOAD_TILE, STORE_TILE):
        dram = DRAM_BASE + command["dram_addr"]
        spm = _spm(config, shared.get("cluster", 0), command["spm_bank"], command["spm_offset"])
        load_tile = opcode == LOAD_TILE
        return Listed(
            Descriptor(
                opcode=Opcode.LOAD if load_tile else Opcode.STORE, tile_m=1, tile_k=command["num_elements"],
                type_in0=MOVED_AS[command["qbits"]], in0_addr=dram if load_tile else spm,
                out_addr=spm if load_tile else dram, **shared,
            ),
            at,
        )  # fmt: skip
    if opcode == Opcode.BARRIER.name:
        return Listed(Descriptor(opcode=Opcode.BARRIER, function=Scope[command["scope"].upper()], **shared), at)
    if opcode == Opcode.NOP.name:
        return Listed(Descriptor(**shared), at)
    fields: dict[str, int] = dict(shared)
    for name, operand in zip(("in0", "in1", "out"), (*[*command["in"], None, None][:2], command["out"]), strict=True):
        if operand is not None:
            fields[f"{name}_addr"] = _address(config, shared.get("cluster", 0), operand)
            fields[f"type_{name}"] = DataType[operand["dtype"]]
    flags = dict(command.get("flags", {}))
    if "kv_dtype" in flags:
        fields["type_kv"] = DataType[flags.pop("kv_dtype")]
    fields |= flags
    fields["tile_m"], fields["tile_n"], fields["tile_k"] = command["tile"]
    fields["param0"], fields["param1"] = command.get("params", (0, 0))
    block = None
    if "macro" in command:
        words = command["macro"]
        shared_words = {name: value for name, value in words.items() if name != "own"}
        own = words.get("own")
        try:
            block = Extended.make(Opcode[opcode], own=own, **{k: _word(v) for k, v in shared_words.items()})
        except TypeError as error:
            raise AbiError(f"macro: {error}") from None
    return Listed(Descriptor(opcode=Opcode[opcode], **fields), at, block)


def _word(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _address(config: NpuConfig, cluster: int, operand: Mapping[str, Any]) -> int:
    if "dram" in operand:
        return DRAM_BASE + int(operand["dram"])
    return _spm(config, cluster, operand["bank"], operand["offset"])


def _spm(config: NpuConfig, cluster: int, bank: int, offset: int) -> int:
    return SPM_BASE + cluster * SPM_CLUSTER_STRIDE + bank * (config.spm.size // config.spm.banks) + offset


# -- the whole list ----------------------------------------------------------------------------------------------------


def _check(commands: Sequence[Mapping[str, Any]], made: Sequence[Listed], config: NpuConfig) -> list[Fault]:
    """Every command must be valid for this device, and every dependency one that its hazards enforce."""
    runner = Runner(config, values=False)
    decoder, hazards = Decoder(config, runner.memory), Hazards()
    found: list[Fault] = []
    decoded = []
    for index, descriptor in enumerate(runner.place(made)):
        try:
            command = decoder.decode(descriptor, 0, 0)
        except DescriptorError as error:
            name = commands[index]["opcode"]
            found.append(Fault(Code.COMMAND, f"commands[{index}]", name, f"{error.code.name}: {error.reason}"))
            continue
        command.number = index
        hazards.add(command)
        decoded.append(command)
    if found:
        return found
    index_of = {command["id"]: index for index, command in enumerate(commands) if "id" in command}
    later = {one.number: sorted({after.number for after in (*one.after_end, *one.after_retire)}) for one in decoded}
    barriers = [index for index, command in enumerate(commands) if command["opcode"] == Opcode.BARRIER.name]
    for index, given in enumerate(commands):
        for dep in given.get("deps", ()):
            first = index_of[dep]
            if not any(first < barrier < index for barrier in barriers) and not _reaches(later, first, index):
                found.append(
                    Fault(Code.DEPENDENCY, f"commands[{index}].deps", dep, "the device keeps no such order: "
                          "the commands share no memory; drop it or put a BARRIER between")
                )  # fmt: skip
    return found


def _reaches(later: Mapping[int, Sequence[int]], first: int, last: int) -> bool:
    """Whether hazards put `last` behind `first`, directly or through others."""
    todo, seen = [first], {first}
    while todo:
        for after in later[todo.pop()]:
            if after == last:
                return True
            if after < last and after not in seen:
                seen.add(after)
                todo.append(after)
    return False
