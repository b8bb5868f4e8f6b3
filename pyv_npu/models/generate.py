"""Tokens from an ONNX decoder: prompt and steps at a level, every step compared with the ONNX reference."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from pyv_ext.elf import parse_elf
from pyv_ext.stop import Stop, StopReason
from pyv_npu.config import Config
from pyv_npu.config.qconfig_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.models.checks import check
from pyv_npu.models.ia import Machine
from pyv_npu.models.run import layer_names, target
from pyv_npu.models.timing_only import run_commands
from pyv_npu.platform import Platform
from pyv_npu.programs import find_program
from pyv_npu.results import run_program
from toolchain.data_types import NUMPY
from toolchain.llm.conversation import GENERATE, tokens_of
from toolchain.llm.decoder import (
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
from toolchain.llm.job import BY_BITS
from toolchain.llm.reference import Reference, head_scales
from toolchain.program_image import build_image
from toolchain.qconfig import QConfig

if TYPE_CHECKING:
    from pyv_npu.results import Console, RunResult

Values = Any


class Wish(NamedTuple):
    """What to generate."""

    prompt: tuple[int, ...]
    new: int
    """Tokens after the prompt."""
    given: tuple[int, ...] = ()
    """The first of them; the others are the largest logits."""
    t_max: int | None = None
    """Tokens that the caches hold; None: prompt and new tokens."""
    kv_bits: int | None = None
    """Of keys and values; None: the model's own type."""
    passes: str = "all"
    qconfig: Path | None = None
    """How wide weights are, `toolchain.qconfig`."""

    @property
    def exact(self) -> bool:
        """Whether numbers are those of the model: the reference then judges them."""
        return self.kv_bits is None and self.qconfig is None


@dataclass(frozen=True)
class Generated:
    """A conversation that took place."""

    tokens: tuple[int, ...]
    """The prompt's, then the new ones."""
    logits: Values
    """Of every token but the last, shape (tokens - 1, vocabulary)."""
    json: dict[str, Any]
    compiled: CompiledDecoder
    run: "RunResult | None" = None
    """What the firmware's run left; None without a core."""

    @property
    def correct(self) -> bool:
        """Whether every token's logits are as near to the reference as the type allows, where that is asked."""
        return all(step["ok"] is not False for step in self.json["generate"]["steps"])


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
    _check(decoder, wish)
    total = len(wish.prompt) + wish.new
    reference = Reference(decoder)
    kind, scales = None, None
    if wish.kv_bits is not None:
        kind = BY_BITS[wish.kv_bits]
        if kind is not DataType.FP16:
            scales = head_scales(reference, decoder, wish.prompt, wish.kv_bits)
    device = target(config)
    if wish.qconfig is not None:
        device = device._replace(qconfig=_qconfig(wish.qconfig))
    made = compile_decoder(
        decoder, device, len(wish.prompt), wish.t_max or total, passes=wish.passes, kv_kind=kind,
        kv_scales=scales,
    )  # fmt: skip
    inputs = _inputs(made, wish, total)
    level = config.run.sim_level
    if level == "CA_HYBRID":
        return _firmware(config, made, wish, inputs, reference, console, report, run)
    if level not in ("IA", "IA_TIMING"):
        raise UsageError(f"--sim-level {level}: decoders run at IA, IA_TIMING and CA_HYBRID")
    machine = Machine(made.compiled, config.npu, inputs)
    tokens = _computed(made, machine, wish, total)
    json: dict[str, Any] = {"schema": 1, "program": decoder.name, "sim_level": level}
    if level == "IA_TIMING":
        cycles = [_timed(config, made, position) for position in (0, *range(len(wish.prompt), total - 1))]
        json |= {"cycles": sum(cycles), "cycles_by_step": cycles}
    return _generated(made, wish, tokens, machine.read, json, reference)


def _qconfig(path: Path) -> QConfig:
    config = load_qconfig(path)
    for name in config.override:
        if name.endswith(".kv"):
            raise UsageError(f"{path}: override.{name}: a decoder's caches have one width, --qbits-kv")
    return config


def _check(decoder: Decoder, wish: Wish) -> None:
    for name, tokens in (("--prompt", wish.prompt), ("--given", wish.given)):
        for token in tokens:
            if not 0 <= token < decoder.vocab:
                raise UsageError(f"{name}: token {token}: the vocabulary has 0..{decoder.vocab - 1}")
    if not wish.prompt:
        raise UsageError("--prompt: must hold at least one token")
    if wish.new < 1:
        raise UsageError(f"--generate {wish.new}: must be at least 1")
    if len(wish.given) > wish.new:
        raise UsageError(f"--given: {len(wish.given)} tokens, --generate asks for {wish.new}")
    if wish.kv_bits is not None and wish.kv_bits not in BY_BITS:
        raise UsageError(f"--qbits-kv {wish.kv_bits}: must be one of {', '.join(map(str, BY_BITS))}")
    last = len(wish.prompt) + wish.new
    if wish.t_max is not None and last > wish.t_max:
        raise UsageError(f"--t-max {wish.t_max}: prompt and new tokens are {last}: they must fit the caches")


