"""Built-in decoder models without weights: cycles, bytes and bounds of a prefill or of a token (docs/llm.md)."""

import gc
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from npu_device.abi.opcodes import BITS
from npu_device.config import NpuConfig
from npu_device.cost.durations import Rates
from npu_device.cost.tensor import gemm_rate, peak_macs
from npu_device.kv_quant.methods import FP16, METHODS
from npu_device.memory.bitwidth import bytes_total, ceil_div, expanded
from pyv_ext.elf import Program, parse_elf
from pyv_npu.boot import program_data
from pyv_npu.config import Config
from pyv_npu.config.shape_file import shape_of
from pyv_npu.config.tree import CORE_LEVELS
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.kv_quant import engines
from pyv_npu.result import Detail, Result, Stopwatch
from pyv_npu.sections import Facts, Section
from pyv_npu.units import number, quantity
from pyv_npu.workloads.compiled import listing, mapping_of, packed, seen_by_compiler, target_with
from pyv_npu.workloads.firmware import LEVEL, run_program
from pyv_npu.workloads.kv_figures import EncodedSize, KvTraffic, csv_of, kv_capacity, kv_figures
from pyv_npu.workloads.timing import run_commands
from pyv_npu.workloads.workload import PLAIN, SUBMITTING, PreparedWorkload, Session, Workload
from toolchain.codegen.commands import AUTOMATIC, MappingOptions
from toolchain.decoders.builtin import CompiledShape, compile_shape
from toolchain.decoders.generation import GENERATE
from toolchain.decoders.shapes import ACTIVATION, KV_BITS, LEARNED_OFFSET, Job
from toolchain.errors import ModelError, RuleError
from toolchain.program_image import ImagePiece, add_pieces
from toolchain.quantize.codebook import VQ_BITS
from toolchain.quantize.qconfig import FLOAT_BITS, GPTQ, QConfig

DRAM_BYTES = 256_000_000_000
"""DRAM of a built-in model, unless `npu.dram.size` is set."""


class Phase(StrEnum):
    """Phase of a conversation."""

    PREFILL = "prefill"
    DECODE = "decode"


class PhaseRequest(NamedTuple):
    """Phase of a built-in model, with its sizes."""

    name: str
    phase: Phase = Phase.DECODE
    context: int = 1024
    """DECODE: tokens in the caches before the generated token."""
    tokens: int = 512
    """PREFILL: tokens of the prompt."""
    requests: int = 1
    layers: int | None = None
    """Number of layers; None: all."""
    t_max: int | None = None
    """Capacity of the caches, tokens; None: as the phase needs."""
    weight_bits: int = 16
    """Bits of weights; VQ_BITS: vector quantization."""
    codebooks: int = 1
    """Number of codebooks per matrix in vector quantization."""
    kv_bits: int | Callable[[int, int], int] = KV_BITS
    """Width of all keys and values, or a function from (layer, KV head) to it."""
    passes: str = "all"
    granularity: str = "macro"
    """tile: attention, too, is lowered to tile commands, which are valid for the position of this phase only."""
    kv: str = ""
    """Method that stores keys and values: a name of `METHODS`; empty: as integers of `kv_bits`."""
    qconfig: QConfig = QConfig()
    """Rest of the QConfig: widths of activations and by layer, packing, alignment, rows, scratchpad."""

    def quantized(self, config: QConfig) -> "PhaseRequest":
        """Return the request with the widths of a QConfig (docs/bit-widths.md, R14). ModelError for a layer or head
        that the model lacks."""
        shape = shape_of(self.name)
        if config.group:
            raise RuleError(
                "E_GROUP", "group_size", config.group,
                f"QConfig group_size {config.group}: a built-in model has a scale for each channel: drop it",
            )  # fmt: skip
        if config.rounding == GPTQ:
            raise RuleError(
                "E_ROUNDING", "rounding", config.rounding,
                f"QConfig rounding {config.rounding}: a built-in model has no weights: drop it",
            )  # fmt: skip
        for name in config.override:
            layer, *head, role = name.removeprefix("layer_").replace("head_", "").split(".")
            if role == "activation":
                raise RuleError(
                    "E_QBITS", f"override.{name}", config.override[name],
                    f"QConfig override.{name}: layers of a built-in model pass activations on, they have one width: "
                    f"qbits_activation_default",
                )  # fmt: skip
            if int(layer) >= shape.layers or (head and int(head[0]) >= shape.kv_heads):
                raise ModelError(
                    f"QConfig override.{name}: {shape.name} has layers 0 to {shape.layers - 1} of KV heads 0 to "
                    f"{shape.kv_heads - 1}"
                )
        bits = BITS[ACTIVATION] if config.weight is None or config.weight in FLOAT_BITS else config.weight
        return self._replace(
            weight_bits=bits, codebooks=config.vectors.codebooks, kv_bits=config.kv_bits, qconfig=config
        )

    @property
    def step(self) -> tuple[int, int]:
        """Tuple (tokens of the step, position of the first)."""
        return (self.tokens, 0) if self.phase is Phase.PREFILL else (1, self.context)


