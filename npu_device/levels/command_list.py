"""Command lists (`abi.cmdq`): conversion to descriptors, and execution (docs/model-flow.md, "CMDQ")."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from npu_device.abi.cmdq import KV, KV_UPDATE, LOAD_TILE, MOVED_AS, STORE_TILE, Code, Fault, faults
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import AbiError, NpuDeviceError
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import DRAM_BASE, MAX_CLUSTERS, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import Carried, DataType, Opcode, Scope
from npu_device.config import NpuConfig
from npu_device.cost.banks import bytes_per_bank
from npu_device.decode.command import Command
from npu_device.decode.decoder import Decoder
from npu_device.levels.critical_path import CriticalPath
from npu_device.levels.explain import Explanation, explain
from npu_device.levels.runner import Listed, Runner, list_config
from npu_device.memory.bitwidth import (
    FULL_PRECISION,
    BitWidthError,
    bits_total,
    bytes_total,
    check_bank,
    check_dtype,
    check_role,
    check_spm_offset,
)
from npu_device.memory.kv import valid_elements
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError
from npu_device.reservation.buffer import Dependencies
from npu_device.reservation.sums import Accumulators
from npu_device.trace.records import Batch
from npu_device.trace.run_spans import Spans
from npu_device.trace.stream import EventStream, records

LEVELS = ("IA_TIMING", "CA_HYBRID")


SHOWN_FAULTS = 8
"""Maximum number of faults in a message; `ListError.faults` has all."""


class ListError(NpuDeviceError):
    """Error of a list that cannot run, with a line for each of the first faults."""

    def __init__(self, errors: Sequence[Fault]) -> None:
        more = [f"and {len(errors) - SHOWN_FAULTS} more"] if len(errors) > SHOWN_FAULTS else []
        super().__init__("\n".join([*map(str, errors[:SHOWN_FAULTS]), *more]))
        self.faults = tuple(errors)


class ListRun(NamedTuple):
    """Result of a list's execution."""

    cycles: int
    """Cycle of the last completion."""
    events: EventStream
    records: Batch
    counters: Mapping[str, Any] | None
    """The `npu` object of results; None at IA_TIMING."""
    explanation: Explanation


def load(document: Any, config: NpuConfig) -> list[Listed]:
    """Return the commands of a list. Raise ListError with all faults."""
    errors = faults(document)
    if errors:
        raise ListError(errors)
    commands = document["commands"]
    parts = []
    for index, command in enumerate(commands):
        prefix = f"commands[{index}]."
        command_errors = [*_places(prefix[:-1], command, config), *_sizes(prefix, command), *_rows(prefix, command)]
        errors += command_errors
        if command_errors:
            continue
        try:
            parts.append(_convert(command, config))
        except AbiError as error:
            errors.append(Fault(Code.RANGE, f"commands[{index}]", command["opcode"], str(error)))
    if errors:
        raise ListError(errors)
    owner, decoded, errors = _decode(commands, parts, config)
    errors = errors or _check_deps(commands, owner, decoded) or _banks(commands, owner, decoded, config)
    if errors:
        raise ListError(errors)
    return [listed for part in parts for listed in part]


def run(commands: Sequence[Listed], config: NpuConfig, level: str = "CA_HYBRID", *, values: bool = False) -> ListRun:
    """Execute a list without a core and explain the run. `values`: whether results are computed (CA_HYBRID)."""
    config = list_config(config, len(commands))
    events = EventStream(keep=True)
    collected = records(events)
    analytic = level == "IA_TIMING"
    runner = Runner(config, events, values=values and not analytic, analytic=analytic)
    accepted = [max(listed.at, index * config.submit.cost) for index, listed in enumerate(commands)]
    path = CriticalPath(config, runner.memory).walk(runner.place(commands), accepted)
    ran = runner.run(commands)
    counters = None if analytic else ran.device.counters.to_json()
    batch = collected()
    explanation = explain(Spans([batch]), config, path)
    return ListRun(explanation.makespan, events, batch, counters, explanation)


# -- commands ----------------------------------------------------------------------------------------------------------


def _convert(command: Mapping[str, Any], config: NpuConfig) -> list[Listed]:
    """Return the device commands for a command of a list."""
    shared = {name: command[name] for name in ("stream", "prio", "rank", "affinity", "cluster") if name in command}
    opcode, at = command["opcode"], command.get("at", 0)
    if opcode in (LOAD_TILE, STORE_TILE):
        return [Listed(_move(command, command, config, shared), at)]
    if opcode == KV_UPDATE:
        return [Listed(_move(command, command[name], config, shared), at) for name in ("k", "v")]
    if opcode == Opcode.BARRIER.name:
        return [Listed(Descriptor(opcode=Opcode.BARRIER, function=Scope[command["scope"].upper()], **shared), at)]
    if opcode == Opcode.NOP.name:
        return [Listed(Descriptor(**shared), at)]
    return [_computation(command, config, shared, at)]


