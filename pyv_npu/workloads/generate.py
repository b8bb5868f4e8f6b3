"""Tokens from an ONNX decoder: prompt and steps at a level, every step compared with the ONNX reference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_device.abi.opcodes import DataType
from pyv_ext.elf import Program
from pyv_ext.engines.stop import Stop, StopReason
from pyv_npu.boot import find_program
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform
from pyv_npu.results import run_program
from pyv_npu.workloads.calibration import prompts
from pyv_npu.workloads.converse import converse, inputs_of
from pyv_npu.workloads.data import Values
from pyv_npu.workloads.generated import Generated, generated, step_cycles
from pyv_npu.workloads.image import loaded
from pyv_npu.workloads.run import layer_names
from pyv_npu.workloads.target import target_of
from pyv_npu.workloads.timing_only import run_commands
from pyv_npu.workloads.wish import Wish
from toolchain.decoders.decoder import (
    CONVERSATION,
    LOG,
    POSITION,
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

if TYPE_CHECKING:
    from pyv_npu.results import Console


@dataclass(frozen=True)
class Ready:
    """A decoder that is compiled for a wish."""

    wish: Wish
    made: CompiledDecoder
    inputs: Mapping[str, bytes]
    """What is in memory when a run begins."""

    def image(self, *, apart: bool = False) -> bytes:
        """An ELF that generates; `apart`: the weights are in a file of their own."""
        made = self.made
        arguments = {"prefill": made.prompt_commands, "conversation": made.address(CONVERSATION)}
        return build_image(find_program(GENERATE).read_bytes(), made.compiled, self.inputs, arguments, apart=apart)

    def program(self) -> Program:
        """The image as a loaded program, under the decoder's name."""
        return loaded(self.image(), self.made.compiled, self.made.decoder.name)


def generate(
    config: Config,
    path: Path,
    wish: Wish,
    console: "Console | None" = None,
    report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
) -> Generated:
    """Compile a decoder and run it at `config.run.sim_level`. ModelError, UsageError: one line."""
    return generate_decoder(config, load_decoder(path), wish, console, report, run)


def generate_decoder(
    config: Config,
    decoder: Decoder,
    wish: Wish,
    console: "Console | None" = None,
    report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
) -> Generated:
    """As `generate`, with a decoder in memory."""
    return run_ready(config, prepare(config, decoder, wish), console, report, run)


def prepare(config: Config, decoder: Decoder, wish: Wish) -> Ready:
    """Compile a decoder for a wish and the device of `config`. ModelError, UsageError: one line."""
    wish.check(decoder)
    if wish.precision == INT8:
        decoder = in_int8(decoder, prompts(decoder, wish.calibration, config.run.seed), wish.weights())
    kind, scales = None, None
    if wish.kv_bits is not None:
        kind = BY_BITS[wish.kv_bits]
        if kind is not DataType.FP16:
            scales = head_scales(decoder, wish.prompt, wish.kv_bits)
    made = compile_decoder(
        decoder, target_of(config.npu)._replace(qconfig=wish.weights()), len(wish.prompt), wish.t_max or wish.total,
        passes=wish.passes, kv_kind=kind, kv_scales=scales,
    )  # fmt: skip
    known = made.compiled.graph.index_bound(POSITION)
    if known is not None and wish.total - 1 > known:
        raise UsageError(
            f"--generate {wish.new}: the tables of {decoder.name} end at position {known - 1}: at most "
            f"{known + 1 - len(wish.prompt)} after a prompt of {len(wish.prompt)}"
        )
    return Ready(wish, made, inputs_of(made, wish))


def run_ready(
    config: Config,
    ready: Ready,
    console: "Console | None" = None,
    report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
) -> Generated:
    """Run a compiled decoder at `config.run.sim_level`. UsageError for a level that runs none."""
    level = config.run.sim_level
    if level == "CA_HYBRID":
        return _firmware(config, ready, console, report, run)
    if level not in ("IA", "IA_TIMING"):
        raise UsageError(f"--sim-level {level}: decoders run at IA, IA_TIMING and CA_HYBRID")
    made, wish = ready.made, ready.wish
    spoken = converse(made, config.npu, wish, ready.inputs)
    json: dict[str, Any] = {"schema": 1, "program": made.decoder.name, "sim_level": level}
    if level == "IA_TIMING":
        cycles = [_timed(config, made, position) for position in (0, *range(len(wish.prompt), wish.total - 1))]
        json |= {"cycles": sum(cycles), "cycles_by_step": cycles}
    return generated(made, wish, spoken.tokens, spoken.read, json, spoken.codes)


def _timed(config: Config, made: CompiledDecoder, position: int) -> int:
    """IA_TIMING: cycles of the prompt (position 0), or of the token at a position."""
    commands, name = made.compiled.commands, PROMPT + POSITION
    chosen = commands[: made.prompt_commands]
    if position:
        chosen, name = commands[made.prompt_commands :], POSITION
    memory = {made.address(name): position.to_bytes(4, "little")}
    return run_commands(chosen, config.npu, "IA_TIMING", memory=memory).cycles


def _firmware(
    config: Config, ready: Ready, console: "Console | None", report: Path | None, run: Callable[[Platform], Stop]
) -> Generated:
    """CA_HYBRID: the firmware loops over the tokens."""
    made, wish = ready.made, ready.wish
    compiled = made.compiled
    left: dict[str, bytes] = {}

    def take(platform: Platform) -> Stop:
        stop = run(platform)
        for name in compiled.graph.outputs:
            size = compiled.graph.tensors[name].size
            left[name] = platform.npu_memory.read(made.address(name), size) or b""
        return stop

    names = layer_names(compiled)
    submitted = names[: made.prompt_commands] + (wish.new - 1) * names[made.prompt_commands :]
    outcome = run_program(config, ready.program(), config.run.args, console, report, run=take, layers=submitted)
    ended = outcome.stop.reason is StopReason.EXIT and outcome.stop.code == 0
    json = outcome.json | {"cycles_by_step": step_cycles(made, wish, outcome.latency) if ended else []}
    tokens = tokens_of(left[CONVERSATION])
    codes = _codes(config, ready, tokens, left) if ended else None
    return generated(made, wish, tokens, left.__getitem__, json, codes, outcome)


def _codes(config: Config, ready: Ready, tokens: Sequence[int], left: Mapping[str, bytes]) -> list[dict[str, Values]]:
    """The codes of each step of this conversation: those of IA, unless it leaves other bytes, as after an injected
    fault."""
    made, wish = ready.made, ready.wish._replace(given=tuple(tokens[len(ready.wish.prompt) :]))
    if not (rounded(made.decoder.proto) and wish.exact):
        return [{} for _ in range(wish.new)]
    again = converse(made, config.npu, wish, ready.inputs)
    same = all(again.read(name) == left[name] for name in (LOG, *(cache.past for cache in made.decoder.caches)))
    return again.codes if same else [{} for _ in again.codes]
