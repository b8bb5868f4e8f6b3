"""ONNX decoder with a key/value cache: a prompt and generation steps at a level, compared with the ONNX reference."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from npu_device.abi.instructions import DEFAULT_SLOT
from npu_device.abi.opcodes import BITS, DataType
from npu_device.config import NpuConfig
from npu_device.kv_quant.methods import FLOAT8
from pyv_ext.elf import Program
from pyv_ext.engines.core import StopReason
from pyv_npu.boot import model_name, program_data
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.kv_quant import encoded_kv
from pyv_npu.observe.analysis.traffic import RoleTraffic
from pyv_npu.observe.latency.table import Latency
from pyv_npu.platform import Platform
from pyv_npu.result import Result, Stopwatch
from pyv_npu.workloads.compiled import (
    FIRMWARE_SUBMITS,
    GENERATED,
    check_submit,
    check_together,
    load_image,
    mapping_of,
    packed,
    seen_by_compiler,
    submission,
    target_of,
    target_with,
)
from pyv_npu.workloads.data import Values, prompts
from pyv_npu.workloads.firmware import LEVEL, run_program
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from pyv_npu.workloads.ia import Codes, CoreKernels, FunctionalMachine
from pyv_npu.workloads.kv_figures import KvTraffic
from pyv_npu.workloads.timing import TimingRun, run_commands
from pyv_npu.workloads.workload import PLAIN, SUBMITTING, PreparedWorkload, Session, Workload
from toolchain.codegen import Command
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
from toolchain.decoders.generation import GENERATE, WITH_KERNELS, tokens_of
from toolchain.decoders.quantization import in_int8
from toolchain.decoders.reference import head_scales
from toolchain.program_image import build_image
from toolchain.quantize.precision import INT8

if TYPE_CHECKING:
    from toolchain.mlir.npu.isa import Function

LEVELS = ("IA", "IA_TIMING", "CA_HYBRID")


class Conversation(NamedTuple):
    """Result of a generation at IA."""

    tokens: Sequence[int]
    read: Callable[[str], bytes]
    """Function from a tensor to its final bytes."""
    codes: Sequence[Mapping[str, Values]]
    """Codes of the prompt, then of each step; outputs of attention if caches or weights have another type than the
    model."""
    kernels: Sequence[CoreKernels]
    """Kernels of the prompt, then of each step."""


def check_level(config: Config) -> None:
    """Raise UsageError for a level without decoders."""
    if config.run.sim_level not in LEVELS:
        raise UsageError(f"--sim-level {config.run.sim_level}: decoders run at IA, IA_TIMING and CA_HYBRID")


@dataclass(frozen=True)
class Generation(Workload[GenerationDetail]):
    """ONNX decoder, in a file or in memory, with the request to generate."""

    defaults: ClassVar[Mapping[str, object]] = SUBMITTING
    decoder: Path | Decoder
    request: GenerationRequest

    @property
    def files(self) -> tuple[Path, ...]:
        request = self.request
        return (*request.calibration, *(file for file in (request.qconfig, request.thresholds) if file is not None))

    def uses_core(self, config: Config) -> bool:
        return config.run.sim_level == LEVEL

    def sees(self, config: Config) -> Hashable:
        request = self.request
        seed = config.run.seed if request.kv or not request.prompt else None
        return seen_by_compiler(config), seed, config.npu.kv_quant if request.kv else None

    def check(self, config: Config) -> None:
        check_level(config)
        check_submit(config, self.request.submit)

    def prepare(self, config: Config) -> "ReadyDecoder":
        """Compile the decoder for the request and the device of `config`."""
        self.check(config)
        decoder = _loaded(self.decoder) if isinstance(self.decoder, Path) else self.decoder
        request = self.request
        request = request.settled(decoder, config.run.seed)
        request.check(decoder)
        if decoder.proto is None:
            return self._of_layers(decoder, request, config)
        if request.precision == INT8:
            samples = prompts(decoder, request.calibration, config.run.seed, request.calibration_runs)
            decoder = in_int8(decoder, samples, request.weights(), request.calibration_method)
        bits, scales, tables = request.cache_bits(), None, False
        method = request.method
        blocks = self._blocks(decoder, request, config) if method.encoded else ()
        widths = {bits(layer, head) for layer, cache in enumerate(decoder.caches[::2]) for head in range(cache.heads)}
        if any(width is not None and width < BITS[DataType.FP16] for width in widths):
            tables = config.npu.kv_quant.scales == "token" and request.granularity != "tile"
            scales = None if tables else head_scales(decoder, request.prompt, bits)
        compiled = compile_decoder(
            decoder, target_with(config.npu, request.weights(), mapping_of(config)), len(request.prompt),
            request.t_max or request.total, passes=request.passes, kv_bits=bits, kv_scales=scales,
            tiled=max(1, request.new - 1) if request.granularity == "tile" else 0, kv_blocks=blocks,
            token_scales=tables, kv_element=method.element if method.element in FLOAT8 else None,
        )  # fmt: skip
        bound = compiled.compiled.graph.index_bound(POSITION)
        if bound is not None and request.total - 1 > bound:
            raise UsageError(
                f"--generate {request.new}: the tables of {decoder.name} end at position {bound - 1}: at most "
                f"{bound + 1 - len(request.prompt)} after a prompt of {len(request.prompt)}"
            )
        return ReadyDecoder(request, compiled, config.core.custom_slot)

    @staticmethod
    def _blocks(decoder: Decoder, request: GenerationRequest, config: Config) -> "list[Values]":
        """Return the parameter block of each layer, with thresholds from a file or profiled on prompts."""
        shown = prompts(decoder, request.calibration, config.run.seed, request.calibration_runs)
        samples = [] if request.thresholds is not None else encoded_kv.samples_of(decoder, request.method, shown)
        return encoded_kv.blocks(decoder, request.method, config.npu.kv_quant, samples, request.thresholds)

    def _of_layers(self, decoder: Decoder, request: GenerationRequest, config: Config) -> "ReadyDecoder":
        """Prepare a decoder in NPU-IR, with its own types, prompt length and cache length. UsageError for other
        values."""
        from toolchain.decoders.layers import LayerDecoder

        assert isinstance(decoder, LayerDecoder)
        for option, value in (
            ("--precision", request.precision), ("--qbits-kv", request.kv_bits), ("--qconfig", request.qconfig),
            ("--granularity", request.granularity != "macro"), ("--kv", request.kv),
        ):  # fmt: skip
            if value:
                raise UsageError(f"{option}: NPU-IR of a decoder is behind that; compile its ONNX model with it")
        for option, value, expected in (("--prompt", len(request.prompt), decoder.prompt),
                                   ("--t-max", request.t_max or decoder.t_max, decoder.t_max)):  # fmt: skip
            if value != expected:
                raise UsageError(f"{option}: {value} tokens: {decoder.name} is for {expected}")
        if request.total > decoder.t_max:
            raise UsageError(f"--generate {request.new}: the caches of {decoder.name} hold {decoder.t_max} tokens")
        compiled = decoder.compiled(target_of(config.npu, mapping_of(config)), request.passes)
        return ReadyDecoder(request, compiled, config.core.custom_slot)


def _loaded(path: Path) -> Decoder:
    """Load the decoder in an ONNX file or in a module of NPU-IR."""
    if path.suffix == ".mlir":
        from toolchain.decoders.layers import load_layers

        return load_layers(path)
    return replace(load_decoder(path), name=model_name(path))


@dataclass(frozen=True)
class ReadyDecoder(PreparedWorkload[GenerationDetail]):
    """Decoder compiled for a request."""

    request: GenerationRequest
    decoder: CompiledDecoder
    slot: int = DEFAULT_SLOT
    """Opcode slot of the instructions of generated code."""

    @property
    def compiled(self) -> Compiled:
        return self.decoder.compiled

    @property
    def inputs(self) -> dict[str, bytes]:
        """Memory contents at the begin of a run."""
        prompt = np.asarray(self.request.prompt, "<i4")
        positions = np.arange(len(prompt), dtype="<i4").tobytes()
        conversation = self.decoder.conversation((*self.request.prompt, *self.request.given), self.request.total)
        return {
            PROMPT + IDS: prompt.tobytes(),
            PROMPT + (POSITIONS if self.decoder.decoder.positions else POSITION): positions,
            CONVERSATION: conversation,
        }

    def image(self, *, split: bool = False, bare: bool = False) -> bytes:
        """Return an ELF that generates; `split`: weights are in a separate file; `bare`: weights are omitted."""
        decoder = self.decoder
        arguments = {"conversation": decoder.address(CONVERSATION)}
        if self.request.submit == GENERATED:
            from toolchain.mlir.npu import generated

            check_together(split)
            return generated.image(
                decoder.compiled, self._functions(), self.inputs, self.slot, application=GENERATE,
                arguments=arguments, bare=bare,
            )  # fmt: skip
        arguments |= {"prefill": decoder.prompt_commands, "stride": decoder.step_commands if decoder.tiled else 0}
        firmware = program_data(WITH_KERNELS if decoder.compiled.kernels else GENERATE)
        return build_image(firmware, decoder.compiled, self.inputs, arguments, split=split, bare=bare)

    def emitted(self, stage: str) -> bytes:
        """Return a stage of the lowering (docs/mlir.md)."""
        from toolchain.mlir.npu import generated

        return generated.emit_stage(stage, self.compiled, self._functions(), self.slot)

    def _functions(self) -> "list[Function]":
        """Return the functions of generated code: the prompt and a token after it, with tile commands by position."""
        from toolchain.mlir.npu import isa

        decoder = self.decoder
        prompt, words = decoder.prompt_tokens, (decoder.address(POSITION), decoder.address(IDS))
        by_position = {prompt + index: decoder.step(index) for index in range(decoder.tiled)}
        first = isa.Function(isa.PROMPT, self.compiled.commands[: decoder.prompt_commands])
        step = isa.Function(isa.STEP, () if by_position else decoder.step(0), by_position, words)
        return [first, step]

    def program(self) -> Program:
        """Return the image as a loaded program, under the decoder's name."""
        return load_image(self.image(bare=True), self.decoder.compiled, self.decoder.decoder.name)

    @property
    def description(self) -> dict[str, Any]:
        """Keys of model.json for the request."""
        request, decoder = self.request, self.decoder
        document = {
            "prompt": list(request.prompt), "given": list(request.given), "new": request.new, "t_max": decoder.t_max,
            "commands": {"prompt": decoder.prompt_commands, "step": decoder.step_commands},
        }  # fmt: skip
        return {"generate": document}

    def run(self, config: Config, session: Session = PLAIN) -> Result[GenerationDetail]:
        """Generate at IA, IA_TIMING or CA_HYBRID. UsageError for another level."""
        check_level(config)
        config = packed(config, self.compiled.target.qconfig)
        if config.run.sim_level == LEVEL:
            return self._through_firmware(config, session)
        host = Stopwatch()
        decoded = self.decode(config.npu, self.request.given)
        cycles: list[int] | None = None
        timed: list[TimingRun] = []
        traffic = moved = None
        if config.run.sim_level == "IA_TIMING":
            traffic, moved = self._traffic(), RoleTraffic()
            steps = range(len(self.request.prompt), self.request.total - 1)
            counts = encoded_kv.counts_of(self.decoder, decoded.read) if self.decoder.kv_blocks else {}
            tables = encoded_kv.tables(self.decoder, counts) if counts else {}
            timed = [
                self._timed(config, position, traffic, moved, tables, kernels)
                for position, kernels in zip((0, *steps), decoded.kernels, strict=True)
            ]
            cycles = [run.cycles for run in timed]
        detail = GenerationDetail.of(
            self.decoder, self.request, decoded.tokens, decoded.read, decoded.codes, cycles, traffic, config.npu
        )
        total = None if cycles is None else sum(cycles)
        if total is not None and self.decoder.kv_blocks:
            detail = detail.with_engines((run.kv_engines for run in timed), total, config.npu)
        seconds = {} if cycles is None else host.figures()
        return Result(self.decoder.decoder.name, config, detail, total, host=seconds, moved=moved)

    def decode(self, npu: NpuConfig, continuation: Sequence[int]) -> Conversation:
        """Decode at IA: the prompt at once, then token by token, as in firmware/apps/generate.c. `continuation`: first
        tokens after the prompt."""
        decoder, request = self.decoder, self.request
        machine = FunctionalMachine(decoder.compiled, npu, self.inputs)
        first, step_codes = self._codes()
        tokens = [*request.prompt, *continuation]
        kernels = [CoreKernels(decoder.compiled, commands) for commands in self._steps()]
        machine.run(kernels[0].commands, partial(first.take, machine.read), kernels[0].take)
        codes, following = [first.values], int(np.frombuffer(machine.read(PROMPT + NEXT), "<u4")[-1])
        for position in range(len(request.prompt), request.total):
            if position == len(tokens):
                tokens.append(following)
            if position + 1 < request.total:
                machine.memory.write_bytes(decoder.address(POSITION), position.to_bytes(4, "little"))
                machine.memory.write_bytes(decoder.address(IDS), tokens[position].to_bytes(4, "little"))
                step = kernels[1 + position - len(request.prompt)]
                machine.run(step.commands, partial(step_codes.take, machine.read), step.take)
                codes.append(dict(step_codes.values))
                following = int(np.frombuffer(machine.read(NEXT), "<u4")[0])
        return Conversation(tokens, machine.read, codes, kernels)

    def _codes(self) -> tuple[Codes, Codes]:
        """Return empty codes for the prompt and for a step, of the tensors in both."""
        graph = self.decoder.compiled.graph
        decoder = self.decoder.decoder
        names = decoder.rounded if self.request.exact else decoder.attended
        common = Codes(graph, names, PROMPT).names & Codes(graph, names).names
        return Codes(graph, common, PROMPT), Codes(graph, common)

    def _steps(self) -> list[Sequence[Command]]:
        """Return the commands of the prompt and of each token after it, in the order of submission."""
        prompt = self.compiled.commands[: self.decoder.prompt_commands]
        if self.decoder.tiled:
            return [prompt, *(self.decoder.step(index) for index in range(self.request.new - 1))]
        return [prompt, *[self.decoder.step(0)] * (self.request.new - 1)]

    def _traffic(self) -> KvTraffic:
        return KvTraffic(self.decoder.caches, self._steps())

    def _timed(
        self, config: Config, position: int, traffic: KvTraffic, moved: RoleTraffic, tables: Mapping[int, bytes],
        kernels: CoreKernels,
    ) -> TimingRun:  # fmt: skip
        """Time the prompt (position 0), or the token at a position, at IA_TIMING. `tables`: counts of encoded keys and
        values, which determine sizes."""
        decoder = self.decoder
        steps, step, name = self._steps(), 0, PROMPT + POSITION
        if position:
            step, name = 1 + position - len(self.request.prompt), POSITION
        first = sum(map(len, steps[:step]))
        memory = {decoder.address(name): position.to_bytes(4, "little"), **tables}
        watch = partial(traffic.add, first=first)
        kernel_time = kernels.cycles(config)
        timed = run_commands(steps[step], config.npu, "IA_TIMING", memory=memory, watch=watch, kernels=kernel_time)
        moved.join(timed.traffic)
        return timed

    def _through_firmware(self, config: Config, session: Session) -> Result[GenerationDetail]:
        """Run at CA_HYBRID: the firmware loops over the tokens."""
        decoder, request = self.decoder, self.request
        compiled = decoder.compiled
        memory: dict[str, bytes] = {}

        def take(platform: Platform) -> None:
            for name in compiled.graph.outputs:
                size = compiled.graph.tensors[name].size
                memory[name] = platform.npu_memory.read(decoder.address(name), size) or b""

        layers = [command.layer for step in self._steps() for command in step]
        result = run_program(config, self.program(), config.run.args, session, layers=layers, after=take)
        is_finished = result.stop.reason is StopReason.EXIT and result.stop.code == 0
        tokens = tokens_of(memory[CONVERSATION])
        codes = self._codes_of(config.npu, tokens, memory) if is_finished else None
        cycles = self._step_cycles(result.latency) if is_finished else []
        traffic = self._traffic()
        for batch in result.events.batches() if result.events is not None else ():
            traffic.add(batch)
        detail = GenerationDetail.of(decoder, request, tokens, memory.__getitem__, codes, cycles, traffic, config.npu)
        if decoder.kv_blocks and result.cycles is not None:
            detail = detail.with_engines([(result.counters or {}).get("kv_engines", {})], result.cycles, config.npu)
        if is_finished and request.submit == GENERATED:
            firmware = replace(self, request=request._replace(submit=FIRMWARE_SUBMITS)).program()
            prebuilt = run_program(config, firmware, config.run.args, layers=layers)
            savings = submission(self._submitted_in(result.latency), self._submitted_in(prebuilt.latency), len(layers))
            detail = replace(detail, figures={**detail.figures, "submission": savings})
        return result.extended(detail)

    def _submitted_in(self, latency: Latency) -> int | None:
        """Return the core cycles from the first to the last submission of the prompt and of each token, in sum; None
        if submissions are missing."""
        leave = [entry.leave for entry in latency.accepted]
        bounds = self._bounds()
        if len(leave) != bounds[-1]:
            return None
        return sum(leave[end - 1] - leave[start] for start, end in itertools.pairwise(bounds))

    def _bounds(self) -> list[int]:
        """Return the number of submissions before the prompt, before each token after it, and at the end."""
        first, step = self.decoder.prompt_commands, self.decoder.step_commands
        return [0, *range(first, first + self.request.new * step, step)]

    def _codes_of(
        self, npu: NpuConfig, tokens: Sequence[int], memory: Mapping[str, bytes]
    ) -> Sequence[Mapping[str, Values]]:
        """Return the codes of each step, from a replay at IA; empty if its bytes differ, as after an injected fault."""
        decoder, request = self.decoder, self.request
        if request.exact and not decoder.decoder.rounded:
            return [{} for _ in range(request.new)]
        replay = self.decode(npu, tokens[len(request.prompt) :])
        is_equal = all(replay.read(name) == memory[name] for name in (LOG, *(cache.tensor for cache in decoder.caches)))
        return replay.codes if is_equal else [{} for _ in replay.codes]

    def _step_cycles(self, latency: Latency) -> list[int]:
        """Return the core cycles of the prompt and of each token after it, from t0 of the first command to the last t7,
        when the firmware knows that all are done (docs/latency.md); [] if some are missing, as in a run from a
        snapshot. Generated code has no submit functions, so that t0 is when the command leaves the core."""
        bounds = self._bounds()
        begun = [entry.leave if entry.t0 is None else entry.t0 for entry in latency.accepted]
        samples = [(t0, entry.t7) for t0, entry in zip(begun, latency.accepted, strict=True) if entry.t7 is not None]
        if len(samples) != bounds[-1]:
            return []
        steps = (samples[start:end] for start, end in itertools.pairwise(bounds))
        return [max(t7 for _, t7 in step) - step[0][0] for step in steps]
