"""Compilation results: commands for the device of a configuration, a program, and the files of a folder."""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import LoopOrder
from npu_device.config import FrontEndConfig, NpuConfig, QueueConfig
from npu_device.cost.counts import Count, Event
from npu_device.cost.durations import VECTOR_OPS, vector_operations
from npu_device.cost.tensor import speeds
from npu_device.levels.runner import Listed, Runner, list_config, suspend_gc
from npu_device.memory.bitwidth import pack_factor
from pyv_ext.elf import Program, Segment, parse_elf
from pyv_native.files import write_bytes
from pyv_npu.config import Config
from pyv_npu.config.tree import CORE_LEVELS, EnergyConfig, tile_sizes
from pyv_npu.errors import UsageError
from pyv_npu.observe.analysis.energy import PICO, Prices
from pyv_npu.observe.analysis.work import works
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import LEVEL
from toolchain.backend import Program as Lowered
from toolchain.codegen import Command, Target
from toolchain.codegen.cmdq import document
from toolchain.codegen.commands import AUTOMATIC, EnergyModel, MappingOptions, Objective, Residency
from toolchain.ir.text import render
from toolchain.program_image import WEIGHTS, constants, weights_file
from toolchain.quantize.qconfig import QConfig

if TYPE_CHECKING:
    from toolchain.compiler import Compiled  # which imports onnx: built-in models need none of it

FIRMWARE_SUBMITS, GENERATED = "firmware", "generated"
"""Submitters of the commands of a model."""
SUBMITTED = re.compile(r"submitted in (\d+) cycles")
"""Line that firmware/apps/run_model.c prints, in every mode."""
UNLIMITED = 1 << 20
"""Bytes per cycle of a rate without a limit."""


def mapping_of(config: Config) -> MappingOptions:
    """Return the mapping options of a configuration."""
    compiler, objective = config.compiler, Objective(config.compiler.objective)
    return MappingOptions(
        tile=tile_sizes("compiler.tile", compiler.tile),
        layers=tuple(
            (layer, tile)
            for layer, text in compiler.layers.items()
            if (tile := tile_sizes(f"compiler.layers.{layer}", text)) is not None
        ),
        prefetch=compiler.prefetch,
        loop_order=None if compiler.loop_order == "auto" else LoopOrder[compiler.loop_order.upper()],
        residency=None if compiler.residency == "auto" else Residency(compiler.residency),
        search=compiler.mapper == "search",
        objective=objective,
        energy=EnergyModel() if objective is Objective.CYCLES else energy_model(config),
    )


def energy_model(config: Config) -> EnergyModel:
    """Return the energy model of the events that depend on the mapping."""
    prices, (core, npu_clock) = Prices.of(config.npu, config.energy), config.npu.clock_ratio
    scratchpad = prices.price(Count(Event.SPM_READ))
    transfer_energy = sum(prices.price(Count(event)) for event in (Event.DRAM_READ, Event.NOC)) + scratchpad
    idle = prices.leakage / PICO / config.npu.clock_hz * core / npu_clock
    return EnergyModel(transfer_energy, scratchpad, idle, _Events(config.npu, config.energy))


@dataclass(frozen=True)
class _Events:
    """Energy of commands on the device of a configuration, pJ."""

    npu: NpuConfig
    energy: EnergyConfig

    @cached_property
    def _prices(self) -> Prices:
        return Prices.of(self.npu, self.energy)

    def __call__(self, commands: Sequence[Command]) -> float:
        listed = [Listed(command.descriptor, 0, command.block) for command in commands]
        return sum(sum(self._prices.energy(work.counts).values()) for work in works(listed, self.npu))


