"""Parameters of the NPU: default, unit, rule and source; the rules between keys.

Each leaf's metadata has `meaning`, `unit`, `source` and its rule: `min`, `max`, `choices` or `power_of_two`. `check`
rejects a configuration that breaks a rule. `scripts/generate` writes docs/npu-parameters.md from the metadata.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

from npu_device.abi import memory_map as mm
from npu_device.abi.errors import NpuDeviceError
from npu_device.dram_devices import DEVICES, MAPPINGS, PARAMETERS, DramTiming

MACHINE = 'pyv-npu docs npu-timing "Default machine"'
CHOSEN = "chosen by us"
INTERFACE = "pyv-npu docs interface"
MEMORY_MAP = 'pyv-npu docs interface "Memory map"'
REGISTERS = 'pyv-npu docs interface "NPU registers"'
TICKETS = 'pyv-npu docs interface "Tickets"'
LEVELS = 'pyv-npu docs npu-timing "Levels"'
SCHEDULER = 'pyv-npu docs npu-timing "Scheduler"'
TRANSFERS = 'pyv-npu docs npu-timing "Transfers"'
DRAM = 'pyv-npu docs npu-timing "Timed DRAM"'
NOC = 'pyv-npu docs npu-timing "NoC"'
L2 = 'pyv-npu docs npu-timing "L2"'
ENGINES = 'pyv-npu docs npu-timing "Engines"'
LIMITS = 'pyv-npu docs interface "Limits"'
CHAINED = "pyv-npu docs chained-ve"
OAKEN = "pyv-npu docs oaken"
LINK = "pyv-npu docs co-simulation-link"
CLOCK = 'pyv-npu docs npu-timing "Clock"'
SCALE_SIM = "SCALE-Sim v3; its paper, arXiv 1811.02883"
RATES, PACKING = "pyv-npu docs bit-widths, R9", "pyv-npu docs bit-widths, R3"
UNLIMITED = "none: no limit"
WIDTHS = (2, 4, 8, 16, 32)
"""Bits of elements, in the order of the tables of rates."""
SPEED = (16, 8, 4, 2, 1)
"""Default table of rates: half the bits, twice the rate."""
_F = "operations per cycle at 2, 4, 8, 16 and 32 bits, relative to those at 8:"
_UNPACK = "cycles of the port in which an operand of packed elements is read, relative to its bytes:"

_MOST = {
    "core cycles": 1 << 32,
    "NPU cycles": 1 << 32,
    "DRAM cycles": 1 << 24,
    "bytes per second": 1 << 50,
    "products": 1 << 62,
}
"""Default maximum of a key by unit, so that sums over a run remain below 2^63."""


def _key(default: Any, meaning: str, unit: str = "", source: str = CHOSEN, **rule: Any) -> Any:
    if "min" in rule:
        rule.setdefault("max", _MOST.get(unit, 1 << 40))
    return field(default=default, metadata={"meaning": meaning, "unit": unit, "source": source, **rule})


MAX_DRAM_CHANNELS = 32
MAX_DRAM_QUEUE = 64
"""Maximum number of row segments in the queue of a DRAM channel."""
MAX_DRAM_BANKS = 128
"""Maximum number of banks of a DRAM channel."""
MAX_CLOCK_PART = 1 << 20
"""Maximum numerator and denominator of DRAM cycles per core cycle, so that products with cycles remain below 2^63."""
MOST_QUEUED = 65536
"""Maximum number of commands in a queue."""


@dataclass(frozen=True)
class QueueConfig:
    """Submission queues. The device queue has `command_size` entries in both modes; in loose mode a ring of `size`
    entries in memory feeds it. `tight_size` overrides it in tight mode."""

    size: int = _key(1024, "ring entries, loose mode", "commands", MACHINE, min=2, max=MOST_QUEUED, power_of_two=True)
    command_size: int = _key(16, "device queue", "commands", min=1, max=MOST_QUEUED)
    tight_size: int | None = _key(None, "device queue in tight mode; none: queue.command_size", "commands", min=1,
                                  max=MOST_QUEUED)  # fmt: skip
    full_policy: str = _key("retry", "reset value of CTRL[5:4]", source=REGISTERS,
                            choices=("retry", "stall", "trap", "drop"))  # fmt: skip
    history: int = _key(65536, "completed tickets whose state is kept", "tickets", TICKETS, min=1)


@dataclass(frozen=True)
class FrontEndConfig:
    """Delays of a submission inside the device; the values come from the timing preset."""

    fetch_loose: int = _key(0, "fetch of the 64 bytes from the ring", "core cycles", min=0)
    fetch_tight: int = _key(0, "fetch of the 64 bytes that ENQCMD_T names", "core cycles", min=0)
    validate: int = _key(0, "validation of a descriptor", "core cycles", min=0)


@dataclass(frozen=True)
class ChainedConfig:
    """Chain of vector engines, which forms a tensor engine of kind `chained_ve`."""

    T: int = _key(8, "engines of a chain, each with a channel to read", "engines", CHAINED, min=1, max=256)
    lanes: int = _key(16, "elements of one engine per cycle", "lanes", CHAINED, min=1, max=4096)
    channel_bytes: int = _key(32, "rate of one channel", "bytes per NPU cycle", CHAINED, min=1, max=4096)
    lat: int = _key(16, "latency of a read", "NPU cycles", CHAINED, min=0, max=65536)
    restart: int = _key(2, "from one tile to the next", "NPU cycles", CHAINED, min=0, max=65536)
    mask_skip: str = _key("dataflow", "what masks save: nothing, tiles that are wholly masked, or all masked pairs",
                          source=CHAINED, choices=("none", "tile", "dataflow"))  # fmt: skip
    double_buffer: bool = _key(True, "whether engines have buffers for the queries of the other direction",
                               source=CHAINED)  # fmt: skip


@dataclass(frozen=True)
class ExternalConfig:
    """External engine that replaces tensor engines at CA_FULL."""

    engine: tuple[str, ...] = _key((), "engine outside: a folder that build-engine made, a program and its arguments, "
                                   "or unix:PATH or tcp:HOST:PORT", source=LINK, section_value=True)  # fmt: skip
    units: tuple[int, ...] = _key((), "which engines of a cluster are outside; empty: all", "engines", LINK, min=0,
                                  max=15)  # fmt: skip
    check: bool = _key(True, "whether the first result that differs from the numpy kernels ends the run; off: the "
                       "engine's results are those of the run", source=LINK)  # fmt: skip
    grant: int | None = _key(None, "that the engine is granted at a time; none: up to the end of its step",
                             "NPU cycles", LINK, min=1)  # fmt: skip
    limit: int = _key(1 << 24, "after which a step without an end is a fault of the engine", "NPU cycles", LINK, min=1)
    trace: str = _key("", "file for the engine's waveform, in core cycles; empty: none. --trace vcd: engine.vcd of the "
                      "report", source=LINK)  # fmt: skip
    timeout: int = _key(10, "after which an engine that does not answer is at fault", "seconds", LINK, min=1,
                        max=86400)  # fmt: skip


@dataclass(frozen=True)
class TeConfig:
    """Tensor engines of a cluster."""

    count: int = _key(2, "tensor engines of a cluster; affinity can name 15", "engines", MACHINE, min=1, max=16)
    kind: str = _key("roofline", "timing rule of the engine", source=ENGINES,
                     choices=("roofline", "systolic_os", "systolic_ws", "systolic_is", "systolic_ws_pipe",
                              "chained_ve"))  # fmt: skip
    form: str = _key("v3", "closed form of the systolic kinds: SCALE-Sim v3's, its paper's, or (systolic_os) that of "
                     "the engine rtl", source=SCALE_SIM, choices=("v3", "paper", "rtl"))  # fmt: skip
    rows: int = _key(64, "rows of the array", "processing elements", min=1)
    columns: int = _key(64, "columns of the array", "processing elements", min=1)
    fill: int = _key(0, "fill and drain cycles of one command (roofline)", "NPU cycles", min=0)
    speed: str = _key("by_bits", "whether narrow elements run faster (roofline): f_w and f_a, or all as 8 bits",
                      source="pyv-npu docs bit-widths, R9", choices=("by_bits", "flat"))  # fmt: skip
    conv_lowering: str = _key("im2col", "how CONV2D_T becomes matrix products: one, or one per kernel position",
                              source=ENGINES, choices=("im2col", "kernel_position"))  # fmt: skip
    acc_bytes: int = _key(131072, "accumulator of one engine", "bytes", min=0)
    f_w: tuple[int, int, int, int, int] = _key(SPEED, f"{_F} of in1 (roofline)", source=RATES, min=1, max=65536)
    f_a: tuple[int, int, int, int, int] = _key(SPEED, f"{_F} of in0 (roofline)", source=RATES, min=1, max=65536)
    unpack_int4: int = _key(1, f"{_UNPACK} 4 bits", "times", PACKING, min=1, max=64)
    unpack_int2: int = _key(1, f"{_UNPACK} 2 bits", "times", PACKING, min=1, max=64)
    ideal: bool = _key(False, "computation takes no time, for studies of transfers")
    chained: ChainedConfig = field(default_factory=ChainedConfig)
    external: ExternalConfig = field(default_factory=ExternalConfig)


@dataclass(frozen=True)
class VeOperations:
    """Operations of the vector engine per element. POOL has one per element of its window."""

    eltwise: int = _key(1, "ELTWISE, casts and requantization among them", "operations", ENGINES, min=1, max=1024)
    layernorm: int = _key(6, "LAYERNORM", "operations", ENGINES, min=1, max=1024)
    rms: int = _key(4, "LAYERNORM with function RMS", "operations", ENGINES, min=1, max=1024)
    softmax: int = _key(6, "SOFTMAX, also of attention", "operations", ENGINES, min=1, max=1024)
    gelu: int = _key(8, "GELU", "operations", ENGINES, min=1, max=1024)
    reduce: int = _key(1, "REDUCE, per element that is read", "operations", ENGINES, min=1, max=1024)
    rope: int = _key(3, "ROPE", "operations", ENGINES, min=1, max=1024)
    copy: int = _key(1, "COPY", "operations", min=1, max=1024)


@dataclass(frozen=True)
class VeConfig:
    """Vector engines of a cluster."""

    count: int = _key(4, "vector engines of a cluster", "engines", MACHINE, min=1, max=4)
    lanes: int = _key(64, "elements of 8 bits per cycle", "lanes", min=1)
    latency: int = _key(16, "start-up of one command", "NPU cycles", min=0)
    speed: str = _key("by_bits", "whether wide elements run slower: f_a, or all as 8 bits",
                      source="pyv-npu docs bit-widths, R9", choices=("by_bits", "flat"))  # fmt: skip
    f_a: tuple[int, int, int, int, int] = _key(SPEED, f"{_F}", source=RATES, min=1, max=65536)
    unpack_int4: int = _key(1, f"{_UNPACK} 4 bits", "times", PACKING, min=1, max=64)
    unpack_int2: int = _key(1, f"{_UNPACK} 2 bits", "times", PACKING, min=1, max=64)
    operations: VeOperations = field(default_factory=VeOperations)
    ideal: bool = _key(False, "computation takes no time, for studies of transfers")


@dataclass(frozen=True)
class SpmConfig:
    """Scratchpad of a cluster and its banks."""

    size: int = _key(mm.SPM_SIZE, "scratchpad of a cluster", "bytes", MACHINE, min=4096, max=mm.SPM_MAX_SIZE)
    banks: int = _key(8, "banks of a cluster", "banks", MACHINE, min=1, max=64)
    port: int | None = _key(64, f"what a port of a bank moves; {UNLIMITED}", "bytes per core cycle", min=1)
    ports: str = _key("1rw", "ports of a bank: one for both, or one to read and one to write", choices=("1rw", "1r1w"))
    interleave: str = _key("block", "consecutive addresses: a bank at a time, or the next bank every 64 bytes",
                           choices=("block", "64B"))  # fmt: skip


@dataclass(frozen=True)
class DmaConfig:
    """DMA channels of a cluster."""

    channels: int = _key(2, "channels of a cluster; the first 32 of all clusters have counters", "channels", MACHINE,
                         min=1, max=16)  # fmt: skip
    bytes_per_cycle: int | None = _key(128, f"rate of one channel; {UNLIMITED}", "bytes per NPU cycle", min=1)
    bus_width_bytes: int = _key(128, "one burst", "bytes", min=1, power_of_two=True)
    alignment: int = _key(64, "DRAM accesses are widened to this", "bytes", "pyv-npu docs bit-widths, R5", min=1,
                          power_of_two=True)  # fmt: skip
    partial_write: str = _key("masked", "a write to a part of an aligned line: masked, or the line is read first",
                              source="pyv-npu docs bit-widths, R21", choices=("masked", "rmw"))  # fmt: skip
    vq_elements_per_cycle: int = _key(64, "weights of a codebook that a channel expands", "elements per NPU cycle",
                                      'pyv-npu docs quantization "Vector quantization"', min=1)  # fmt: skip
    buffering: str = _key("full", "buffers of a macro command: two for operands and results, one for operands, none",
                          source=LEVELS, choices=("full", "out", "none"))  # fmt: skip
    share: str = _key("fair", "what transfers get of DRAM and NoC: equal parts, or the oldest all that it can take",
                      source=TRANSFERS, choices=("fair", "oldest"))  # fmt: skip
    outstanding: int = _key(1, "outstanding transfers of a DMA channel: latencies overlap, data moves in order",
                            "transfers", TRANSFERS, min=1, max=64)  # fmt: skip
    order: str = _key("fifo", "which transfer a channel takes next", source=TRANSFERS, choices=("fifo",))
    direction: str = _key("shared", "transfers of macro commands: any channel, or channel 0 reads and 1 writes",
                          choices=("shared", "split"))  # fmt: skip


def _of_device(name: str) -> Any:
    """Return the key for a parameter of a DRAM device."""
    rule = dict(PARAMETERS[name])
    return _key(None, f"{rule.pop('meaning')}; none: that of the device", rule.pop("unit"), DRAM, **rule)


@dataclass(frozen=True)
class TimedDramConfig:
    """DRAM channel with individual DRAM commands, for `dram.model: timed`."""

    device: str = _key("ddr4-3200", "device of each channel, whose numbers hold where no other is set", source=DRAM,
                       choices=tuple(DEVICES))  # fmt: skip
    page: str = _key("open", "whether a row stays open after a row segment", source=DRAM, choices=("open", "closed"))
    mapping: str = _key(MAPPINGS[1], "address bits of a channel, from high to low", source=DRAM, choices=MAPPINGS)
    hash: str = _key("xor", "whether higher address bits are folded into those of channels, bank groups and banks",
                     source=DRAM, choices=("none", "xor"))  # fmt: skip
    queue: int = _key(16, "row segments that a channel's queue holds", "segments", min=1, max=MAX_DRAM_QUEUE)
    passes: int = _key(16, "times that the oldest row segment of a queue is passed over for open rows at most", "times",
                       min=0)  # fmt: skip
    controller: int = _key(20, "of a controller and its PHY, for the way there and back", "NPU cycles", min=0)
    clock_hz: int | None = _of_device("clock_hz")
    burst_bytes: int | None = _of_device("burst_bytes")
    row_bytes: int | None = _of_device("row_bytes")
    ranks: int | None = _of_device("ranks")
    groups: int | None = _of_device("groups")
    banks: int | None = _of_device("banks")
    burst: int | None = _of_device("burst")
    cl: int | None = _of_device("cl")
    cwl: int | None = _of_device("cwl")
    rcd: int | None = _of_device("rcd")
    rp: int | None = _of_device("rp")
    ras: int | None = _of_device("ras")
    rrd_s: int | None = _of_device("rrd_s")
    rrd_l: int | None = _of_device("rrd_l")
    faw: int | None = _of_device("faw")
    ccd_s: int | None = _of_device("ccd_s")
    ccd_l: int | None = _of_device("ccd_l")
    wtr_s: int | None = _of_device("wtr_s")
    wtr_l: int | None = _of_device("wtr_l")
    rtw: int | None = _of_device("rtw")
    rtp: int | None = _of_device("rtp")
    wr: int | None = _of_device("wr")
    rank_gap: int | None = _of_device("rank_gap")
    refi: int | None = _of_device("refi")
    rfc: int | None = _of_device("rfc")

    @property
    def timing(self) -> DramTiming:
        """Parameters of the device, overridden by the keys that are set."""
        values = {name: getattr(self, name) for name in PARAMETERS}
        keys = {name: value for name, value in values.items() if value is not None}
        return replace(DEVICES[self.device].timing, **keys)


@dataclass(frozen=True)
class DramConfig:
    """DRAM and its channels."""

    size: int = _key(mm.DRAM_SIZE, "DRAM", "bytes", MEMORY_MAP, min=4096)
    model: str = _key("simple", "simple: latency and bandwidth; timed: commands to banks, by the keys of dram.timed",
                      source=DRAM, choices=("simple", "timed"))  # fmt: skip
    latency: int = _key(120, "of one transfer, with dram.model simple", "NPU cycles", min=0)
    bytes_per_second: int | None = _key(102_400_000_000, f"bandwidth, with dram.model simple; {UNLIMITED}",
                                        "bytes per second", MACHINE, min=1)  # fmt: skip
    channels: int = _key(1, "channels, each with its part of the bandwidth; timed: each with that of a device",
                         "channels", min=1, max=MAX_DRAM_CHANNELS, power_of_two=True)  # fmt: skip
    interleave: int = _key(4096, "consecutive bytes on a channel before the next one follows", "bytes",
                           min=64, max=1 << 20, power_of_two=True)  # fmt: skip
    core_traffic: str = _key("none", "which data accesses of the core to DRAM take bandwidth from transfers",
                             source=TRANSFERS, choices=("none", "accesses"))  # fmt: skip
    core_bytes: int = _key(64, "that an access of the core moves", "bytes", min=1)
    row_model: str = _key("none", "whether opening a row costs time, with dram.model simple", source=TRANSFERS,
                          choices=("none", "open"))  # fmt: skip
    row_bytes: int = _key(2048, "row of a DRAM bank", "bytes", min=64, power_of_two=True)
    row_banks: int = _key(16, "banks of a DRAM channel, rows in turn", "banks", min=1, max=64)
    row_cycles: int = _key(36, "of a transfer whose first row is closed", "NPU cycles", min=0)
    timed: TimedDramConfig = field(default_factory=TimedDramConfig)

    @property
    def rate(self) -> int | None:
        """Bytes per second of all channels; None for no limit."""
        return self.bytes_per_second if self.model == "simple" else self.channels * self.timed.timing.bytes_per_second


@dataclass(frozen=True)
class L2Config:
    """Cache between NoC and DRAM, for all clusters."""

    enabled: bool = _key(False, "whether there is an L2 between NoC and DRAM", source=L2)
    bytes: int = _key(1 << 20, "L2", "bytes", min=64, max=1 << 26)
    ways: int = _key(16, "lines of a set", "lines", min=1, max=64)
    line: int = _key(64, "line of the L2", "bytes", min=16, max=4096, power_of_two=True)
    hit: int = _key(20, "of looking into the L2, before the first byte", "NPU cycles", min=0)
    write_back: bool = _key(True, "whether writes stay in the L2 until their line is evicted; else they bypass it",
                            source=L2)  # fmt: skip
    bypass_bytes: int = _key(65536, "transfers of at least so many bypass the L2", "bytes", min=0)
    coherence: str = _key("io_coherent", "whether core and NPU see what the other has written: after a flush, or "
                          "always", source=L2, choices=("none", "io_coherent"))  # fmt: skip
    snoop: int = _key(10, "that io_coherent adds to each transfer", "NPU cycles", min=0)


@dataclass(frozen=True)
class NocConfig:
    """Network between clusters and DRAM."""

    latency: int = _key(8, "of one transfer", "NPU cycles", min=0)
    bytes_per_second: int | None = _key(256_000_000_000, f"bandwidth of each link; {UNLIMITED}", "bytes per second",
                                        MACHINE, min=1)  # fmt: skip
    topology: str = _key("link", "one link for all clusters, one for each, or a mesh with memory at its west edge",
                         source=NOC, choices=("link", "crossbar", "mesh"))  # fmt: skip
    hop_latency: int = _key(2, "of each link of a mesh, besides noc.latency", "NPU cycles", min=0)


@dataclass(frozen=True)
class SchedulerConfig:
    """Choice among ready commands."""

    policy: str = _key("cp", "which ready command starts first", source=SCHEDULER,
                       choices=("fifo", "prio", "cp"))  # fmt: skip
    window: int = _key(16, "oldest commands that are looked at", "commands", min=1)


@dataclass(frozen=True)
class LimitsConfig:
    """Limits of a command, which bound the time and memory of its simulation on the host."""

    tiles: int = _key(1 << 19, "hardware tiles, or parts of them, of a command", "tiles", LIMITS, min=1)
    runs: int = _key(1 << 16, "runs of bytes that a COPY stores one by one", "runs", LIMITS, min=1)
    products: int = _key(1 << 42, "multiplications of a product, convolution or attention", "products", LIMITS,
                         min=1)  # fmt: skip
    operations: int = _key(1 << 36, "operations on elements of a vector command", "operations", LIMITS, min=1)
    pad_bytes: int = _key(1 << 28, "pads of the images of a convolution or pooling", "bytes", LIMITS, min=1)


@dataclass(frozen=True)
class KvQuantConfig:
    """Encoded keys and values, and the engines of the DMA that encode and decode them."""

    scales: str = _key("token", "scales of integers of ONNX decoders: of each head and token, made when it is "
                       "appended, or of each head, from the prompt", source=OAKEN,
                       choices=("token", "head"))  # fmt: skip
    outer_permille: int = _key(40, "share of outer elements that thresholds are profiled for", "permille", OAKEN,
                               min=0, max=999)  # fmt: skip
    inner_permille: int = _key(60, "share of inner elements that thresholds are profiled for", "permille", OAKEN,
                               min=0, max=999)  # fmt: skip
    outlier_code: str = _key("msb_clamp", "how a code tells the side of an outlier", source=OAKEN,
                             choices=("msb_clamp", "sign_mag"))  # fmt: skip
    p_out_permille: int = _key(100, "share of outliers in runs without values", "permille", OAKEN, min=0, max=1000)
    page_bytes: int = _key(4096, "page of encoded keys and values", "bytes", OAKEN, min=64, max=1 << 20,
                           power_of_two=True)  # fmt: skip
    pool_pages: int | None = _key(None, "pages of all encoded keys and values; none: as many as DRAM has", "pages",
                                  OAKEN, min=1, max=1 << 32)  # fmt: skip
    write_combine: bool = _key(True, "whether appended entries and metadata fill whole accesses of DRAM before "
                               "these are made", source=OAKEN)  # fmt: skip
    w_q: int = _key(1, "elements that a quantization engine takes, in each of two passes", "elements per NPU cycle",
                    OAKEN, min=1, max=4096)  # fmt: skip
    w_dq: int = _key(64, "elements that a dequantization engine makes", "elements per NPU cycle", OAKEN, min=1,
                     max=4096)  # fmt: skip
    d_q: int = _key(8, "filling of a quantization engine, once a transfer", "NPU cycles", OAKEN, min=0, max=65536)
    d_dq: int = _key(8, "filling of a dequantization engine, once a transfer", "NPU cycles", OAKEN, min=0, max=65536)
    overlap: bool = _key(True, "whether engines work while a transfer moves bytes; else before or behind it",
                         source=OAKEN)  # fmt: skip


@dataclass(frozen=True)
class SubmitConfig:
    """Submission of a list without a core."""

    cost: int = _key(0, "between two commands of a list that is run without a core", "core cycles", LEVELS, min=0)


@dataclass(frozen=True)
class NpuConfig:
    """Complete device."""

    mode: str = _key("tight", "how firmware submits", source=INTERFACE, choices=("loose", "tight"))
    clusters: int = _key(1, "clusters", "clusters", MACHINE, min=1, max=mm.MAX_CLUSTERS)
    clock_hz: int = _key(1_200_000_000, "core clock, for bandwidths and reports", "Hz", MACHINE, min=1)
    clock_ratio: tuple[int, int] = _key((1, 1), "core cycles : NPU cycles", "ratio", CLOCK, min=1, max=65536)
    queue: QueueConfig = field(default_factory=QueueConfig)
    frontend: FrontEndConfig = field(default_factory=FrontEndConfig)
    submit: SubmitConfig = field(default_factory=SubmitConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    te: TeConfig = field(default_factory=TeConfig)
    ve: VeConfig = field(default_factory=VeConfig)
    spm: SpmConfig = field(default_factory=SpmConfig)
    dma: DmaConfig = field(default_factory=DmaConfig)
    dram: DramConfig = field(default_factory=DramConfig)
    l2: L2Config = field(default_factory=L2Config)
    noc: NocConfig = field(default_factory=NocConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    kv_quant: KvQuantConfig = field(default_factory=KvQuantConfig)

    @property
    def dram_latency(self) -> int:
        """NPU cycles of DRAM before the first byte of a transfer; for a timed DRAM, from an open row."""
        if self.dram.model == "simple":
            return self.dram.latency
        timing = self.dram.timed.timing
        npu_hz = self.clock_hz * self.clock_ratio[1]
        return self.dram.timed.controller + timing.cl * npu_hz // (timing.clock_hz * self.clock_ratio[0])

    @property
    def dram_clock(self) -> Fraction:
        """Cycles of the timed DRAM's clock per core cycle."""
        return Fraction(self.dram.timed.timing.clock_hz, self.clock_hz)

    @property
    def device_queue(self) -> int:
        """Capacity of the device queue, which has accepted commands that have not started."""
        queue = self.queue
        given = queue.tight_size if self.mode == "tight" else None
        return queue.command_size if given is None else given

    @property
    def queue_limit(self) -> int:
        """Number of entries at which a submission is rejected: of the ring (loose), of the device queue (tight)."""
        return self.device_queue if self.mode == "tight" else self.queue.size


