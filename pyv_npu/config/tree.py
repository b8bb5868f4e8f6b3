"""Configuration of a run: a tree of frozen dataclasses, and the rules between its keys.

Each leaf's metadata holds `meaning`, `unit` (`address` prints in hexadecimal), `source` and its rule: `min`, `max`,
`choices`, `aliases`, `power_of_two`, `multiple_of`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from npu_device.config import NpuConfig
from pyv_ext.cores import DEFAULT_ENGINE, ENGINES
from pyv_ext.timing import CoreTiming
from pyv_npu.config import serial
from pyv_npu.config.package_data import data_files
from pyv_npu.errors import BadInputError

HART, ENGINE = 'pyv-npu docs core-timing "Hart"', 'pyv-npu docs core-timing "Engines"'
MEMORY_MAP = 'pyv-npu docs interface "Memory map"'
INSTRUCTIONS = 'pyv-npu docs interface "Custom instructions"'
SEMIHOSTING = "pyv-npu docs semihosting"
SERIAL = 'pyv-npu docs firmware "Console"'
FIRMWARE, RESULTS = "pyv-npu docs firmware", "pyv-npu docs results"
RELIABILITY = 'pyv-npu docs reliability "Sanitizers"'
MAPPING = 'pyv-npu docs mapping "Keys"'
ENERGY = "pyv-npu docs energy"
CHOSEN = "chosen by us"
MAX_TILE = (1 << 32) - 1

CUSTOM_INSTRUCTIONS = ("enqcmd", "twait", "tbar", "tstat")
SANITIZERS = ("boundary", "memory", "error")
SIM_LEVELS = {"L0": "IA", "L1": "IA_TIMING", "L2": "CA_HYBRID", "L3": "CA_FULL"}
"""Short name -> simulation level."""
CORE_LEVELS = ("CA_HYBRID", "CA_FULL")
"""Levels at which firmware runs."""
NOT_CONNECTED = (
    "needs an engine outside, and npu.te.external.engine is empty; "
    "`pyv-npu build-engine rtl -o DIR` builds one, --set npu.te.external=DIR takes it"
)
"""Reason why a configuration without external engine cannot run at CA_FULL."""


def _key(default: Any, meaning: str, unit: str = "", source: str = CHOSEN, **rule: Any) -> Any:
    metadata = {"meaning": meaning, "unit": unit, "source": source, **rule}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class CoreConfig:
    """The RISC-V core."""

    engine: str = _key(DEFAULT_ENGINE, "engine that executes the instructions", source=ENGINE, choices=tuple(ENGINES))
    isa: str = _key(
        "rv32imacu_zicsr_zifencei_zba_zbb_zbs_zicbom", "instruction set: misa, decoding and CSR masks follow it",
        source=HART,
    )  # fmt: skip
    missing_extensions: str = _key(
        "refuse", "a program with instructions of extensions that `isa` lacks is refused, or they trap",
        source=HART, choices=("refuse", "trap"),
    )  # fmt: skip
    misaligned: bool = _key(False, "misaligned accesses to RAM are allowed instead of trapping", source=HART)
    reset_pc: int | None = _key(None, "first pc; none: the entry of the ELF", "address", MEMORY_MAP, min=0,
                                max=0xFFFF_FFFE, multiple_of=2)  # fmt: skip
    custom_slot: int = _key(
        0, "opcode slot of the NPU's instructions: custom-0..custom-3", "slot", INSTRUCTIONS, min=0, max=3
    )
    custom: tuple[str, ...] = _key(CUSTOM_INSTRUCTIONS, "custom instructions present in tight mode",
                                   source=INSTRUCTIONS, choices=CUSTOM_INSTRUCTIONS)  # fmt: skip
    tight_off: str = _key(
        "trap", "action of absent custom instructions: in loose mode all four, in tight mode those outside core.custom",
        source=INSTRUCTIONS, choices=("trap", "nop"),
    )  # fmt: skip
    fast_irq: bool = _key(
        False,
        "interrupts take timing.irq_fast instead of timing.irq",
        source='pyv-npu docs core-timing "Cost of an access"',
    )
    timing: CoreTiming = field(default_factory=CoreTiming)


@dataclass(frozen=True)
class ClintConfig:
    """The timer of the core."""

    divider: int = _key(120, "one tick of mtime", "core cycles", min=1)


@dataclass(frozen=True)
class PlatformConfig:
    """Memory map and interrupts outside the core and the NPU."""

    irq: str = _key("direct", "route of the NPU's interrupt: MEIP = line or PLIC output, or the PLIC's source 11 only",
                    source=MEMORY_MAP, choices=("direct", "plic"))  # fmt: skip
    serial: tuple[str, ...] = _key(
        (), f"lines of the UARTs to the host, {serial.FORMS}; a second entry adds a second UART", source=SERIAL
    )
    mmio_base: int = _key(0x4000_0000, "NPU registers, a window of 64 KiB", "address", MEMORY_MAP, min=0,
                          max=0xFFFF_0000, multiple_of=0x1_0000)  # fmt: skip


@dataclass(frozen=True)
class SemihostingConfig:
    """Semihosting services of a program besides its exit; off unless `console` or `folder` is set."""

    console: bool = _key(False, "console, clock and command line of the host are there", source=SEMIHOSTING)
    folder: str | None = _key(None, "folder whose files programs may open; with it, the console is there too",
                              source=SEMIHOSTING)  # fmt: skip
    command_line: str = _key("", "what programs are told as their command line", source=SEMIHOSTING)
    input: str | None = _key(None, "file whose bytes can be read from the console", source=SEMIHOSTING)
    time: int = _key(0, "second since 1970 in which the run begins, for SYS_TIME", "s", source=SEMIHOSTING, min=0,
                     max=0xFFFF_FFFF)  # fmt: skip

    @property
    def on(self) -> bool:
        return self.console or self.folder is not None


@dataclass(frozen=True)
class DriverConfig:
    """Options of the NPU driver."""

    tail_write: bool = _key(
        False, "the driver also writes QUEUE_TAIL before the doorbell", source='pyv-npu docs interface "NPU registers"'
    )
    timeout: int = _key(
        0,
        "without progress for so long, the driver looks for what was lost; 0: it waits for ever; with --faults: 10000",
        "core cycles",
        "pyv-npu docs reliability",
        min=0,
        max=1 << 30,
    )


@dataclass(frozen=True)
class LoadConfig:
    """Open-loop load, for programs that serve `npu_arrivals`; its random numbers come from run.seed."""

    arrivals: str = _key("none", "when work arrives: never, every interval, by a Poisson process, by one with "
                         "bursts, or as in load.file", source='pyv-npu docs latency "Load"',
                         choices=("none", "periodic", "poisson", "mmpp", "recorded"))  # fmt: skip
    burst_ratio: int = _key(10, "mmpp: how many times as often work arrives in a burst", "ratio", min=1, max=10_000)
    burst_percent: int = _key(10, "mmpp: share of the time that is burst", "percent", min=1, max=99)
    burst_cycles: int = _key(10_000, "mmpp: mean length of a burst", "core cycles", min=1)
    file: str = _key("", "recorded: file with the cycle of each arrival, one a line, ascending",
                     source='pyv-npu docs latency "Load"')  # fmt: skip
    interval: int = _key(1000, "from one arrival to the next, the mean for poisson and mmpp", "core cycles", min=1)
    group: int = _key(1, "how many arrive together", "submissions", min=1)
    count: int = _key(1000, "how many arrive", "submissions", min=1)


@dataclass(frozen=True)
class CompilerConfig:
    """Mapping of a model's products (GEMM_T, CONV2D_T) to the device."""

    tile: str = _key("auto", "tile of a product, at most: M x N x K as in 128x128x64, or one size for all three",
                     "elements", MAPPING)  # fmt: skip
    layers: Mapping[str, str] = _key({}, "tiles of single layers instead, by name", "elements", MAPPING)
    prefetch: int | None = _key(None, "tiles of a product that are loaded ahead; none: as many as help", "tiles",
                                MAPPING, min=0, max=15)  # fmt: skip
    mapper: str = _key("heuristic", "mapping of a product: the fastest by estimate, or the fastest of 16 that are "
                       "simulated", source=MAPPING, choices=("heuristic", "search"))  # fmt: skip
    objective: str = _key("cycles", "what a mapping is chosen for: time, energy by the table of energy.table, or their "
                          "product", source=MAPPING, choices=("cycles", "energy", "edp"))  # fmt: skip
    loop_order: str = _key("auto", "operand of a product that stays while tiles pass: the sums of a tile, or a tile of "
                           "weights; auto: whichever is estimated to be faster", source=MAPPING,
                           choices=("auto", "output", "weight"))  # fmt: skip
    residency: str = _key("auto", "operand of a product that stays in the scratchpad while a block of tiles passes; "
                          "auto: whichever is estimated to be faster, none with a tile or loop order that is given",
                          source=MAPPING, choices=("auto", "none", "inputs", "weights", "outputs"))  # fmt: skip