def target_of(npu: NpuConfig, mapping: MappingOptions = AUTOMATIC) -> Target:
    """Return the device of a configuration as seen by the compiler: sizes, and rates in NPU cycles."""
    core, npu_clock = npu.clock_ratio
    per_cycle = [
        Fraction(rate * core, npu_clock * npu.clock_hz)
        for rate in (npu.dram.rate, npu.noc.bytes_per_second)
        if rate is not None
    ]
    timed = replace(npu, mode="tight", frontend=FrontEndConfig(), queue=QueueConfig())  # independent of submission
    return Target(
        spm_bytes=npu.spm.size,
        banks=npu.spm.banks,
        acc_bytes=npu.te.acc_bytes,
        dram_bytes=npu.dram.size,
        clusters=npu.clusters,
        engines=npu.te.count,
        te=npu.te,
        port=npu.spm.port or UNLIMITED,
        vectors=npu.ve.count,
        lanes=npu.ve.lanes,
        vector_latency=npu.ve.latency,
        ve_f_a=_speeds(npu.ve.speed, npu.ve.f_a),
        operations={opcode: vector_operations(npu.ve.operations, opcode) for opcode in VECTOR_OPS},
        channels=npu.dma.channels,
        outstanding=npu.dma.outstanding,
        channel_rate=npu.dma.bytes_per_cycle or UNLIMITED,
        dram_rate=min(per_cycle, default=Fraction(UNLIMITED)),
        lookups=npu.dma.vq_elements_per_cycle,
        latency=npu.dram_latency + npu.noc.latency,
        alignment=npu.dma.alignment,
        most_aligned=min(npu.dram.interleave, npu.l2.line if npu.l2.enabled else npu.dram.interleave),
        mapping=mapping,
        measured=_MeasuredDevice(timed),
    )


@dataclass(frozen=True)
class _MeasuredDevice:
    """Device of a configuration that measures commands."""

    npu: NpuConfig

    def __call__(self, commands: Sequence[Command]) -> int | None:
        """Return the NPU cycles from submission to the last completion; None if the device refuses a command."""
        listed = tuple((command.descriptor, command.block) for command in commands)
        with suspend_gc():  # garbage collection would traverse the device's many steps
            return _cycles(list_config(self.npu, len(listed)), listed)


@lru_cache(maxsize=4096)  # steps of a decoder, and points of a sweep, share most of their products
def _cycles(npu: NpuConfig, commands: tuple[tuple[Descriptor, Extended | None], ...]) -> int | None:
    run = Runner(npu, values=False).run([Listed(descriptor, 0, block) for descriptor, block in commands])
    core, npu_clock = npu.clock_ratio
    return None if run.device.error_log else run.cycles * npu_clock // core


def _speeds(speed: str, table: tuple[int, ...]) -> Mapping[int, Fraction]:
    """Return operations per cycle by the bits of an element, relative to 8 bits."""
    return speeds(table if speed == "by_bits" else (1,) * len(table))


def seen_by_compiler(config: Config) -> Hashable:
    """Return the part of a configuration that the compilation of a model depends on: the device as seen by the
    compiler, the seed of random inputs, and the slot of generated instructions."""
    npu = config.npu
    measured = npu.te, npu.ve, npu.spm, npu.dma, npu.dram, npu.noc, npu.l2, npu.scheduler, npu.clock_ratio
    target = target_of(npu, mapping_of(config))._replace(measured=None)
    return repr(target), repr(measured), config.run.seed, config.core.custom_slot


def packed(config: Config, qconfig: QConfig) -> Config:
    """Return the configuration of a run whose QConfig has `packing.use_packed_int<bits>` (docs/bit-widths.md, R3). If
    true, engines take as many cycles to unpack as a byte has elements, unless `npu.te.unpack_int<bits>` and
    `npu.ve.unpack_int<bits>` are set. UsageError if false and such a key is set."""
    for bits, packing in qconfig.packed.items():
        for engine, engine_config in (("te", config.npu.te), ("ve", config.npu.ve)):
            key, now = f"npu.{engine}.unpack_int{bits}", getattr(engine_config, f"unpack_int{bits}")
            if not packing and now != 1:
                raise UsageError(f"{key} = {now}: the QConfig has packing.use_packed_int{bits} false; drop one of them")
    return replace(config, npu=_unpacking(config.npu, qconfig))


def _unpacking(npu: NpuConfig, qconfig: QConfig) -> NpuConfig:
    """Return the device with the cycles to unpack the widths that a QConfig packs, where they have the default."""
    te, ve = dict[str, Any](), dict[str, Any]()
    for bits, packing in qconfig.packed.items():
        for engine, values in ((npu.te, te), (npu.ve, ve)):
            key = f"unpack_int{bits}"
            if packing and getattr(engine, key) == 1:
                values[key] = pack_factor(bits)
    return replace(npu, te=replace(npu.te, **te), ve=replace(npu.ve, **ve))


