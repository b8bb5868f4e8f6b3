"""An ONNX decoder with a key/value cache: a prompt and steps at a level, compared with the ONNX reference."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from npu_device.config import NpuConfig
from pyv_ext.elf import Program
from pyv_ext.engines.stop import StopReason
from pyv_npu.boot import find_program
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.table import Latency
from pyv_npu.platform import Platform
from pyv_npu.result import Result, Stopwatch
from pyv_npu.workloads.compiled import loaded, target_of
from pyv_npu.workloads.data import Values, prompts
from pyv_npu.workloads.firmware import LEVEL, run_program
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from pyv_npu.workloads.ia import Codes, Machine
from pyv_npu.workloads.timing import run_commands
from pyv_npu.workloads.workload import PLAIN, Prepared, Session, Workload
from toolchain.compiler import Compiled
from toolchain.decoders.decoder import (
    CONVERSATION,
    IDS,
    LOG,
    NEXT,
    POSITION,
    POSITIONS,
    PROMPT,
    CompiledDecoder,
    Decoder,
    compile_decoder,
    load_decoder,
)
from toolchain.decoders.generation import GENERATE, tokens_of
from toolchain.decoders.quantization import in_int8
from toolchain.decoders.reference import head_scales
from toolchain.decoders.shapes import BY_BITS
from toolchain.onnx_model.reference import rounded
from toolchain.program_image import build_image
from toolchain.quantize.precision import INT8

LEVELS = ("IA", "IA_TIMING", "CA_HYBRID")


class Decoded(NamedTuple):
    """A conversation that took place."""

    tokens: Sequence[int]
    read: Callable[[str], bytes]
    """The bytes that a tensor has at the end."""
    codes: Sequence[Mapping[str, Values]]
    """What the prompt, and then each step, rounded numbers to; empty where caches or weights have another type than the
    model's, so that no numbers are its own."""


def check_level(config: Config) -> None:
    """UsageError for a level that runs no decoders."""
    if config.run.sim_level not in LEVELS:
        raise UsageError(f"--sim-level {config.run.sim_level}: decoders run at IA, IA_TIMING and CA_HYBRID")


@dataclass(frozen=True)
class Generation(Workload[GenerationDetail]):
    """An ONNX decoder in a file, or in memory, and what it generates."""

    decoder: Path | Decoder
    request: GenerationRequest

    @property
    def files(self) -> tuple[Path, ...]:
        request = self.request
        return (*request.calibration, *([] if request.qconfig is None else [request.qconfig]))

    def uses_core(self, config: Config) -> bool:
        return config.run.sim_level == LEVEL

    def check(self, config: Config) -> None:
        check_level(config)

    def prepare(self, config: Config) -> "ReadyDecoder":
        """Compile the decoder for the request and the device of `config`."""
        self.check(config)
        decoder = load_decoder(self.decoder) if isinstance(self.decoder, Path) else self.decoder
        request = self.request
        request.check(decoder)
        if request.precision == INT8:
            shown = prompts(decoder, request.calibration, config.run.seed)
            decoder = in_int8(decoder, shown, request.weights())
        kind, scales = None, None
        if request.kv_bits is not None:
            kind = BY_BITS[request.kv_bits]
            if kind is not DataType.FP16:
                scales = head_scales(decoder, request.prompt, request.kv_bits)
        compiled = compile_decoder(
            decoder, target_of(config.npu)._replace(qconfig=request.weights()), len(request.prompt),
            request.t_max or request.total, passes=request.passes, kv_kind=kind, kv_scales=scales,
        )  # fmt: skip
        known = compiled.compiled.graph.index_bound(POSITION)
        if known is not None and request.total - 1 > known:
            raise UsageError(
                f"--generate {request.new}: the tables of {decoder.name} end at position {known - 1}: at most "
                f"{known + 1 - len(request.prompt)} after a prompt of {len(request.prompt)}"
            )
        return ReadyDecoder(request, compiled)