def check(config: NpuConfig) -> None:
    """Raise NpuDeviceError with key, value and rule of the first problem."""
    for problem in _problems(config):
        raise NpuDeviceError(problem)


def _problems(config: NpuConfig) -> Iterator[str]:
    yield from _section(config, "")
    spm, dma = config.spm, config.dma
    unit = spm.banks * (64 if spm.interleave == "64B" else 1)
    if spm.size % unit:
        yield f"spm.size = {spm.size}: must be a multiple of {unit} for spm.banks = {spm.banks} by {spm.interleave}"
    dram = config.dram
    if dram.interleave < dma.alignment:
        yield (
            f"dram.interleave = {dram.interleave}: must be at least dma.alignment = {dma.alignment}, "
            "an access is on one channel"
        )
    if dram.model == "timed":
        yield from _timed_problems(config)
    l2 = config.l2
    if l2.enabled and l2.bytes % (l2.ways * l2.line):
        yield f"l2.bytes = {l2.bytes}: must be a multiple of l2.ways x l2.line = {l2.ways * l2.line}"
    if l2.enabled and not dma.alignment <= l2.line <= dram.interleave:
        yield (
            f"l2.line = {l2.line}: must be from dma.alignment = {dma.alignment} to "
            f"dram.interleave = {dram.interleave}, a line is made of whole accesses to one channel"
        )
    kv = config.kv_quant
    if kv.pool_pages is not None and kv.pool_pages * kv.page_bytes > dram.size:
        yield (
            f"kv_quant.pool_pages = {kv.pool_pages}: with kv_quant.page_bytes = {kv.page_bytes} must fit dram.size = "
            f"{dram.size}"
        )
    if kv.outer_permille + kv.inner_permille > 1000:
        yield (
            f"kv_quant.outer_permille = {kv.outer_permille}: with kv_quant.inner_permille = {kv.inner_permille} must "
            "be at most 1000, the rest is the middle group"
        )
    te = config.te
    if te.form == "rtl" and te.kind != "systolic_os":
        yield f"te.form = rtl: is the form of te.kind = systolic_os, and it is {te.kind}; choose v3 or paper"
    for unit in te.external.units:
        if unit >= te.count:
            yield f"te.external.units = {unit}: te.count = {te.count} engines count from 0 to {te.count - 1}"
    if dma.direction == "split" and dma.channels != 2:
        yield f"dma.channels = {dma.channels}: must be 2 with dma.direction = split, one reads and one writes"