@dataclass(frozen=True)
class EnergyConfig:
    """Estimate of energy and area: counts of events times a table."""

    table: str = _key("7nm", "table of energy and area: a shipped one, 45nm or 7nm, or a YAML file", source=ENERGY)
    dram: str = _key("lpddr4", "standard of the DRAM, one of the table: ddr4, lpddr4, hbm2, gddr6", source=ENERGY)
    multiplier: str = _key("int8", "type of the multipliers of tensor engines, for their area", source=ENERGY,
                           choices=("int8", "fp8", "bf16", "fp16", "fp32"))  # fmt: skip


def tile_sizes(key: str, value: str) -> tuple[int, int, int] | None:
    """Parse M, N and K of a tile; None for `auto`. BadInputError names the key."""
    if value == "auto":
        return None
    parts = value.split("x")
    sizes = [int(part) if part.isascii() and part.isdecimal() and len(part) <= 10 else 0 for part in parts]
    if len(sizes) == 1:
        sizes *= 3
    if len(sizes) != 3 or not all(0 < size <= MAX_TILE for size in sizes):
        raise BadInputError(
            f"{key} = {value}: must be auto, MxNxK or one size for all three, of 1 to {MAX_TILE}, as in 128x128x64"
        )
    m, n, k = sizes
    return m, n, k


