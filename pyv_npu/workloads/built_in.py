"""Built-in decoder models without numbers: cycles, bytes and bounds of a prefill or of one token (docs/llm.md)."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from npu_device.abi.opcodes import BITS
from npu_device.config import NpuConfig
from pyv_ext.elf import Program, parse_elf
from pyv_npu.boot import find_program
from pyv_npu.config import Config
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.result import Detail, Result, Stopwatch
from pyv_npu.text import MISSING, columns, lines_of
from pyv_npu.workloads.built_in_figures import Traffic, figures
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.firmware import LEVEL, run_program
from pyv_npu.workloads.timing import run_commands
from pyv_npu.workloads.workload import PLAIN, Prepared, Session, Workload
from toolchain.decoders.builtin import CompiledShape, compile_shape
from toolchain.decoders.generation import GENERATE
from toolchain.decoders.shapes import ACTIVATION, KV_BITS, Job, shape_of
from toolchain.errors import ModelError
from toolchain.program_image import Piece, with_pieces
from toolchain.quantize.qconfig import KEPT, QConfig

DRAM_BYTES = 256_000_000_000
"""Of a built-in model, unless `npu.dram.size` is set."""


class Phase(StrEnum):
    """What of a conversation is run."""

    PREFILL = "prefill"
    DECODE = "decode"


class Request(NamedTuple):
    """One phase of a built-in model."""

    name: str
    phase: Phase = Phase.DECODE
    context: int = 1024
    """DECODE: tokens in the caches before the one that is made."""
    tokens: int = 512
    """PREFILL: tokens of the prompt."""
    requests: int = 1
    layers: int | None = None
    """None: all."""
    t_max: int | None = None
    """Tokens that the caches hold; None: as many as the phase needs."""
    weight_bits: int = 16
    kv_bits: int | Callable[[int, int], int] = KV_BITS
    """One width, or that of each (layer, KV head)."""

    def quantized(self, config: QConfig) -> "Request":
        """The widths of a QConfig (docs/bit-widths.md, R14). ModelError where the model has no such layer or head."""
        shape = shape_of(self.name)
        for name in config.override:
            layer, *head, role = name.removeprefix("layer_").replace("head_", "").split(".")
            if role == "weight":
                raise ModelError(f"QConfig override.{name}: a built-in model has one width, qbits_weight_default")
            if int(layer) >= shape.layers or (head and int(head[0]) >= shape.kv_heads):
                raise ModelError(
                    f"QConfig override.{name}: {shape.name} has layers 0 to {shape.layers - 1} of KV heads 0 to "
                    f"{shape.kv_heads - 1}"
                )
        bits = BITS[ACTIVATION] if config.weight is None or config.weight in KEPT else config.weight
        return self._replace(weight_bits=bits, kv_bits=config.kv_bits)

    @property
    def step(self) -> tuple[int, int]:
        """(tokens of the step, position of the first)."""
        return (self.tokens, 0) if self.phase is Phase.PREFILL else (1, self.context)


def build(config: NpuConfig, request: Request) -> CompiledShape:
    """A request as commands. ModelError: a model or size that cannot be, one line."""
    shape = shape_of(request.name)
    tokens, position = request.step
    for name, value, least in (("tokens", tokens, 1), ("context", position, 0)):
        if value < least:
            raise ModelError(f"{request.name}: {name} {value}: must be at least {least}")
    t_max = position + tokens if request.t_max is None else request.t_max
    if position + tokens > t_max:
        raise ModelError(
            f"{request.name}: tokens {position}..{position + tokens - 1} do not fit caches of {t_max}: a larger --t-max"
        )
    bits = request.kv_bits
    job = Job(
        shape, shape.layers if request.layers is None else request.layers, t_max, request.requests, request.weight_bits,
        bits if callable(bits) else lambda layer, head: bits,
    )  # fmt: skip
    return compile_shape(job, target_of(config), tokens)


@dataclass(frozen=True)
class BuiltIn(Workload["PhaseDetail"]):
    """One phase of a built-in model: its commands alone, or submitted by firmware."""

    defaults: ClassVar[Mapping[str, object]] = {"npu.dram.size": DRAM_BYTES}
    request: Request
    through_firmware: bool = False
    qconfig: Path | None = None
    """File with the widths of weights, keys and values."""

    @property
    def files(self) -> tuple[Path, ...]:
        return () if self.qconfig is None else (self.qconfig,)

    def uses_core(self, config: Config) -> bool:
        return self.through_firmware

    def check(self, config: Config) -> None:
        level = config.run.sim_level
        if self.through_firmware and level != LEVEL:
            raise UsageError(f"--sim-level {level}: firmware runs at {LEVEL}; drop --mode")

    def prepare(self, config: Config) -> "PhaseCommands":
        self.check(config)
        request = self.request
        if self.qconfig is not None:
            request = request.quantized(load_qconfig(self.qconfig))
        return PhaseCommands(request, build(config.npu, request), self.through_firmware)


@dataclass(frozen=True)
class PhaseCommands(Prepared["PhaseDetail"]):
    """The commands of a phase."""

    request: Request
    made: CompiledShape
    through_firmware: bool = False

    @property
    def memory(self) -> dict[int, bytes]:
        """The position, which commands read when they start."""
        return self.made.position(self.request.step[1])

    def program(self) -> Program:
        """Firmware that submits the commands, as they lie in DRAM."""
        compiled, count = self.made.program, len(self.made.commands)
        content = [Piece(compiled.memory.commands, compiled.code()), Piece(compiled.end, self.made.conversation())]
        content += [Piece(address, data) for address, data in self.memory.items()]
        end = max(piece.address + len(piece.data) for piece in content)
        arguments = {"commands": count, "descriptors": compiled.memory.commands, "prefill": count,
                     "conversation": compiled.end}  # fmt: skip
        image = with_pieces(find_program(GENERATE).read_bytes(), content, end, arguments)
        return parse_elf(image, self.request.name)

    def run(self, config: Config, session: Session = PLAIN) -> "Result[PhaseDetail]":
        """Time the commands without a core, or let firmware submit them in the mode of `config`."""
        if self.through_firmware:
            return self._through_firmware(config, session)
        host, traffic = Stopwatch(), Traffic(len(self.made.commands))
        timed = run_commands(
            self.made.commands,
            config.npu,
            config.run.sim_level,
            memory=self.memory,
            keep=session.keep,
            watch=traffic.add,
        )
        own = {"events": timed.events.count, "finished": [one._asdict() for one in timed.layers]}
        detail = self._detail(config.npu, timed.cycles, timed.counters, traffic, own)
        return Result(
            self.request.name, config, detail, timed.cycles, timed.counters, timed.events, host=host.figures(),
            commands=self.made.commands, memory=self.memory,
        )  # fmt: skip

    def _through_firmware(self, config: Config, session: Session) -> "Result[PhaseDetail]":
        commands = self.made.commands
        layers = [command.layer for command in commands]
        ran = run_program(config, self.program(), config.run.args, session, layers=layers, values=False)
        traffic = Traffic(len(commands))
        assert ran.events is not None and ran.cycles is not None
        for batch in ran.events.kept():
            traffic.add(batch)
        detail = self._detail(config.npu, ran.cycles, ran.counters, traffic, {})
        return ran.extended(detail, commands, self.memory)

    def _detail(
        self, npu: NpuConfig, cycles: int, counters: Mapping[str, Any] | None, traffic: Traffic, own: Mapping[str, Any]
    ) -> "PhaseDetail":
        llm = figures(npu, self.made, self.request.step, cycles, counters, traffic.by_command)
        return PhaseDetail(llm | {"phase": self.request.phase.value}, own)


@dataclass(frozen=True)
class PhaseDetail(Detail):
    """What a phase of a decoder model took and moved."""

    figures: Mapping[str, Any]
    """The `llm` object of the result."""
    timing: Mapping[str, Any]
    """Keys of a run without a core."""

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        return {"timing_only": True, **self.timing, "llm": dict(self.figures)}

    def text(self, result: Result[Any]) -> str:
        """What ran, how long it took, the bound, and where keys and values went."""
        llm, clock_hz = self.figures, result.config.npu.clock_hz
        work = f"{llm['tokens']} tokens" if llm["phase"] == "prefill" else f"one token at context {llm['context']}"
        bound = llm["bound"]
        limit = max(bound, key=lambda name: bound[name])
        used, alloc = (f"{llm[name] / (1 << 20):,.1f} MiB" for name in ("kv_bytes_used", "kv_bytes_alloc"))
        seconds, share = llm["seconds"], f"{llm['bound_share']:.1%}"
        lasted = f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"
        (moved,) = llm["kv_tokens"]
        rows = [
            ("commands", f"{llm['commands']} for {llm['layers']} layers"),
            ("cycles", f"{result.cycles:,} ({lasted} at {clock_hz / 1e9:g} GHz)"),
            ("tokens per second", f"{llm['tokens_per_second']:.2f}"),
            (f"bound by {limit.removesuffix('_cycles')}", f"{bound[limit]:,} cycles, {share} of the cycles"),
            ("weights", f"{llm['weight_bytes'] / 1e9:.2f} GB, {llm['qbits_weight']} bits"),
            ("KV in DRAM", f"{used} used of {alloc}, {llm['qbits_kv']} bits"),
            ("KV moved", f"keys {moved['bytes_k']:,} and values {moved['bytes_v']:,} bytes"),
        ]
        level = result.config.run.sim_level
        head = f"{result.program} {llm['phase']}, {level}: {llm['requests']} x {work}, timing only"
        return lines_of(head, rows) + "\n"

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        """The tables of keys and values."""
        return {f"{name}.csv": _csv(self.figures[name]) for name in ("kv_tokens", "kv_layers")}


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def render_widths(results: Sequence[Result[PhaseDetail]]) -> str:
    """A row for each width of keys and values (docs/bit-widths.md, R24)."""
    heads = ["qbits_kv", "KV bytes moved", "dma_cycles", "total_latency", "bw_usage", "tokens/s"]
    rows = []
    for result in results:
        llm = result.detail.figures
        sweep, (moved,) = llm["sweep"], llm["kv_tokens"]
        usage = MISSING if sweep["bw_usage"] is None else f"{sweep['bw_usage']:.1%}"
        dma = MISSING if sweep["dma_cycles"] is None else f"{sweep['dma_cycles']:,}"
        total = moved["bytes_k"] + moved["bytes_v"]
        latency, speed = f"{sweep['total_latency']:,}", f"{llm['tokens_per_second']:.2f}"
        rows.append([str(llm["qbits_kv"]), f"{total:,}", dma, latency, usage, speed])
    llm = results[0].detail.figures
    title = f"{results[0].program} {llm['phase']}, {llm['requests']} requests, {llm['layers']} layers, timing only"
    return f"{title}\n\n{columns(heads, rows)}\n"