def build(config: NpuConfig, request: PhaseRequest, mapping: MappingOptions = AUTOMATIC) -> CompiledShape:
    """Build the commands of a request. ModelError, one line, for an invalid model or size."""
    shape = shape_of(request.name)
    tokens, position = request.step
    for name, value, low in (("tokens", tokens, 1), ("context", position, 0)):
        if value < low:
            raise ModelError(f"{request.name}: {name} {value}: must be at least {low}")
    t_max = position + tokens if request.t_max is None else request.t_max
    if position + tokens > t_max:
        raise ModelError(
            f"{request.name}: tokens {position}..{position + tokens - 1} do not fit caches of {t_max}: a larger --t-max"
        )
    if shape.positions and position + tokens > shape.positions - LEARNED_OFFSET:
        raise ModelError(
            f"{request.name}: position {position + tokens - 1}: the table has 0..{shape.positions - LEARNED_OFFSET - 1}"
        )
    if shape.cache_window:
        t_max = min(t_max, shape.cache_window + tokens - 1)
    method = METHODS[request.kv or FP16.name]
    bits = method.bits if request.kv and not method.encoded else request.kv_bits
    job = Job(
        shape, shape.layers if request.layers is None else request.layers, t_max, request.requests, request.weight_bits,
        bits if callable(bits) else lambda layer, head: bits, request.codebooks,
        request.qconfig.overrides("weight"),
        16 if request.qconfig.activation is None else request.qconfig.activation,
        request.qconfig.packing == "unpacked_byte", request.qconfig.pad_rows,
        method.with_config(config.kv_quant),
    )  # fmt: skip
    if method.encoded and request.granularity == "tile":
        raise ModelError(f"{request.name}: --kv {request.kv}: tile commands know no encoded keys and values: drop one")
    tiled = min(position, t_max - tokens) if request.granularity == "tile" else None
    target = target_with(config, request.qconfig, mapping)._replace(qconfig=request.qconfig.without_weights())
    return compile_shape(job, target, tokens, request.passes, tiled)


@dataclass(frozen=True)
class BuiltIn(Workload["PhaseDetail"]):
    """Workload of a phase of a built-in model: its commands alone, or submitted by firmware."""

    defaults: ClassVar[Mapping[str, object]] = {"npu.dram.size": DRAM_BYTES, **SUBMITTING}
    needs: ClassVar[str] = "default of built-in models"
    request: PhaseRequest
    through_firmware: bool = False
    qconfig: Path | None = None
    """File with the widths of weights, keys and values."""

    @property
    def files(self) -> tuple[Path, ...]:
        return () if self.qconfig is None else (self.qconfig,)

    def uses_core(self, config: Config) -> bool:
        return self.through_firmware

    def sees(self, config: Config) -> Hashable:
        return seen_by_compiler(config), config.npu.kv_quant if self.request.kv else None

    def check(self, config: Config) -> None:
        level = config.run.sim_level
        if self.through_firmware and level not in CORE_LEVELS:
            raise UsageError(f"--sim-level {level}: firmware runs at {LEVEL}; drop --mode")

    def prepare(self, config: Config) -> "PhaseCommands":
        self.check(config)
        request = self.request
        if self.qconfig is not None:
            request = request.quantized(load_qconfig(self.qconfig))
        return PhaseCommands(request, build(config.npu, request, mapping_of(config)), self.through_firmware)


