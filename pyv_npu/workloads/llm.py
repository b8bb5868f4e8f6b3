"""Built-in decoder models without numbers: cycles, bytes and bounds of a prefill or of one token (docs/llm.md)."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi.opcodes import BITS
from npu_device.config import NpuConfig
from npu_device.trace.events import EventStream
from pyv_ext.elf import parse_elf
from pyv_ext.engines.stop import Stop
from pyv_npu.boot import find_program
from pyv_npu.config import Config
from pyv_npu.platform import Platform
from pyv_npu.results import run_program
from pyv_npu.workloads.llm_figures import Traffic, figures
from pyv_npu.workloads.target import target_of
from pyv_npu.workloads.timing_only import run_commands
from toolchain.codegen import Command
from toolchain.decoders.builtin import CompiledShape, compile_shape
from toolchain.decoders.generation import GENERATE
from toolchain.decoders.shapes import ACTIVATION, KV_BITS, Job, shape_of
from toolchain.errors import ModelError
from toolchain.program_image import Piece, with_pieces
from toolchain.quantize.qconfig import KEPT, QConfig

if TYPE_CHECKING:
    from pyv_npu.results import Console, RunResult

DRAM_BYTES = 256_000_000_000
"""Of a built-in model, unless `npu.dram.size` is set (docs/llm.md)."""


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


class Ran(NamedTuple):
    """A phase that ran."""

    json: dict[str, Any]
    """The result, as `--json` prints it."""
    commands: Sequence[Command]
    memory: Mapping[int, bytes]
    """What commands read when they start."""
    run: "RunResult | None" = None
    """What the firmware's run left; None without a core."""


def run(
    config: NpuConfig, request: Request, level: str = "CA_HYBRID", watch: Callable[[EventStream], None] | None = None
) -> Ran:
    """The commands of the request without a core; `watch` may subscribe to the events. ModelError, UsageError."""
    made = build(config, request)
    traffic, memory = Traffic(len(made.commands)), made.position(request.step[1])

    def listen(events: EventStream) -> None:
        events.subscribe(traffic.add)
        if watch is not None:
            watch(events)

    timed = run_commands(made.commands, config, level, memory=memory, watch=listen)
    json = {
        "schema": 1, "program": request.name, "core": None, "mode": None, "sim_level": level, "timing_only": True,
        "cycles": timed.cycles, "npu": timed.counters, "events": timed.events, "events_sha256": timed.events_sha256,
        "preset": None, "exit_code": 0, "stop_reason": "exit", "latency": None,
        "finished": [one._asdict() for one in timed.layers],
        "llm": figures(config, made, request.step, timed.cycles, timed.counters, traffic.by_command)
        | {"phase": request.phase.value},
    }  # fmt: skip
    return Ran(json, made.commands, memory)


def run_firmware(
    config: Config, request: Request, console: "Console | None" = None, report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
) -> Ran:  # fmt: skip
    """The same commands submitted by firmware on the core, in the mode of `config`. `run` as in `run_program`."""
    made = build(config.npu, request)
    program, memory = made.program, made.position(request.step[1])
    content = [Piece(program.memory.commands, program.code()), Piece(program.end, made.conversation())]
    content += [Piece(address, data) for address, data in memory.items()]
    end = max(piece.address + len(piece.data) for piece in content)
    count = len(made.commands)
    arguments = {"commands": count, "descriptors": program.memory.commands, "prefill": count,
                 "conversation": program.end}  # fmt: skip
    image = with_pieces(find_program(GENERATE).read_bytes(), content, end, arguments)
    outcome = run_program(
        config, parse_elf(image, request.name), config.run.args, console, report, run=run,
        layers=[command.layer for command in made.commands], values=False,
    )  # fmt: skip
    traffic = Traffic(count)
    for batch in outcome.events.kept():
        traffic.add(batch)
    json = outcome.json | {
        "timing_only": True,
        "llm": figures(config.npu, made, request.step, outcome.json["cycles"], outcome.json["npu"], traffic.by_command)
        | {"phase": request.phase.value},
    }
    return Ran(json, made.commands, memory, outcome)
