"""Composition of core, bus and NPU into a machine, the only module that connects them (docs/architecture.md)."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from npu_device.abi import memory_map as mm
from npu_device.config import NpuConfig
from npu_device.device import NpuDevice
from npu_device.memory.memory import Memory
from npu_device.trace.stream import EventStream
from pyv_ext import elf
from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER, Clock
from pyv_ext.bus.memory import INFO_OFFSET, Ram, boot_rom
from pyv_ext.cores import make_engine
from pyv_ext.devices.clint import Clint, SupervisorTimer
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.program_exit import Finisher, Htif, exit_calls
from pyv_ext.devices.uart import Console, Uart
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.protocols import CustomInstruction, Device, Operands, Outcome, Placed
from pyv_native.arena import zeros
from pyv_native.state import Stateful
from pyv_npu import boot, ctrl_c
from pyv_npu.config.tree import NOT_CONNECTED, Config
from pyv_npu.coupling.custom0 import ObservedCsrs, custom_instructions, ignored_instructions
from pyv_npu.coupling.memory_traffic import CoreTraffic, Outputs
from pyv_npu.coupling.serial_input import SerialInput
from pyv_npu.errors import UsageError, host_memory
from pyv_npu.observe.latency import arrivals, submit_functions
from pyv_npu.observe.latency.table import Latency

if TYPE_CHECKING:
    from pathlib import Path

    from npu_device.external.link import External
    from pyv_ext.devices.semihosting import Semihosting
    from pyv_npu.coupling.coherence import Coherence
    from pyv_npu.faults.injection import Injection
    from pyv_npu.faults.plan import Fault
    from pyv_npu.observe.latency.probe import LatencyProbe
    from pyv_npu.observe.sanitizer.sanitizer import Sanitizer
    from pyv_npu.snapshot import Snapshot
    from pyv_npu.snapshot.machine import Machine

SLICE, UNTIMED = 1 << 20, 1 << 25
"""Cycles between checks of the wall clock; without a timeout, cycles between checks for Ctrl-C in native code."""


_OVER = (StopReason.EXIT, StopReason.DEADLOCK, StopReason.TRAP_LOOP, StopReason.ENGINE)
"""Reasons after which the program cannot resume."""


class HostLines(Protocol):
    """Serial lines to the host, served between slices of a run (`pyv_npu.serial`)."""

    @property
    def cycles(self) -> int:
        """Cycles of the next slice."""

    def exchange(self, stop: Stop | None, seconds: float | None) -> Stop | None:
        """Deliver input, waiting for at most `seconds`. Return `stop`, a deadlock, if no input can end it."""


class Platform:
    """Machine with a hart, RAM, standard devices and an NPU, configured by `config`. It runs one program."""

    def __init__(
        self,
        config: Config,
        *,
        console: Callable[[bytes], None] | None = None,
        devices: Sequence[Placed] = (),
        instructions: Sequence[CustomInstruction] = (),
        values: bool = True,
    ) -> None:
        """`console` receives the UART's bytes. Without `values` the NPU computes nothing. Devices and instructions of
        `config.plugins` are added to the arguments.

        BadInputError for an invalid plugin, PyvExtError or NpuDeviceError when the parts do not fit together.
        """
        self.config = config
        self._computes = values
        if config.plugins:
            from pyv_npu.plugins import parts  # few runs have plugins

            plugin_parts = parts(config.plugins)
            devices, instructions = (*devices, *plugin_parts.devices), (*instructions, *plugin_parts.instructions)
        self.devices = tuple(devices)
        self.instructions = tuple(instructions)
        core = config.core
        self.timing = replace(core.timing, irq=core.timing.irq_fast) if core.fast_irq else core.timing
        self.program: Program | None = None
        self.clock = Clock()
        self.bus = Bus(self.clock, self.timing)
        with host_memory(f"npu.dram.size = {config.npu.dram.size}"):
            self.ram = Ram("DRAM", mm.DRAM_BASE, min(config.npu.dram.size, mm.DRAM_CORE_VISIBLE))
        self.spm = [
            Ram(f"SPM{cluster}", mm.SPM_BASE + cluster * mm.SPM_CLUSTER_STRIDE, config.npu.spm.size, near=True)
            for cluster in range(config.npu.clusters)
        ]
        for memory in (self.ram, *self.spm):
            self.bus.add_ram(memory)
        self._kv: Ram | None = None
        """Virtual range of encoded keys and values, outside the core's address space; None if DRAM is too large for
        snapshots."""
        if config.npu.dram.size <= mm.DRAM_CORE_VISIBLE:
            self._kv = Ram("KV", mm.KV_BASE, mm.KV_RANGE * config.npu.dram.size)
        self.outputs = Outputs(self.bus, self.spm, self.is_status)
        self.console = Console(console)
        self.uart = Uart(self.console)
        self.uarts = [self.uart]
        """The UART, and a second UART if the configuration has a line for it."""
        self.inputs: list[SerialInput] = []
        """Input of each UART with a line, in order."""
        self.lines: HostLines | None = None
        """Live lines, over which the host sends during a run."""
        if len(config.platform.serial) > 1:
            self.uarts.append(Uart())
            self.uarts[1].name = "uart1"
        self.clint = Clint(config.clint.divider)
        self.plic = Plic()
        self.finisher = Finisher(self._exit, self._reset)
        self.events = EventStream(keep=True)
        self.npu_memory = self._npu_memory()
        self.external = self._engines_outside()
        """External engines, at CA_FULL."""
        self.npu = NpuDevice(
            config.npu, self.npu_memory, self.events, config.custom_enabled, values=values, external=self.external
        )

        self.isa = Isa(core.isa, [*self._npu_instructions(), *instructions])
        self.hart = Hart(self.isa, self.timing, self.clock.records, reset_cycles=self.timing.reset)
        if "sstc" in self.isa.extensions:
            self.hart.csrs.add_window(SupervisorTimer(self.clint, self.isa.xlen))
        self.hart.csrs.add_window(ObservedCsrs(self.npu, self._observe_csr, self._observe_csr_write))
        self.engine = make_engine(core.engine, self.hart, self.bus, misaligned=core.misaligned)

        self.bus.add_device(mm.FINISHER_BASE, self.finisher)
        self.bus.add_device(mm.CLINT_BASE, self.clint, near=True)
        self.bus.add_device(mm.PLIC_BASE, self.plic)
        self.bus.add_device(mm.UART_BASE, self.uart)
        for second in self.uarts[1:]:
            self.bus.add_device(mm.UART1_BASE, second)
        self.bus.add_device(config.platform.mmio_base, self.npu)
        for placed in devices:
            self.bus.add_device(placed.base, placed.device, near=placed.near)
        self.interrupts = InterruptWiring(
            self.clock,
            clint=self.clint,
            plic=self.plic,
            sources=self._sources(devices),
            direct=[self.npu] if config.platform.irq == "direct" else [],
            plic_delay=self.timing.plic,
        )
        self.inputs += [
            SerialInput(uart, self.clock) for _, uart in zip(config.platform.serial, self.uarts, strict=False)
        ]
        accesses = config.npu.dram.core_traffic == "accesses"
        self.coherence = self._coherence()
        self.traffic = CoreTraffic(self.bus, self.ram, self.npu) if accesses else None
        self._probe: LatencyProbe | None = None
        self._arrivals: Sequence[int] = ()
        self._warmup = 0
        self._custom_observers: list[Callable[[str, Operands, Outcome], None]] = []
        self.injection: Injection | None = None
        """Fault injection of this run, if any."""
        self.sanitizer: Sanitizer | None = None
        """Sanitizer of the loaded program, if `run.sanitize` is set."""
        self._htif: Htif | None = None
        self._semihosting: Semihosting | None = None
        self._machine: Machine | None = None
        """Parts for snapshots, created on first use; with users' parts, at the load of the program, in their initial
        state."""

    # -- composition -------------------------------------------------------------------------------------------

    def _engines_outside(self) -> "External | None":
        if self.config.run.sim_level != "CA_FULL":
            return None
        check_engine(self.config)
        from npu_device.external.link import External

        external = External(self.config.npu)
        external.on_failure = lambda text: self.engine.stop(Stop(StopReason.ENGINE, None, text))
        return external

    def _coherence(self) -> "Coherence | None":
        if self.npu.l2 is None:
            return None
        from pyv_npu.coupling.coherence import Coherence

        return Coherence(self.bus, self.ram, self.npu.l2)

    def _npu_memory(self) -> Memory:
        def report_write(address: int, size: int) -> None:
            self.bus.memory_changed(address, size)
            self.outputs.written(address, size)

        regions = [(ram.name, ram.base, ram.data) for ram in (self.ram, *self.spm)]
        size = self.config.npu.dram.size
        with host_memory(f"npu.dram.size = {size}"):
            if size > self.ram.size:
                regions.append(("DRAM beyond the core", self.ram.end, zeros(size - self.ram.size)))
            virtual = zeros(mm.KV_RANGE * size) if self._kv is None else self._kv.data
        regions.append(("KV", mm.KV_BASE, virtual))
        return Memory(regions, report_write)

    def _npu_instructions(self) -> list[CustomInstruction]:
        enabled, core = self.config.custom_enabled, self.config.core
        instructions = custom_instructions(
            self.npu, enabled, core.custom_slot, self.timing, self._observe_custom, self.npu_memory.holds
        )
        return instructions + (ignored_instructions(enabled, core.custom_slot) if core.tight_off == "nop" else [])

    def _sources(self, devices: Sequence[Placed]) -> dict[int, Device]:
        sources: dict[int, Device] = {mm.UART_SOURCE: self.uart, mm.NPU_SOURCE: self.npu}
        sources |= dict(zip((mm.UART1_SOURCE,), self.uarts[1:], strict=False))
        for placed in devices:
            if placed.source is not None:
                if placed.source in sources:
                    raise UsageError(
                        f"PLIC source {placed.source} of {placed.device.name} belongs to "
                        f"{sources[placed.source].name}: choose another"
                    )
                sources[placed.source] = placed.device
        return sources

    # -- the program -------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        program = "no program" if self.program is None else os.path.basename(self.program.name)
        return f"<Platform: {program}, {self.config.npu.mode}, cycle {self.cycle:,}, pc {self.hart.pc:#x}>"

    def load(self, program: "Program | str | Path", args: Mapping[str, int] | None = None) -> None:
        """Load a program into memory and set the hart to its entry; `args` are values for npu_bootinfo by name.

        ElfError for a broken file, BadInputError when the program needs another platform, UsageError for an unknown
        argument.
        """
        if self.program is not None:
            raise UsageError(f"{self.program.name} is loaded already: make another Platform for another program")
        if not isinstance(program, Program):
            program = elf.read_elf(program)
        needs = boot.requirements(program)
        boot.check(program, needs, self.config)
        values = {**boot.implied_arguments(self.config, needs, values=self._computes), **(args or {})}
        words = boot.argument_words(program, needs, values)
        self._warmup = next((words[argument.slot] for argument in needs.arguments if argument.name == "warmup"), 0)
        info = boot.bootinfo(self.config, words)
        self.bus.add_ram(boot_rom(mm.ROM_BASE, program.entry, info, self.isa.xlen))
        if self.config.run.sanitize:
            from pyv_npu.observe.sanitizer.sanitizer import Sanitizer  # few runs have a sanitizer

            self.sanitizer = Sanitizer(self, program)
        elf.load(program, self.bus)
        if self.sanitizer is not None:
            self.sanitizer.loaded(program)
        for file in needs.files:
            self.npu_memory.write_bytes(mm.DRAM_BASE + file.offset, boot.content(program, file))
        self.program = program
        reset_pc = self.config.core.reset_pc
        self.hart.pc = program.entry if reset_pc is None else reset_pc
        self.hart.x[10] = self.hart.hart_id
        self.hart.x[11] = mm.ROM_BASE + INFO_OFFSET
        if "tohost" in program.symbols:
            fromhost = program.symbols.get("fromhost")
            tohost = program.symbols["tohost"].address
            self._htif = Htif(self.bus, tohost, fromhost.address if fromhost else None, self.console, self._exit)
        exits = exit_calls(self.bus, self._exit)
        self.hart.semihosting = exits
        if self.config.semihosting.on:
            from pyv_npu.coupling.semihosting import semihosting

            self._semihosting = semihosting(self.config, program, self.hart, self.bus, self.console, exits)
            self.hart.semihosting = self._semihosting.call
        for text, serial in zip(self.config.platform.serial, self.inputs, strict=True):
            serial.send(boot.serial_input(text))
        self._arrivals = arrivals.install(self.config, program, self.bus)
        if self.npu.used or submit_functions(program):  # the probe traces these from their first instruction on
            self._follow()
        else:
            self.npu.on_use = self._follow
        self._machine = self._snapshots(program) if self.devices or self.instructions else None

    def _follow(self) -> None:
        """Create the latency probe of the loaded program, if it does not exist."""
        if self._probe is None and self.program is not None:
            from pyv_npu.observe.latency.probe import LatencyProbe  # most firmware does not use the NPU

            self._probe = LatencyProbe(self, self.program, self._arrivals, self._warmup)
            self._update_observed()
            if self.interrupts.external is not None:
                self._probe.external(*self.interrupts.external)

    # -- running -----------------------------------------------------------------------------------------------

    @property
    def cycle(self) -> int:
        """Current cycle of the hart, at its start."""
        return self.hart.cycle

    @property
    def latency(self) -> "LatencyProbe | None":
        """Latency probe of the loaded program; None without a program."""
        self._follow()
        self.clock.log.read()
        return self._probe

    def result(self) -> Latency:
        """Return the submissions of the run, after its end."""
        if self.program is None:
            raise UsageError("no latency yet: load a program and run it first")
        return Latency(None, 0, "first_store") if self._probe is None else self._probe.result()

    def completion_order(self) -> dict[int, tuple[int, int]]:
        """Return stream -> (number of complete commands, hash of the order of their completion)."""
        return {} if self._probe is None else self._probe.completion_order()

    def is_status(self, address: int) -> bool:
        """Check whether a command has asked for its status word at `address`."""
        return self._probe is not None and self._probe.is_status(address)

    def run(self, until: int | None = None) -> Stop:
        """Run to the end of the program, to cycle `until` of the hart, or to a limit of the configuration.

        Ctrl-C stops between two instructions with reason `interrupted`; a second Ctrl-C raises KeyboardInterrupt,
        possibly within an instruction.
        """
        if self.program is None:
            raise UsageError("nothing to run: load a program first")
        settings = self.config.run
        limit = min(NEVER if until is None else until, settings.max_cycles or NEVER)
        deadline = None if settings.timeout is None else time.monotonic() + settings.timeout
        cycles = UNTIMED if deadline is None else SLICE
        self.clock.changed(self.clock.now)  # the host may have fed a device since the last run
        stop: Stop | None = None
        with ctrl_c.caught(lambda: self.engine.stop(Stop(StopReason.INTERRUPTED))):
            while stop is None:
                quantum = cycles if self.lines is None else min(cycles, self.lines.cycles)
                stop = self.engine.run(min(limit, self.hart.cycle + quantum))
                if self.injection is not None and stop is self.injection.between_instructions:
                    self.injection.between()
                    stop = None
                if self.lines is not None and (stop is None or stop.reason is StopReason.DEADLOCK):
                    stop = self.lines.exchange(stop, None if deadline is None else deadline - time.monotonic())
                if stop is None and self.hart.cycle >= limit:
                    stop = Stop(StopReason.LIMIT, text=f"cycle limit {limit} reached at pc {self.hart.pc:#010x}")
                elif stop is None and deadline is not None and time.monotonic() >= deadline:
                    stop = Stop(StopReason.TIMEOUT, text=f"{settings.timeout} s are over at pc {self.hart.pc:#010x}")
        if stop.reason is StopReason.INTERRUPTED:
            stop = stop._replace(text=f"interrupted at pc {self.hart.pc:#010x}")
        self.clock.advance(self.hart.cycle)
        self.events.flush()
        if stop.reason in _OVER:
            self.deliver()
        return stop

    def deliver(self) -> None:
        """Deliver retired stores to their devices after the end of the run, such as the last characters to the UART.
        Neither the hart nor the reason of the stop changes."""
        arrived, stopping = self.clock.machine.drained, self.engine.stopping
        if arrived > self.clock.now:
            self.clock.advance(arrived)
            self.clock.show_output()
            self.engine.stopping = stopping
            self.events.flush()
        if self._semihosting is not None:
            self._semihosting.finish()

    def step(self) -> Stop | None:
        """Execute an instruction or trap."""
        return self.engine.step()

    def inject(self, *faults: "Fault | Mapping[str, Any]") -> "Injection":
        """Arm these faults, in place of all others; a mapping has the keys and values of a file of faults.

        The result records the firings (`armed`). BadInputError for an invalid fault, UsageError before a program is
        loaded.
        """
        from pyv_npu.faults.injection import Injection
        from pyv_npu.faults.plan import Fault, make_fault

        if self.program is None:
            raise UsageError("nothing to inject faults into: load a program first")
        plan = [fault if isinstance(fault, Fault) else make_fault(fault) for fault in faults]
        if self.injection is None:
            self.injection = Injection(self, self.program)
            self.outputs.in_spm = {}
        self.injection.arm(plan)
        return self.injection

    # -- snapshots ---------------------------------------------------------------------------------------------

    def save(self, before: "Snapshot | None" = None) -> "Snapshot":
        """Return a snapshot of the whole machine, for this or another process; it shares unchanged pages with `before`.

        UsageError for a device or instruction whose state cannot be stored, see `pyv_ext.protocols.Stateful`.
        """
        if self.program is None:
            raise UsageError("nothing to save: load a program first")
        if self.external is not None and (name := self.external.cannot_save) is not None:
            raise UsageError(
                f"no snapshot at CA_FULL: engine outside {name} does not say in HELLO that it can save; let it answer "
                "SAVE and LOAD (pyv-npu docs co-simulation-link), or save at CA_HYBRID"
            )
        if self.injection is not None and self.injection.armed:
            raise UsageError("no snapshot of a run with injected faults: save it before they are injected")
        if self.config.npu.dram.size > mm.DRAM_CORE_VISIBLE:
            raise UsageError(
                f"npu.dram.size {self.config.npu.dram.size}: a snapshot holds what the core sees, "
                f"{mm.DRAM_CORE_VISIBLE} bytes: make it smaller"
            )
        return self._snapshots(self.program).save(self.cycle, before)

    def restore(self, snapshot: "Snapshot") -> None:
        """Restore `snapshot`, taken from a platform with the same configuration, program and arguments.

        BadInputError for a snapshot of another platform.
        """
        if self.program is None:
            raise UsageError("nothing to restore: load the program of the snapshot first")
        self._snapshots(self.program).restore(snapshot)
        if self.sanitizer is not None:
            self.sanitizer.restored()

    def is_at(self, snapshot: "Snapshot") -> bool:
        """Check whether the platform is in the state of `snapshot`, which it took itself, so that the rest of the run
        is the same. The latency probe and `outputs` may differ: apart from `is_status`, they only report.
        """
        if self.program is None:
            raise UsageError("no state yet: load a program first")
        return self._snapshots(self.program).is_at(snapshot, self.cycle, ("latency", "outputs"))

    def _snapshots(self, program: Program) -> "Machine":
        from pyv_npu.snapshot.machine import Machine  # most runs take no snapshot

        rams = [*self.bus.rams, *([] if self._kv is None else [self._kv])]
        self._machine = self._machine or Machine(
            self.config, program, self._parts(), rams, self.events, values=self._computes
        )
        return self._machine

    def _parts(self) -> dict[str, Stateful]:
        """Return all parts of a snapshot in the order of restoring: the clock after the devices, which it reads, the
        latency probe after bus and engine."""
        parts: dict[str, Stateful] = {
            "hart": self.hart,
            "bus": self.bus,
            "console": self.console,
            "uart": self.uart,
            **({"console1": self.uarts[1].console, "uart1": self.uarts[1]} if self.uarts[1:] else {}),
            "clint": self.clint,
            "plic": self.plic,
            "npu": self.npu,
            "outputs": self.outputs,
            "interrupts": self.interrupts,
        }
        last: dict[str, Stateful | None] = {
            **{f"serial{number}": serial for number, serial in enumerate(self.inputs)},
            "htif": self._htif,
            "semihosting": self._semihosting,
            "clock": self.clock,
            "coherence": self.coherence,
            "engine": self.engine,
            "latency": self.latency,
        }
        wiring: list[object] = [self, *parts.values(), *(part for part in last.values() if part is not None)]
        wiring += [self.finisher, self.events, self.npu_memory, self.isa, *self.bus.rams]
        wiring += [placed.device for placed in self.devices]
        users: dict[str, Stateful] = {}
        if self.devices or self.instructions:
            from pyv_npu.snapshot.devices import parts_of  # imports NumPy, which most snapshots do not need

            users = parts_of([placed.device for placed in self.devices], self.instructions, wiring)
        return parts | users | {name: part for name, part in last.items() if part is not None}

    # -- callbacks of parts --------------------------------------------------------------------------------------

    def _exit(self, code: int) -> None:
        self.engine.stop(Stop(StopReason.EXIT, code, f"exit code {code}"))

    def _reset(self) -> None:
        self.engine.stop(Stop(StopReason.EXIT, 0, "reset requested"))

    def observe_custom(self, observer: Callable[[str, Operands, Outcome], None]) -> None:
        """Call `observer(name, operands, outcome)` after each answer of the NPU to a custom instruction, or stall."""
        self._custom_observers.append(observer)
        self._update_observed()

    def unobserve_custom(self, observer: Callable[[str, Operands, Outcome], None]) -> None:
        """Remove an observer."""
        self._custom_observers.remove(observer)
        self._update_observed()

    def _update_observed(self) -> None:
        """Let native code submit without Python if the only observer is the probe, which reads the core log."""
        observers = self.traffic, self.sanitizer, *self._custom_observers
        observed = self._probe is None or any(observer is not None for observer in observers)
        self.clock.machine.submission.observed = observed

    def _observe_custom(self, name: str, operands: Operands, outcome: Outcome) -> None:
        if self.traffic is not None and name == "ENQCMD_T":
            self.traffic.submitted(operands, outcome)
        if self._probe is not None:
            self._probe.custom(name, operands, outcome)
        if self.sanitizer is not None:
            self.sanitizer.boundary.custom(name, operands, outcome)
        for observer in self._custom_observers:
            observer(name, operands, outcome)

    def _observe_csr_write(self, address: int, now: int) -> None:
        if self.sanitizer is not None:
            self.sanitizer.boundary.csr_written(address, now)

    def _observe_csr(self, address: int, value: int, now: int) -> None:
        if self._probe is not None:
            self._probe.csr_read(address, value, now)
        if self.sanitizer is not None:
            self.sanitizer.boundary.csr_read(address, value, now)


def check_engine(config: Config) -> None:
    """Raise UsageError at CA_FULL without an external engine."""
    if config.run.sim_level == "CA_FULL" and not config.npu.te.external.engine:
        raise UsageError(f"sim_level CA_FULL: {NOT_CONNECTED}")


def sized_for(config: NpuConfig, dram_bytes: int) -> NpuConfig:
    """Return the configuration with DRAM of at least `dram_bytes`, the requirement of an image."""
    if dram_bytes <= config.dram.size:
        return config
    return replace(config, dram=replace(config.dram, size=-(-dram_bytes // 4096) * 4096))