@dataclass(frozen=True)
class PhaseCommands(PreparedWorkload["PhaseDetail"]):
    """Commands of a phase."""

    request: PhaseRequest
    compiled_shape: CompiledShape
    through_firmware: bool = False

    @property
    def memory(self) -> dict[int, bytes]:
        """Memory contents with the position, which commands read when they start."""
        return self.compiled_shape.position(self.request.step[1])

    def program(self) -> Program:
        """Return firmware that submits the commands, which are in DRAM."""
        compiled, count = self.compiled_shape.program, len(self.compiled_shape.commands)
        content = [
            ImagePiece(compiled.memory.commands, compiled.code()),
            ImagePiece(compiled.end, self.compiled_shape.conversation()),
        ]
        content += [ImagePiece(address, data) for address, data in self.memory.items()]
        end = max(piece.address + len(piece.data) for piece in content)
        arguments = {"commands": count, "descriptors": compiled.memory.commands, "prefill": count,
                     "conversation": compiled.end}  # fmt: skip
        image = add_pieces(program_data(GENERATE), content, end, arguments)
        return parse_elf(image, self.request.name)

    def run(self, config: Config, session: Session = PLAIN) -> "Result[PhaseDetail]":
        """Time the commands without a core, or let firmware submit them in the mode of `config`."""
        config = packed(config, self.request.qconfig)
        if self.through_firmware:
            return self._through_firmware(config, session)
        host, traffic = Stopwatch(), self._traffic()
        timed = run_commands(
            self.compiled_shape.commands,
            config.npu,
            config.run.sim_level,
            memory=self.memory,
            keep=session.keep,
            watch=traffic.add,
        )
        timing = {"events": timed.events.count, "finished": [layer._asdict() for layer in timed.layers]}
        unhindered = self._unhindered(config) if self.compiled_shape.job.storage.encoded else None
        detail = self._detail(config.npu, timed.cycles, traffic, timing, timed.kv_engines, unhindered)
        return Result(
            self.request.name, config, detail, timed.cycles, timed.counters, timed.events, host=host.figures(),
            commands=self.compiled_shape.commands, memory=self.memory, moved=timed.traffic,
        )  # fmt: skip

    def _unhindered(self, config: Config) -> int:
        """Return the cycles of a run in which nothing waits for the engines that encode and decode."""
        gc.collect()  # frees the first device, whose page tables may be large
        npu, level = engines.unhindered(config.npu), config.run.sim_level
        return run_commands(self.compiled_shape.commands, npu, level, memory=self.memory).cycles

    def _through_firmware(self, config: Config, session: Session) -> "Result[PhaseDetail]":
        commands = self.compiled_shape.commands
        layers = [command.layer for command in commands]
        result = run_program(config, self.program(), config.run.args, session, layers=layers, values=False)
        traffic = self._traffic()
        assert result.events is not None and result.cycles is not None
        for batch in result.events.batches():
            traffic.add(batch)
        counted = (result.counters or {}).get("kv_engines", {})
        detail = self._detail(config.npu, result.cycles, traffic, {}, counted)
        return result.extended(detail, commands, self.memory)

    def _traffic(self) -> KvTraffic:
        return KvTraffic(self.compiled_shape.caches, (self.compiled_shape.commands,))

    def _detail(
        self, npu: NpuConfig, cycles: int, traffic: KvTraffic, timing: Mapping[str, Any], counted: Mapping[str, int],
        unhindered: int | None = None,
    ) -> "PhaseDetail":  # fmt: skip
        """Return the detail of a run. `counted`: cycles of engines that encode and decode; `unhindered`: cycles of the
        run without waits for them, if known."""
        llm = figures(npu, self.compiled_shape, self.request.step, cycles, traffic)
        llm["phase"] = self.request.phase.value
        if self.compiled_shape.job.storage.encoded:
            llm["kv_engines"] = engines.figures(counted, cycles, npu, unhindered)
        return PhaseDetail(llm, timing, self.compiled_shape)