def _inputs(made: CompiledDecoder, wish: Wish, total: int) -> dict[str, bytes]:
    """What is in memory when the run begins."""
    positions = np.arange(len(wish.prompt), dtype="<i4").tobytes()
    return {
        PROMPT + IDS: np.asarray(wish.prompt, "<i4").tobytes(),
        PROMPT + (POSITIONS if made.decoder.positions else POSITION): positions,
        CONVERSATION: made.conversation((*wish.prompt, *wish.given), total),
    }


def _computed(made: CompiledDecoder, machine: Machine, wish: Wish, total: int) -> list[int]:
    """The conversation without a core: what firmware/apps/generate.c does."""
    commands, split = made.compiled.commands, made.prompt_commands
    tokens = [*wish.prompt, *wish.given]
    machine.run(commands[:split])
    following = _words(machine.read(PROMPT + NEXT))[-1]
    for position in range(len(wish.prompt), total):
        if position == len(tokens):
            tokens.append(following)
        if position + 1 < total:
            machine.memory.write_bytes(made.address(POSITION), position.to_bytes(4, "little"))
            machine.memory.write_bytes(made.address(IDS), tokens[position].to_bytes(4, "little"))
            machine.run(commands[split:])
            following = _words(machine.read(NEXT))[0]
    return tokens


def _words(data: bytes) -> list[int]:
    return [int(word) for word in np.frombuffer(data, "<u4")]


def _timed(config: Config, made: CompiledDecoder, position: int) -> int:
    """IA_TIMING: cycles of the prompt (position 0), or of the token at a position."""
    commands, name = made.compiled.commands, PROMPT + POSITION
    chosen = commands[: made.prompt_commands]
    if position:
        chosen, name = commands[made.prompt_commands :], POSITION
    memory = {made.address(name): position.to_bytes(4, "little")}
    return run_commands(chosen, config.npu, "IA_TIMING", memory=memory).cycles


def _firmware(
    config: Config, made: CompiledDecoder, wish: Wish, inputs: Mapping[str, bytes], reference: Reference,
    console: "Console | None", report: Path | None, run: Callable[[Platform], Stop],
) -> Generated:  # fmt: skip
    """CA_HYBRID: the firmware loops over the tokens."""
    compiled = made.compiled
    arguments = {"prefill": made.prompt_commands, "conversation": made.address(CONVERSATION)}
    elf = build_image(find_program(GENERATE).read_bytes(), compiled, inputs, arguments)
    left: dict[str, bytes] = {}

    def take(platform: Platform) -> Stop:
        stop = run(platform)
        for name in compiled.graph.outputs:
            size = compiled.graph.tensors[name].size
            left[name] = platform.npu_memory.read(made.address(name), size) or b""
        return stop

    program = parse_elf(elf, made.decoder.name)
    names = layer_names(compiled)
    submitted = names[: made.prompt_commands] + (wish.new - 1) * names[made.prompt_commands :]
    outcome = run_program(config, program, config.run.args, console, report, run=take, layers=submitted)
    ended = outcome.stop.reason is StopReason.EXIT and outcome.stop.code == 0
    tokens = tokens_of(left[CONVERSATION])
    return _generated(made, wish, tokens, left.__getitem__, outcome.json, reference if ended else None, outcome)


def _generated(
    made: CompiledDecoder, wish: Wish, tokens: Sequence[int], read: Callable[[str], bytes], json: dict[str, Any],
    reference: Reference | None, run: "RunResult | None" = None,
) -> Generated:  # fmt: skip
    """The result; a run that did not end well is not compared."""
    decoder, graph = made.decoder, made.compiled.graph
    log = graph.tensors[LOG]
    logits = np.frombuffer(read(LOG), NUMPY[log.dtype]).reshape(-1, decoder.vocab)[: len(tokens) - 1]
    kept = {name: read(name) for name in (LOG, *(cache.past for cache in decoder.caches))}
    used = made.compiled.commands
    caches = [graph.tensors[cache.past] for cache in decoder.caches]
    alloc = sum(cache.size for cache in caches)
    figures = {
        "prompt": list(wish.prompt), "tokens": list(tokens), "given": list(wish.given), "t_max": made.t_max,
        "kv_type": caches[0].dtype.name, "kv_bytes_alloc": alloc,
        "kv_bytes_used": alloc // made.t_max * (len(tokens) - 1),
        "commands": {"prompt": made.prompt_commands, "step": len(used) - made.prompt_commands},
        "outputs_sha256": {name: hashlib.sha256(data).hexdigest() for name, data in kept.items()},
        "steps": [] if reference is None else _steps(reference, wish, tokens, logits),
    }  # fmt: skip
    return Generated(tuple(tokens), logits, json | {"generate": figures}, made, run)


def _steps(reference: Reference, wish: Wish, tokens: Sequence[int], logits: Values) -> list[dict[str, Any]]:
    """How each token's logits compare with the reference on the same tokens; with `kv_bits` the error is reported."""
    found = []
    wanted = reference.logits(tokens, len(wish.prompt))
    for position, (got, want) in enumerate(zip(logits, wanted, strict=True)):
        compared = check(got, want)
        judged = wish.exact
        found.append(
            {
                "position": position, "token": tokens[position], "next": int(got.argmax()),
                "reference_next": int(want.argmax()), "error": compared["error"], "limit": compared["limit"],
                "ok": compared["ok"] if judged else None,
            }
        )  # fmt: skip
    return found