def _timed_problems(config: NpuConfig) -> Iterator[str]:
    dram, timing = config.dram, config.dram.timed.timing
    banks = timing.ranks * timing.groups * timing.banks
    if banks > MAX_DRAM_BANKS:
        yield (
            f"dram.timed.banks = {timing.banks}: with ranks = {timing.ranks} and groups = {timing.groups} are {banks} "
            f"banks of a channel; choose at most {MAX_DRAM_BANKS}"
        )
    if not timing.burst_bytes <= min(timing.row_bytes, dram.interleave):
        yield (
            f"dram.timed.burst_bytes = {timing.burst_bytes}: must be at most dram.timed.row_bytes = {timing.row_bytes} "
            f"and dram.interleave = {dram.interleave}"
        )
    if 0 < timing.refi <= timing.rfc + timing.rp + timing.ras:
        yield (
            f"dram.timed.refi = {timing.refi}: must be 0 or more than rfc + rp + ras = "
            f"{timing.rfc + timing.rp + timing.ras}, or nothing moves between refreshes"
        )
    clock = config.dram_clock
    if max(clock.numerator, clock.denominator) > MAX_CLOCK_PART:
        yield (
            f"dram.timed.clock_hz = {timing.clock_hz}: is {clock} of clock_hz = {config.clock_hz}; choose clocks with "
            f"a ratio of numbers up to {MAX_CLOCK_PART}"
        )
    if config.dma.partial_write == "rmw":
        yield "dram.model = timed: masks partial writes; set dma.partial_write=masked, or dram.model=simple"


def _section(section: Any, prefix: str) -> Iterator[str]:
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            yield from _section(value, f"{prefix}{item.name}.")
        else:
            yield from (f"{prefix}{item.name} = {value}: {rule}" for rule in _broken(item, value))


def _broken(item: "Field[Any]", value: Any) -> Iterator[str]:
    rule = item.metadata
    if "choices" in rule and value not in rule["choices"]:
        yield f"must be one of {', '.join(rule['choices'])}"
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int):
            continue
        if number < rule.get("min", number):
            yield f"must be at least {rule['min']}"
        elif number > rule.get("max", number):
            yield f"must be at most {rule['max']}"
        elif rule.get("power_of_two") and number & (number - 1):
            yield "must be a power of two"