@dataclass(frozen=True)
class PhaseDetail(Detail):
    """Time and traffic of a phase of a decoder model."""

    figures: Mapping[str, Any]
    """Object `llm` of the result."""
    timing: Mapping[str, Any]
    """Additional keys of a run without a core."""
    compiled_shape: CompiledShape

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        return {"timing_only": True, **self.timing, "llm": dict(self.figures)}

    def sections(self, result: Result[Any]) -> list[Section]:
        """Return the work, its time, its bound, and the traffic of keys and values."""
        llm, clock_hz = self.figures, result.config.npu.clock_hz
        work = f"{llm['tokens']} tokens" if llm["phase"] == "prefill" else f"one token at context {llm['context']}"
        bound = llm["bound"]
        limit = max(bound, key=lambda name: bound[name])
        occupied, alloc = (quantity(llm[name], "bytes") for name in ("kv_bytes_used", "kv_bytes_alloc"))
        share = quantity(llm["bound_share"], "share")
        (tokens_moved,) = llm["kv_tokens"]
        rows = [
            ("commands", f"{llm['commands']} for {llm['layers']} layers"),
            ("work", f"{llm['requests']} x {work}"),
            ("time", f"{quantity(llm['seconds'], 's')} at {clock_hz / 1e9:g} GHz"),
            ("tokens per second", number(llm["tokens_per_second"])),
            (f"bound by {limit.removesuffix('_cycles')}", f"{bound[limit]:,} cycles, {share} of the cycles"),
            ("weights", f"{quantity(llm['weight_bytes'], 'bytes')}, {_width(llm)}"),
            ("KV in DRAM", f"{occupied} used of {alloc}, {_storage_text(llm)}"),
            ("KV moved", f"keys {tokens_moved['bytes_k']:,} and values {tokens_moved['bytes_v']:,} bytes"),
        ]
        if "kv_engines" in llm:
            rows.append(("KV engines", engines.sentence(llm["kv_engines"])))
        return [Section("llm", llm["phase"].capitalize(), [Facts(rows)])]

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        """Return the tables of keys and values, IR and commands."""
        tables = {f"{name}.csv": csv_of(self.figures[name]) for name in ("kv_tokens", "kv_layers")}
        return {**listing(self.compiled_shape.program, result.config.npu), **tables}


def _storage_text(llm: Mapping[str, Any]) -> str:
    """Describe the storage of keys and values."""
    if "kv_encoded" not in llm:
        return f"{llm['qbits_kv']} bits"
    encoded = llm["kv_encoded"]
    return f"{encoded['method']}: {encoded['b_eff']:.3f} bits at p_out {encoded['p_out']:g}, {encoded['pages']:,} pages"


def _width(llm: Mapping[str, Any]) -> str:
    """Describe the width of weights."""
    if llm["codebooks"]:
        return f"vector quantization, codebooks of a matrix: {llm['codebooks']}"
    return f"{llm['qbits_weight']} bits"