def _move(
    command: Mapping[str, Any], address: Mapping[str, Any], config: NpuConfig, shared: Mapping[str, int]
) -> Descriptor:
    """Return a DMA command: LOAD or STORE, for role kv KV_READ or KV_APPEND, which may convert types."""
    dram = DRAM_BASE + address["dram_addr"]
    spm = _spm(config, shared.get("cluster", 0), address["spm_bank"], address["spm_offset"])
    load_tile = command["opcode"] == LOAD_TILE
    kind, elements = MOVED_AS[command["qbits"]], command["num_elements"]
    if "dtype" in command:
        kind = DataType[command["dtype"]]
    addresses = {"in0_addr": dram if load_tile else spm, "out_addr": spm if load_tile else dram}
    addresses |= {"tile_n": command.get("alignment", 0), "bank_mask": command.get("bank_mask", 0)}
    if command.get("tensor_role", KV) != KV:
        strides = command.get("dram_stride", 0), command.get("spm_stride", 0)
        rows = command.get("rows", 1)
        function = Carried[command["tensor_role"].upper()]
        return Descriptor(
            opcode=Opcode.LOAD if load_tile else Opcode.STORE, function=function, tile_m=rows,
            tile_k=elements // rows, type_in0=kind, param0=strides[0], param1=strides[1], **addresses, **shared,
        )  # fmt: skip
    inside = MOVED_AS[command["src_qbits"]] if "src_qbits" in command else kind
    row = command.get("head_dim", elements)
    param0, param1 = command.get("params", (0, 0))
    return Descriptor(
        opcode=Opcode.KV_READ if load_tile else Opcode.KV_APPEND, tile_m=elements // row, tile_k=row, type_kv=kind,
        **{"type_out" if load_tile else "type_in0": inside}, param0=param0, param1=param1, **addresses, **shared,
    )  # fmt: skip


def _computation(command: Mapping[str, Any], config: NpuConfig, shared: Mapping[str, int], at: int) -> Listed:
    opcode = Opcode[command["opcode"]]
    fields: dict[str, int] = dict(shared)
    for name, operand in zip(("in0", "in1", "out"), (*[*command["in"], None, None][:2], command["out"]), strict=True):
        if operand is not None:
            fields[f"{name}_addr"] = _address(config, shared.get("cluster", 0), operand)
            fields[f"type_{name}"] = DataType[operand["dtype"]] if "dtype" in operand else DataType.NONE
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
        try:
            block = Extended.make(opcode, own=words.get("own"), **{k: _word(v) for k, v in shared_words.items()})
        except TypeError as error:
            raise AbiError(f"macro: {error}") from None
    return Listed(Descriptor(opcode=opcode, **fields), at, block)