@dataclass(frozen=True)
class ReadyDecoder(Prepared[GenerationDetail]):
    """A decoder that is compiled for a request."""

    request: GenerationRequest
    decoder: CompiledDecoder

    @property
    def compiled(self) -> Compiled:
        return self.decoder.compiled

    @property
    def inputs(self) -> dict[str, bytes]:
        """What is in memory when a run begins."""
        prompt = np.asarray(self.request.prompt, "<i4")
        positions = np.arange(len(prompt), dtype="<i4").tobytes()
        conversation = self.decoder.conversation((*self.request.prompt, *self.request.given), self.request.total)
        return {
            PROMPT + IDS: prompt.tobytes(),
            PROMPT + (POSITIONS if self.decoder.decoder.positions else POSITION): positions,
            CONVERSATION: conversation,
        }

    def image(self, *, apart: bool = False) -> bytes:
        """An ELF that generates; `apart`: the weights are in a file of their own."""
        made = self.decoder
        arguments = {"prefill": made.prompt_commands, "conversation": made.address(CONVERSATION)}
        return build_image(find_program(GENERATE).read_bytes(), made.compiled, self.inputs, arguments, apart=apart)

    def program(self) -> Program:
        """The image as a loaded program, under the decoder's name."""
        return loaded(self.image(), self.decoder.compiled, self.decoder.decoder.name)

    @property
    def description(self) -> dict[str, Any]:
        """What model.json says of the request."""
        request, made = self.request, self.decoder
        said = {
            "prompt": list(request.prompt), "given": list(request.given), "new": request.new, "t_max": made.t_max,
            "commands": {"prompt": made.prompt_commands, "step": made.step_commands},
        }  # fmt: skip
        return {"generate": said}

    def run(self, config: Config, session: Session = PLAIN) -> Result[GenerationDetail]:
        """Generate at IA, IA_TIMING or CA_HYBRID. UsageError for another level."""
        check_level(config)
        if config.run.sim_level == LEVEL:
            return self._through_firmware(config, session)
        host = Stopwatch()
        decoded = self.decode(config.npu, self.request.given)
        cycles: list[int] | None = None
        if config.run.sim_level == "IA_TIMING":
            steps = range(len(self.request.prompt), self.request.total - 1)
            cycles = [self._timed(config, position) for position in (0, *steps)]
        detail = GenerationDetail.of(self.decoder, self.request, decoded.tokens, decoded.read, decoded.codes, cycles)
        total = None if cycles is None else sum(cycles)
        return Result(self.decoder.decoder.name, config, detail, total, host={} if cycles is None else host.figures())

    def decode(self, npu: NpuConfig, given: Sequence[int]) -> Decoded:
        """Reference decoding at IA: what firmware/apps/generate.c does, without a core and without time. The prompt at
        once, then token by token; `given`: the first tokens after the prompt."""
        made, request = self.decoder, self.request
        machine = Machine(made.compiled, npu, self.inputs)
        commands, split = made.compiled.commands, made.prompt_commands
        first, later = self._codes()
        tokens = [*request.prompt, *given]
        machine.run(commands[:split], partial(first.take, machine.read))
        codes, following = [first.values], _words(machine.read(PROMPT + NEXT))[-1]
        for position in range(len(request.prompt), request.total):
            if position == len(tokens):
                tokens.append(following)
            if position + 1 < request.total:
                machine.memory.write_bytes(made.address(POSITION), position.to_bytes(4, "little"))
                machine.memory.write_bytes(made.address(IDS), tokens[position].to_bytes(4, "little"))
                machine.run(commands[split:], partial(later.take, machine.read))
                codes.append(dict(later.values))
                following = _words(machine.read(NEXT))[0]
        return Decoded(tokens, machine.read, codes)

    def _codes(self) -> tuple[Codes, Codes]:
        """Of the prompt and of a step: the tensors that both have."""
        graph = self.decoder.compiled.graph
        names = rounded(self.decoder.decoder.proto) if self.request.exact else []
        both = Codes(graph, names, PROMPT).names & Codes(graph, names).names
        return Codes(graph, both, PROMPT), Codes(graph, both)

    def _timed(self, config: Config, position: int) -> int:
        """IA_TIMING: cycles of the prompt (position 0), or of the token at a position."""
        made = self.decoder
        chosen, name = made.compiled.commands[: made.prompt_commands], PROMPT + POSITION
        if position:
            chosen, name = made.compiled.commands[made.prompt_commands :], POSITION
        memory = {made.address(name): position.to_bytes(4, "little")}
        return run_commands(chosen, config.npu, "IA_TIMING", memory=memory).cycles

    def _through_firmware(self, config: Config, session: Session) -> Result[GenerationDetail]:
        """CA_HYBRID: the firmware loops over the tokens."""
        made, request = self.decoder, self.request
        compiled = made.compiled
        left: dict[str, bytes] = {}

        def take(platform: Platform) -> None:
            for name in compiled.graph.outputs:
                size = compiled.graph.tensors[name].size
                left[name] = platform.npu_memory.read(made.address(name), size) or b""

        names = [command.layer for command in compiled.commands]
        layers = names[: made.prompt_commands] + (request.new - 1) * names[made.prompt_commands :]
        ran = run_program(config, self.program(), config.run.args, session, layers=layers, after=take)
        ended = ran.stop.reason is StopReason.EXIT and ran.stop.code == 0
        tokens = tokens_of(left[CONVERSATION])
        codes = self._codes_of(config.npu, tokens, left) if ended else None
        cycles = self._step_cycles(ran.latency) if ended else []
        return ran.extended(GenerationDetail.of(made, request, tokens, left.__getitem__, codes, cycles))

    def _codes_of(
        self, npu: NpuConfig, tokens: Sequence[int], left: Mapping[str, bytes]
    ) -> Sequence[Mapping[str, Values]]:
        """The codes of each step of this conversation: those of IA, unless it leaves other bytes, as after an injected
        fault."""
        made, request = self.decoder, self.request
        if not (rounded(made.decoder.proto) and request.exact):
            return [{} for _ in range(request.new)]
        again = self.decode(npu, tokens[len(request.prompt) :])
        same = all(again.read(name) == left[name] for name in (LOG, *(cache.past for cache in made.decoder.caches)))
        return again.codes if same else [{} for _ in again.codes]

    def _step_cycles(self, latency: Latency) -> list[int]:
        """Core cycles of the prompt and of each token after it, from t0 of the first command until the firmware knows
        that all are done, t7 (docs/latency.md); [] where some were not seen, as in a run that began from a snapshot."""
        first, step = self.decoder.prompt_commands, self.decoder.step_commands
        bounds = [0, *range(first, first + self.request.new * step, step)]
        seen = [(one.t0, one.t7) for one in latency.accepted if one.t0 is not None and one.t7 is not None]
        if len(seen) != bounds[-1]:
            return []
        steps = (seen[start:end] for start, end in itertools.pairwise(bounds))
        return [max(t7 for _, t7 in step) - step[0][0] for step in steps]


def _words(data: bytes) -> list[int]:
    return [int(word) for word in np.frombuffer(data, "<u4")]
