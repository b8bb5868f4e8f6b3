"""Built-in decoder models without numbers: cycles, bytes and bounds of a prefill or of one token (specification 50)."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS, Opcode
from npu_device.config import NpuConfig
from npu_device.events import Batch, EventStream, What
from npu_device.tensor import SPEED, ceil_div
from npu_device.timing import Rates
from pyv_ext.elf import parse_elf
from pyv_ext.stop import Stop
from pyv_npu.config import Config
from pyv_npu.models.timing_only import run_commands
from pyv_npu.platform import Platform
from pyv_npu.programs import find_program
from pyv_npu.results import run_program
from toolchain.codegen import Command, Target
from toolchain.compiler import addressed, code
from toolchain.errors import ModelError
from toolchain.llm.conversation import GENERATE, conversation
from toolchain.llm.job import KV_BITS, Job
from toolchain.llm.layout import ACTIVATION, INT_BYTES, Layout
from toolchain.llm.phases import Device, commands
from toolchain.llm.shapes import shape_of
from toolchain.program_image import Piece, with_pieces
from toolchain.qconfig import KEPT, QConfig

if TYPE_CHECKING:
    from pyv_npu.results import Console, RunResult

DRAM_BYTES = 256_000_000_000
"""Of a built-in model, unless `npu.dram.size` is set (specification 50)."""


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
        """The widths of a QConfig (specification 55, R14). ModelError where the model has no such layer or head."""
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


_OPCODE_BITS = 0xFF
"""Of `aux` of DMA_BEGIN."""


class Traffic:
    """Bytes that a run moves between caches and scratchpad, by command: a fold over its DMA events."""

    def __init__(self, commands: int) -> None:
        self.by_command = np.zeros(commands, np.int64)

    def listen(self, events: EventStream) -> None:
        events.subscribe(self.add)

    def add(self, batch: Batch) -> None:
        """The next events."""
        begun = batch[batch["what"] == What.DMA_BEGIN]
        kv = begun[np.isin(begun["aux"] & _OPCODE_BITS, (Opcode.KV_READ, Opcode.KV_APPEND))]
        np.add.at(self.by_command, kv["ticket"].astype(np.int64) - 1, kv["bytes"].astype(np.int64))


def build(config: NpuConfig, request: Request) -> tuple[Layout, list[Command]]:
    """Addresses and commands of a request. ModelError: a model or size that cannot be, one line."""
    shape = shape_of(request.name)
    tokens, position = request.step
    for name, value, least in (("tokens", tokens, 1), ("context", position, 0)):
        if value < least:
            raise ModelError(f"{request.name}: {name} {value}: must be at least {least}")
    t_max = request.t_max or position + tokens
    if position + tokens > t_max:
        raise ModelError(
            f"{request.name}: tokens {position}..{position + tokens - 1} do not fit caches of {t_max}: a larger --t-max"
        )
    bits = request.kv_bits
    job = Job(
        shape, request.layers or shape.layers, t_max, request.requests, request.weight_bits,
        bits if callable(bits) else lambda layer, head: bits,
    )  # fmt: skip
    job.check_capacity(config.dram.size)
    layout = Layout(job, tokens, config.spm.size)
    layout.check(config.dram.size)
    target = Target(config.spm.size, config.spm.banks, config.te.acc_bytes, config.dram.size)
    return layout, commands(layout, Device(target, config.te.count), tokens)


def run(config: NpuConfig, request: Request, level: str = "CA_HYBRID") -> dict[str, Any]:
    """The result, as `--json` prints it: the commands of the request without a core. ModelError, UsageError."""
    layout, made = build(config, request)
    traffic = Traffic(len(made))
    timed = run_commands(made, config, level, memory=_position(layout, request), watch=traffic.listen)
    return {
        "schema": 1, "program": request.name, "core": None, "mode": None, "sim_level": level, "timing_only": True,
        "cycles": timed.cycles, "npu": timed.counters, "events": timed.events, "events_sha256": timed.events_sha256,
        "finished": [one._asdict() for one in timed.layers],
        "llm": _figures(config, request, layout, made, timed.cycles, timed.counters, traffic.by_command),
    }  # fmt: skip


def run_firmware(
    config: Config, request: Request, console: "Console | None" = None, report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
) -> "tuple[RunResult, dict[str, Any]]":  # fmt: skip
    """The same commands submitted by firmware on the core, in the mode of `config`: (run, result). `run` as in
    `run_program`."""
    layout, made = build(config.npu, request)
    placed = addressed(made, layout.commands)
    lists, shared = code(placed), layout.commands + len(code(placed))
    tokens = request.step[0]
    words = conversation(layout.position, layout.ids, layout.ids, layout.ids, prompt=tokens, total=tokens)
    content = [Piece(layout.commands, lists), Piece(shared, words)]
    content += [Piece(address, data) for address, data in _position(layout, request).items()]
    end = max(piece.address + len(piece.data) for piece in content)
    arguments = {"commands": len(placed), "descriptors": layout.commands, "prefill": len(placed),
                 "conversation": shared}  # fmt: skip
    image = with_pieces(find_program(GENERATE).read_bytes(), content, end, arguments)
    outcome = run_program(
        config, parse_elf(image, request.name), config.run.args, console, report, run=run,
        layers=[command.layer for command in placed], values=False,
    )  # fmt: skip
    traffic = Traffic(len(made))
    for batch in outcome.events.kept():
        traffic.add(batch)
    figures = _figures(config.npu, request, layout, made, outcome.json["cycles"], outcome.json["npu"],
                       traffic.by_command)  # fmt: skip
    return outcome, outcome.json | {"timing_only": True, "llm": figures}


def _position(layout: Layout, request: Request) -> dict[int, bytes]:
    """The word that commands read when they start."""
    return {layout.position: request.step[1].to_bytes(INT_BYTES, "little")}


def _figures(
    config: NpuConfig, request: Request, layout: Layout, made: list[Command], cycles: int,
    counters: Mapping[str, Any] | None, moved: Any,
) -> dict[str, Any]:  # fmt: skip
    job, shape = layout.job, layout.job.shape
    tokens, position = request.step
    keys, values, by_layer = kv_traffic(made, moved)
    bound = bounds(config, job, tokens, position)
    seconds = cycles / config.clock_hz
    widths = sorted({bits for layer in range(job.layers) for bits in job.head_bits(layer)})
    return {
        "phase": request.phase.value, "tokens": tokens, "context": position, "requests": job.requests,
        "layers": job.layers, "t_max": job.t_max, "commands": len(made), "qbits_weight": job.weight_bits,
        "qbits_kv": widths[0] if len(widths) == 1 else widths,
        "parameters": shape.parameters, "weight_bytes": job.weight_bytes,
        "kv_bytes_alloc": job.kv_bytes, "kv_bytes_used": job.kv_bytes // job.t_max * (position + tokens),
        "kv_tokens": [{"token": position + tokens - 1, "bytes_k": keys, "bytes_v": values}],
        "kv_layers": [{"layer": layer, "kv_bytes_total": size} for layer, size in enumerate(by_layer)],
        "seconds": seconds, "tokens_per_second": job.requests * tokens / seconds,
        "bound": bound, "bound_share": max(bound.values()) / cycles,
        "sweep": _sweep(config, cycles, counters),
    }  # fmt: skip


def kv_traffic(made: list[Command], moved: Any) -> tuple[int, int, list[int]]:
    """(bytes of keys, bytes of values, bytes of each layer) from the bytes that each command moved.

    A command that appends serves one of them, in the order keys, values; attention reads as much of both.
    """
    totals, by_layer = [0, 0], dict[str, int]()
    appends = 0
    for command, size in zip(made, map(int, moved), strict=True):
        if not size:
            continue
        if command.descriptor.opcode == Opcode.KV_APPEND:
            totals[appends % 2] += size
            appends += 1
        else:
            totals[0] += size // 2
            totals[1] += size // 2
        layer = command.layer.partition(".")[0]
        by_layer[layer] = by_layer.get(layer, 0) + size
    return totals[0], totals[1], list(by_layer.values())


def bounds(config: NpuConfig, job: Job, tokens: int, position: int) -> dict[str, int]:
    """Core cycles that no schedule can beat (specification 45, F6 and F10): matrices and the keys and values that are
    seen, once, at the bandwidth of DRAM; products at the rate of all tensor engines."""
    shape = job.shape
    rows = job.requests * tokens
    experts = min(shape.experts, shape.active * rows)
    matrices = job.layers * (shape.attention_parameters + experts * shape.ffn_parameters)
    head = shape.vocab * shape.width
    last = position + tokens
    seen = min(last, shape.window + tokens - 1) if shape.window else last
    kv = 2 * sum(job.kv_bytes_read(layer, seen) for layer in range(job.layers))
    moved = matrices * job.weight_bits // 8 + head * BITS[ACTIVATION] // 8 + kv
    macs = job.layers * rows * (shape.attention_parameters + shape.active * shape.ffn_parameters)
    macs += job.requests * head
    te = config.te
    speed = SPEED[BITS[ACTIVATION]] * SPEED[job.weight_bits] if te.kind == "roofline" and te.speed == "by_bits" else 1
    rate = Fraction(te.rows * te.columns * te.count * config.clusters) * speed
    rates = Rates(config)
    return {
        "dram_cycles": ceil_div(moved * rates.per_byte, rates.total) if rates.total else 0,
        "compute_cycles": 0 if te.ideal else ceil_div(macs * rate.denominator, rate.numerator),
    }


def _sweep(config: NpuConfig, cycles: int, counters: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a sweep over bit widths compares (specification 55, R24)."""
    if counters is None:
        return {"dma_cycles": None, "total_latency": cycles, "bw_usage": None}
    moved = counters["dram_bytes_read"] + counters["dram_bytes_written"]
    rates = Rates(config)
    full = cycles * rates.total // rates.per_byte
    return {
        "dma_cycles": sum(counters["dma_busy"]),
        "total_latency": cycles,
        "bw_usage": moved / full if full else None,
    }