@dataclass(frozen=True)
class RunConfig:
    """The program of a run, its limits and its observers."""

    program: str = _key("", "firmware by name, or the path of an ELF", source=FIRMWARE)
    sim_level: str = _key(
        "CA_HYBRID",
        "simulation level",
        source='pyv-npu docs npu-timing "Levels"',
        choices=tuple(SIM_LEVELS.values()),
        aliases=SIM_LEVELS,
    )
    max_cycles: int | None = _key(None, "stop after this many", "core cycles", RESULTS, min=1)
    timeout: int | None = _key(None, "stop after this much time of the host", "seconds", RESULTS, min=1)
    seed: int = _key(1, "of every random table", min=0, max=0xFFFF_FFFF)
    sanitize: tuple[str, ...] = _key((), "look for errors of the firmware: at the boundary with the NPU, and in its "
                                     "memory; with error they are the exit code 71", source=RELIABILITY,
                                     choices=SANITIZERS)  # fmt: skip
    args: Mapping[str, int] = _key({}, "values that the firmware finds in npu_bootinfo", "32-bit words", FIRMWARE,
                                   min=-(1 << 31), max=0xFFFF_FFFF)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Complete configuration of a run. `Config()` alone has the timing of preset `pyv`; `load` starts from
    `soc-axi`."""

    preset: str = _key(
        "pyv", "timing preset that the values started from", source='pyv-npu docs latency "Timing presets"'
    )
    plugins: tuple[str, ...] = _key(
        (), "Python files with devices and instructions of one's own", source="pyv-npu docs extending"
    )
    core: CoreConfig = field(default_factory=CoreConfig)
    clint: ClintConfig = field(default_factory=ClintConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    npu: NpuConfig = field(default_factory=NpuConfig)
    semihosting: SemihostingConfig = field(default_factory=SemihostingConfig)
    driver: DriverConfig = field(default_factory=DriverConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    compiler: CompilerConfig = field(default_factory=CompilerConfig)
    energy: EnergyConfig = field(default_factory=EnergyConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def files(self) -> tuple[str, ...]:
        """Files that a run depends on, besides those of its workload."""
        tables = () if self.energy.table in data_files("energy_tables") else (self.energy.table,)
        return (*self.plugins, *tables)

    @property
    def custom_enabled(self) -> tuple[str, ...]:
        """Custom instructions that this run decodes: none in loose mode."""
        return self.core.custom if self.npu.mode == "tight" else ()


def check_together(config: Config) -> None:
    """Raise BadInputError when values contradict each other that are valid alone."""
    if config.run.sanitize and config.core.engine == "pyv":
        raise BadInputError("run.sanitize: looks at the accesses of the engines fast and reference; choose one of them")
    tile_sizes("compiler.tile", config.compiler.tile)
    for layer, tile in config.compiler.layers.items():
        if tile_sizes(f"compiler.layers.{layer}", tile) is None:
            raise BadInputError(f"compiler.layers.{layer} = auto: drop it, then the layer follows compiler.tile")
    spm = config.npu.spm
    if spm.size % spm.banks:
        raise BadInputError(
            f"npu.spm.size = {spm.size}: must be a multiple of npu.spm.banks = {spm.banks}; "
            f"nearest is {spm.size - spm.size % spm.banks}"
        )
    if spm.interleave == "64B" and spm.size % (64 * spm.banks):
        raise BadInputError(
            f"npu.spm.size = {spm.size}: must be a multiple of 64 x npu.spm.banks = {64 * spm.banks} with "
            f"npu.spm.interleave = 64B; nearest is {spm.size - spm.size % (64 * spm.banks)}"
        )
    serial.check(config.platform.serial)
    semihosting = config.semihosting
    idle = [name for name in ("input", "command_line", "time") if getattr(semihosting, name)]
    if idle and not semihosting.on:
        raise BadInputError(
            f"semihosting.{idle[0]} is set, and semihosting is off: set semihosting.console too, or semihosting.folder"
        )
    dma = config.npu.dma
    if dma.direction == "split" and dma.channels != 2:
        raise BadInputError(
            f"npu.dma.direction = split: needs npu.dma.channels = 2, one to read and one to write, "
            f"and there are {dma.channels}; set 2 or shared"
        )