def _word(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _address(config: NpuConfig, cluster: int, operand: Mapping[str, Any]) -> int:
    if "dram" in operand:
        return DRAM_BASE + int(operand["dram"])
    return _spm(config, cluster, operand["bank"], operand["offset"])


def _spm(config: NpuConfig, cluster: int, bank: int, offset: int) -> int:
    return SPM_BASE + cluster * SPM_CLUSTER_STRIDE + bank * (config.spm.size // config.spm.banks) + offset


# -- lists -------------------------------------------------------------------------------------------------------------


def _places(field: str, command: Mapping[str, Any], config: NpuConfig) -> list[Fault]:
    """Return faults of banks that the device lacks, and of misaligned tile offsets (docs/bit-widths.md, R7)."""
    errors = []
    size = config.spm.size // config.spm.banks
    named = [(field, command), (f"{field}.k", command.get("k")), (f"{field}.v", command.get("v"))]
    for name, transfer in named:
        if not isinstance(transfer, dict) or "spm_bank" not in transfer:
            continue
        bank, offset = transfer["spm_bank"], transfer["spm_offset"]
        if bank >= config.spm.banks:
            errors.append(Fault(Code.RANGE, f"{name}.spm_bank", bank, f"must be below spm.banks {config.spm.banks}"))
        if offset >= size:
            errors.append(Fault(Code.RANGE, f"{name}.spm_offset", offset, f"must be below the bank's {size} bytes"))
        try:
            check_spm_offset(offset)
        except BitWidthError as error:
            errors.append(Fault(Code.RANGE, f"{name}.spm_offset", offset, error.rule))
    return errors


def _sizes(prefix: str, command: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield faults of widths that are illegal for role or type, and of partial rows of a cache (docs/bit-widths.md, R2,
    R5, R10, R15, R20)."""
    if command["opcode"] not in (LOAD_TILE, STORE_TILE, KV_UPDATE):
        return
    qbits, role = command["qbits"], command.get("tensor_role", KV)
    try:
        if qbits != FULL_PRECISION:
            check_role(role, qbits)
        if "dtype" in command:
            check_dtype(DataType[command["dtype"]], qbits)
    except BitWidthError as error:
        yield Fault(Code.CHOICE, prefix + "qbits", qbits, error.rule)
    if command.get("alignment", 1) & command.get("alignment", 1) - 1:
        yield Fault(Code.RANGE, prefix + "alignment", command["alignment"], "must be a power of two")
    if "head_dim" not in command:
        return
    count, dim, tokens = command["num_elements"], command["head_dim"], command.get("tokens")
    if bits_total(dim, qbits) % 8:
        yield Fault(Code.RANGE, prefix + "head_dim", dim, f"rows of {dim} x {qbits} bits must end at a byte")
    load_tile = command["opcode"] == LOAD_TILE
    if valid_elements("load" if load_tile else "store", count, dim, tokens):
        return
    if not load_tile:
        yield Fault(Code.RANGE, prefix + "num_elements", count, f"must be head_dim {dim}: one token of one head")
        return
    bound = f" and at most {tokens} x {dim}, all tokens" if tokens is not None else ""
    yield Fault(Code.RANGE, prefix + "num_elements", count, f"must be a multiple of head_dim {dim}{bound}")


def _rows(prefix: str, command: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield faults of rows of KV_UPDATE: keys and values that overlap, or contradict the layout of their caches
    (docs/bit-widths.md, R15)."""
    if command["opcode"] != KV_UPDATE:
        return
    size = bytes_total(command["num_elements"], command["qbits"])
    for side in ("k", "v"):
        location = command[side]
        if "layout" not in location:
            continue
        layout = location["layout"]
        if layout["token"] >= layout["t_max"]:
            rule = f"must be below t_max {layout['t_max']}"
            yield Fault(Code.RANGE, f"{prefix}{side}.layout.token", layout["token"], rule)
            continue
        address = layout["base"] + (layout["head"] * layout["t_max"] + layout["token"]) * size
        if location["dram_addr"] != address:
            rule = f"must be {address}: base + (head x t_max + token) x {size} bytes"
            yield Fault(Code.RANGE, f"{prefix}{side}.dram_addr", location["dram_addr"], rule)
    keys, values = command["k"]["dram_addr"], command["v"]["dram_addr"]
    if abs(keys - values) < size:
        rule = f"keys and values of {size} bytes overlap, keys are at {keys}: each needs a row of its own"
        yield Fault(Code.RANGE, f"{prefix}v.dram_addr", values, rule)


class _Tile:
    """Tile loaded into several banks."""

    def __init__(self, command: int, region: Region) -> None:
        self.command = command
        self.region = region
        self.overlap: tuple[int, Region] | None = None
        """Index and region of the first command that overwrote a part of it."""


class _LastWriters:
    """Interval map from scratchpad bytes to the tile in several banks that wrote them last, or None."""

    def __init__(self) -> None:
        self._starts = [0]
        self._tiles: list[_Tile | None] = [None]

    def _cut(self, address: int) -> int:
        """Return the index of the interval that begins at an address."""
        index = bisect_left(self._starts, address)
        if index == len(self._starts) or self._starts[index] != address:
            self._starts.insert(index, address)
            self._tiles.insert(index, self._tiles[index - 1])
        return index

    def read(self, region: Region) -> set[_Tile]:
        """Return the tiles with bytes in a region."""
        tiles = set[_Tile | None]()
        for low in range(region.address, region.end, region.stride):
            first = bisect_right(self._starts, low) - 1
            tiles.update(self._tiles[first : bisect_left(self._starts, low + region.row_bytes)])
        return {tile for tile in tiles if tile is not None}

    def write(self, region: Region, tile: _Tile | None) -> set[_Tile]:
        """Assign a region to a tile. Return the tiles that had bytes in it."""
        tiles = self.read(region)
        for low in range(region.address, region.end, region.stride):
            first, last = self._cut(low), self._cut(low + region.row_bytes)
            self._starts[first:last], self._tiles[first:last] = [low], [tile]
        return tiles


def _banks(
    commands: Sequence[Mapping[str, Any]], owner: Sequence[int], decoded: Sequence[Command], config: NpuConfig
) -> list[Fault]:
    """Return the first fault of a tile in several banks that is overwritten before its last read (docs/bit-widths.md,
    R4).

    Both tiles then need the same bytes, so their sum exceeds the bank. Tiles inside one bank are not checked; their
    offsets separate them.
    """
    writers, faults = _LastWriters(), dict[int, Fault | None]()
    for index, command in zip(owner, decoded, strict=True):
        for region in filter(_in_scratchpad, command.reads()):
            for tile in writers.read(region):
                if tile.overlap is not None and tile.command not in faults:
                    faults[tile.command] = _check_capacity(commands, tile.command, *tile.overlap, tile.region, config)
        for region in filter(_in_scratchpad, command.writes()):
            spans = commands[index]["opcode"] == LOAD_TILE and _spans(region, config)
            for tile in writers.write(region, _Tile(index, region) if spans else None):
                tile.overlap = tile.overlap or (index, region)
    return [fault for _, fault in sorted(faults.items()) if fault is not None][:1]


def _in_scratchpad(region: Region) -> bool:
    return SPM_BASE <= region.address < SPM_BASE + MAX_CLUSTERS * SPM_CLUSTER_STRIDE


def _spans(region: Region, config: NpuConfig) -> bool:
    """Check whether a region of the scratchpad spans several banks."""
    size = config.spm.size // config.spm.banks
    return (region.address - SPM_BASE) // size != (region.end - 1 - SPM_BASE) // size


def _check_capacity(
    commands: Sequence[Mapping[str, Any]], first: int, index: int, region: Region, tile: Region, config: NpuConfig
) -> Fault | None:
    """Return the fault of the first bank without capacity for both tiles, with the largest legal tile, or None."""
    size = config.spm.size // config.spm.banks
    for shares in zip(bytes_per_bank(tile, config.spm), bytes_per_bank(region, config.spm), strict=True):
        try:
            if all(shares):
                check_bank(shares, size)
        except BitWidthError as error:
            command = commands[first]
            available = size - command["spm_offset"]
            legal = available * 8 // command["qbits"] // command.get("head_dim", 1) * command.get("head_dim", 1)
            return Fault(
                Code.RANGE, f"commands[{index}]", commands[index]["opcode"],
                f"{error.rule}: commands[{first}] needs all of it still; legal tile: num_elements {legal} of "
                f"commands[{first}], which stays in its bank",
            )  # fmt: skip
    return None


def _decode(
    commands: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[Listed]], config: NpuConfig
) -> tuple[list[int], list[Command], list[Fault]]:
    """Return (command index of each descriptor, decoded descriptors, faults of descriptors that the device rejects)."""
    runner = Runner(config, values=False)
    decoder = Decoder(config, runner.memory, Accumulators(config))
    owner = [index for index, part in enumerate(parts) for _ in part]
    decoded, errors = list[Command](), list[Fault]()
    for index, descriptor in zip(owner, runner.place([listed for part in parts for listed in part]), strict=True):
        try:
            decoded.append(decoder.decode(descriptor, 0, 0))
        except DescriptorError as error:
            name = commands[index]["opcode"]
            errors.append(Fault(Code.COMMAND, f"commands[{index}]", name, f"{error.code.name}: {error.reason}"))
    return owner, decoded, errors


def _check_deps(commands: Sequence[Mapping[str, Any]], owner: Sequence[int], decoded: Sequence[Command]) -> list[Fault]:
    """Return faults of dependencies that the device's hazards do not enforce."""
    dependencies, errors = Dependencies(), list[Fault]()
    earlier: dict[int, set[int]] = {index: set() for index in range(len(commands))}
    for number, (index, command) in enumerate(zip(owner, decoded, strict=True)):
        command.number = number
        ends, retirements = dependencies.add(command)
        earlier[index].update(owner[older] for older in ends | retirements)
    index_of = {command["id"]: index for index, command in enumerate(commands) if "id" in command}
    barriers = [index for index, command in enumerate(commands) if command["opcode"] == Opcode.BARRIER.name]
    for index, entry in enumerate(commands):
        for dep in entry.get("deps", ()):
            first = index_of[dep]
            if not any(first < barrier < index for barrier in barriers) and not _reaches(earlier, first, index):
                errors.append(
                    Fault(Code.DEPENDENCY, f"commands[{index}].deps", dep, "the device keeps no such order: "
                          "the commands share no memory; drop it or put a BARRIER between")
                )  # fmt: skip
    return errors


def _reaches(earlier: Mapping[int, Iterable[int]], first: int, last: int) -> bool:
    """Check whether hazards order `last` after `first`, directly or through others."""
    worklist, visited = [last], {last}
    while worklist:
        for predecessor in earlier[worklist.pop()]:
            if predecessor == first:
                return True
            if predecessor > first and predecessor not in visited:
                visited.add(predecessor)
                worklist.append(predecessor)
    return False