def target_with(npu: NpuConfig, qconfig: QConfig, mapping: MappingOptions = AUTOMATIC) -> Target:
    """Return the device of a run as seen by the compiler, with a QConfig for the widths of weights."""
    return target_of(_unpacking(npu, qconfig), mapping)._replace(qconfig=qconfig)


def load_image(elf: bytes, compiled: "Compiled", name: str) -> Program:
    """Return the bare image of a model under a name, with its constants: a sidecar file if the core cannot address
    them, otherwise segments that share the memory of the compiled model."""
    program = parse_elf(elf, name)
    if compiled.memory.beyond:
        return replace(program, sidecars={WEIGHTS: weights_file(compiled)})
    weights = (Segment(at, data, len(data), executable=False) for at, data in constants(compiled) if data)
    return replace(program, segments=(*program.segments, *weights))


def listing(compiled: Lowered, npu: NpuConfig) -> dict[str, bytes]:
    """Return npu_ir.jsonl, layers as imported and after every pass, and cmdq.json, the command list for a device."""
    return {
        "npu_ir.jsonl": "".join(f"{line}\n" for line in compiled.trace).encode(),
        "cmdq.json": (json.dumps(document(compiled.commands, target_of(npu))) + "\n").encode(),
    }


def write_folder(
    compiled: "Compiled", elf: bytes, folder: Path, npu: NpuConfig, *, split: bool = False,
    more: Mapping[str, Any] | None = None,
) -> list[Path]:  # fmt: skip
    """Write the image, the IR, the command list, and the addresses of inputs and outputs; return the paths. `split`:
    weights are in weights.bin, as always if the core cannot address them; `more`: additional keys of model.json."""
    contents = {
        "image.elf": elf,
        **({WEIGHTS: weights_file(compiled)} if split or compiled.memory.beyond else {}),
        "npu_ir.txt": render(compiled.graph).encode(),
        **listing(compiled, npu),
        "model.json": (json.dumps({**_description(compiled), **(more or {})}, indent=2) + "\n").encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        write_bytes(folder / name, data)
    return [folder / name for name in contents]


def _description(compiled: "Compiled") -> dict[str, object]:
    graph, memory = compiled.graph, compiled.memory

    def tensors(names: tuple[str, ...]) -> dict[str, object]:
        return {
            name: {
                "type": graph.tensors[name].dtype.name,
                "shape": list(graph.tensors[name].shape),
                "address": memory.address(graph, name),
            }
            for name in names
        }

    return {
        "schema": 1, "model": compiled.model.name, "commands": len(compiled.commands), "descriptors": memory.commands,
        "inputs": tensors(graph.inputs), "outputs": tensors(graph.outputs),
    }  # fmt: skip


# -- submission --------------------------------------------------------------------------------------------------------


def check_submit(config: Config, submit: str) -> None:
    """Raise UsageError for an unknown submitter, or generated code at a level without a core."""
    if submit not in (FIRMWARE_SUBMITS, GENERATED):
        raise UsageError(f"--submit {submit}: must be {FIRMWARE_SUBMITS} or {GENERATED}")
    if submit == GENERATED and config.run.sim_level not in CORE_LEVELS:
        raise UsageError(f"--submit {submit}: sim_level {config.run.sim_level} has no core; use {LEVEL}")


def check_together(split: bool) -> None:
    """Raise UsageError for generated code with weights in a separate file."""
    if split:
        raise UsageError(f"--weights-bin: --submit {GENERATED} makes one file; drop one of them")


def submitted_in(run: "Result[Any]") -> int | None:
    """Return the core cycles from before the first submission to after the last; None if the program ended before."""
    match = SUBMITTED.search(run.core.uart if run.core is not None else "")
    return None if match is None else int(match[1])


def submission(generated: int | None, firmware: int | None, commands: int) -> dict[str, Any]:
    """Return the core cycles of submission, and those that generated code saves per command; {} if a count is None."""
    if generated is None or firmware is None:
        return {}
    saving = (firmware - generated) / commands
    return {
        "generated_cycles": generated, "firmware_cycles": firmware, "commands": commands, "saved_per_command": saving,
    }  # fmt: skip


def submission_row(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result of `submission` as rows of a summary."""
    if not figures:
        return []
    text = f"generated code {figures['generated_cycles']:,} cycles, firmware {figures['firmware_cycles']:,}"
    return [("submission", f"{text}: {figures['saved_per_command']:.1f} saved per command")]