def figures(
    config: NpuConfig, compiled: CompiledShape, step: tuple[int, int], cycles: int, traffic: KvTraffic
) -> dict[str, Any]:
    """Return the object `llm` of a result. `step`: (tokens, position of the first)."""
    job, shape = compiled.job, compiled.job.shape
    tokens, position = step
    bound = bounds(config, job, tokens, position)
    seconds = cycles / config.clock_hz
    weights = sorted({job.weight_of(layer) for layer in range(job.layers)})
    widths = sorted({bits for layer in range(job.layers) for bits in job.head_bits(layer)})
    stored_tokens = min(position + tokens, job.t_max)
    stated = _storage_statement(job, stored_tokens)
    encoded = None
    if stated:
        sizes = {layer: job.kv_bytes_of(layer, stored_tokens) for layer in range(job.layers)}
        encoded = EncodedSize(job.storage.name, sizes, {layer: job.kv_bytes_alloc(layer) for layer in sizes})
    kv = kv_figures(compiled.caches, traffic, (position + tokens - 1,), stored_tokens, encoded)
    return {
        "tokens": tokens, "context": position, "requests": job.requests,
        "layers": job.layers, "t_max": job.t_max, "commands": len(compiled.commands),
        "qbits_weight": weights[0] if len(weights) == 1 else weights,
        "qbits_activation": job.activation_bits,
        "codebooks": job.codebooks if VQ_BITS in weights else 0,
        "qbits_kv": widths[0] if len(widths) == 1 else widths,
        "parameters": shape.parameters, "weight_bytes": job.weight_bytes,
        **kv,
        "kv_capacity": kv_capacity(
            compiled.caches, config.dram.size, job.weight_bytes, -(-kv["kv_bytes_used"] // stored_tokens)
        ),
        "seconds": seconds, "tokens_per_second": job.requests * tokens / seconds,
        "bound": bound, "bound_share": max(bound.values()) / cycles,
        **stated,
    }  # fmt: skip


def _storage_statement(job: Job, tokens: int) -> dict[str, Any]:
    """Return the storage's statement about keys and values, with its assumptions."""
    statement = dict(job.storage.stated(job.cache(0, 0), tokens))
    if not statement:
        return {}
    caches = job.layers * job.requests
    statement |= {name: caches * statement[name] for name in ("pages", "bursts")}
    return {"kv_encoded": statement, "qbits_kv": job.storage.name}


def bounds(config: NpuConfig, job: Job, tokens: int, position: int) -> dict[str, int]:
    """Return lower bounds in core cycles (docs/npu-timing.md, F6 and F10): matrices and attended keys and values, each
    moved once, at the bandwidth of DRAM; products at the rate of all tensor engines."""
    shape = job.shape
    rows = job.requests * tokens
    experts = min(shape.experts, shape.active * rows)
    matrices = sum(shape.layer_parameters(layer, experts) for layer in range(job.layers))
    head = shape.vocab * shape.width
    last = position + tokens
    kv = 0
    for layer in range(job.layers):
        window = shape.window_of(layer)
        kv += job.kv_bytes_of(layer, min(last, window + tokens - 1) if window else last)
    total_bytes = job.matrix_bytes(experts) + bytes_total(head, job.activation_bits) + kv
    te = config.te
    macs = [_rate(config, job, layer) for layer in range(job.layers)]
    by_layer = [rows * shape.layer_parameters(layer, shape.active) for layer in range(job.layers)]
    computed = sum(count / rate for count, rate in zip(by_layer, macs, strict=True)) + job.requests * head / max(macs)
    rates = Rates(config)
    lookups = {}
    if all(job.weight_of(layer) == VQ_BITS for layer in range(job.layers)):
        channels = config.dma.channels * config.clusters * config.dma.vq_elements_per_cycle
        core, npu_clock = config.clock_ratio
        lookups = {"lookup_cycles": ceil_div(matrices * core, channels * npu_clock)}
    return {
        **lookups,
        "dram_cycles": ceil_div(total_bytes * rates.per_byte, rates.total) if rates.total else 0,
        "compute_cycles": 0 if te.ideal else ceil_div(computed.numerator, computed.denominator),
    }


def _rate(config: NpuConfig, job: Job, layer: int) -> Fraction:
    """Return MACs per cycle of all tensor engines in the products of a layer."""
    te = config.te
    rate = Fraction(peak_macs(te))
    if te.kind == "roofline" and te.speed == "by_bits":
        rate = gemm_rate(te, BITS[expanded(job.weight_kind(layer))], job.activation_bits)
    return te.count * config.clusters * rate
