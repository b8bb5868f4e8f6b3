"""A small ONNX decoder that serves, with values: the tokens of each request are really computed.

So many requests run as there are slots; each slot is a memory with the weights and one set of caches. A request that is
preempted loses its slot: another one's keys and values come over its own. It computes them again later, in whatever
slot is free, or they are copied to swap space, which all slots share, and from there to that slot. What is answered
must not depend on any of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import NpuConfig
from npu_device.memory.memory import sparse
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.result import Detail, Result
from pyv_npu.sections import Facts, Section
from pyv_npu.serving.figures import KvBytes, preemptions_text, requests_csv, run_keys, summary
from pyv_npu.serving.on_core import serve_on_core
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.server import Run, serve
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.ia import FunctionalMachine
from pyv_npu.workloads.timing import run_commands
from pyv_npu.workloads.workload import ProgressDisplay, hidden
from toolchain.backend import addressed
from toolchain.codegen import Command
from toolchain.decoders.decoder import CONVERSATION, IDS, NEXT, POSITION, CompiledDecoder, compile_decoder, load_decoder
from toolchain.decoders.swap import block_bytes, copies, runs_of


@dataclass
class Held:
    """A request in the memory of its slot."""

    tokens: list[int]
    """The prompt, and what was answered."""
    slot: int = -1
    computed: int = 0
    following: int = -1
    """What the last token that was computed leads to."""
    kept: tuple[int, ...] = ()
    """Addresses of its blocks of swap space."""


class DecoderServer:
    """A decoder, and the memories of its slots."""

    def __init__(self, path: Path, npu: NpuConfig, longest: int, config: SchedulerConfig, requests: int) -> None:
        """`longest`: tokens of a request; ModelError: no decoder, or one that does not fit."""
        decoder = load_decoder(path)
        self.vocab = decoder.vocab
        self._npu = npu
        self.made: CompiledDecoder = compile_decoder(decoder, target_of(npu), 1, longest)
        inputs = {CONVERSATION: self.made.conversation((0,), 1)}
        self._runs, self._block = runs_of(self.made.caches), config.block_size
        size, most = block_bytes(self._runs, self._block), requests * -(-longest // self._block)
        blocks = min(config.swap_blocks, most)
        self._copies = -(-max(self.made.compiled.end, self.made.compiled.memory.end) // PAGE) * PAGE
        """Where the extended blocks of a copy are; swap space is behind them."""
        first = self._copies + -(-most * len(self._runs) * EXTENDED_SIZE // PAGE) * PAGE
        if blocks and first + blocks * size > DRAM_BASE + npu.dram.size:
            raise UsageError(
                f"--swap-blocks {config.swap_blocks}: {blocks} of {size} bytes end behind npu.dram.size "
                f"{npu.dram.size}; give fewer, or more DRAM"
            )
        self._free = [first + at * size for at in range(blocks)]
        swap = [("SWAP", self._copies, sparse(first + blocks * size - self._copies))] if blocks else []
        self.slots = [FunctionalMachine(self.made.compiled, npu, inputs, swap) for _ in range(config.max_num_seqs)]
        self.computed = 0
        """Tokens so far."""
        self._cycles: dict[int, int] = {}
        self._swaps: dict[tuple[int, bool], int] = {}

    def step_cycles(self, chunks: Sequence[tuple[int, int]]) -> int:
        """CA_HYBRID cycles of a step: each token of each chunk by itself, at its position."""
        return sum(self._token(at) for tokens, context in chunks for at in range(context, context + tokens))

    def _token(self, position: int) -> int:
        if position not in self._cycles:
            memory = {self.made.address(POSITION): position.to_bytes(4, "little")}
            self._cycles[position] = run_commands(self.made.step(0), self._npu, memory=memory).cycles
        return self._cycles[position]

    def swap_cycles(self, tokens: int, out: bool) -> int:
        """CA_HYBRID cycles of the copies of a request's tokens."""
        key = tokens, out
        if key not in self._swaps:
            made = self.copies(tokens, self._free[: -(-tokens // self._block)], out)
            self._swaps[key] = run_commands(made, self._npu).cycles
        return self._swaps[key]

    def copies(self, tokens: int, blocks: Sequence[int], out: bool) -> list[Command]:
        """The commands that copy the first tokens of a slot's caches to blocks of swap space, or back."""
        made = copies(self._runs, tokens, self._block, blocks, self.made.compiled.target, out)
        return addressed(made, self._copies - len(made) * DESCRIPTOR_SIZE)

    def swap(self, one: Held, tokens: int, out: bool) -> None:
        """Copy a request's keys and values between the caches of its slot and its blocks of swap space."""
        machine, made = self.slots[one.slot], self.copies(tokens, one.kept, out)
        machine.memory.write_bytes(self._copies, b"".join(one.block.pack() for one in made if one.block is not None))
        machine.run(made)

    def prompt(self, request: Request) -> list[int]:
        """The tokens of a prompt; drawn by the request's number where the workload does not say. UsageError."""
        found = list(request.tokens)
        if not found:
            source = np.random.default_rng(request.id)
            found = [int(token) for token in source.integers(0, self.vocab, request.input_toks)]
        if bad := [one for one in found if not 0 <= one < self.vocab]:
            raise UsageError(f"request {request.id}: token {bad[0]}: the vocabulary has 0..{self.vocab - 1}")
        return found

    def _take(self, one: Held, count: int) -> None:
        machine = self.slots[one.slot]
        for position in range(one.computed, one.computed + count):
            machine.memory.write_bytes(self.made.address(POSITION), position.to_bytes(4, "little"))
            machine.memory.write_bytes(self.made.address(IDS), one.tokens[position].to_bytes(4, "little"))
            machine.run(self.made.step(0))
        one.computed += count
        self.computed += count
        one.following = int(np.frombuffer(machine.read(NEXT), "<u4")[0])

    def compute(self, workload: Workload, run: Run) -> dict[int, tuple[int, ...]]:
        """Go through the ledger of a run with values: request -> the tokens of its answer."""
        known = {request.id: request for request in workload.requests}
        held = {request: Held(self.prompt(known[request])) for request in known if request not in run.refused}
        free = list(range(len(self.slots)))
        for row in run.ledger:
            tokens_of = dict(row.swapped)
            for request in row.preempted:
                one = held[request]
                one.computed = tokens_of.get(request, 0)
                if one.computed:
                    one.kept = self.take_blocks(one.computed)
                    self.swap(one, one.computed, out=True)
                free.append(one.slot)
                one.slot = -1
            for request, tokens, context in row.scheduled:
                one = held[request]
                if one.slot < 0:
                    one.slot = free.pop(0)
                if one.kept:
                    self.swap(one, one.computed, out=False)
                    self._free += one.kept
                    one.kept = ()
                assert one.computed == context
                self._take(one, tokens)
                if one.computed == len(one.tokens):
                    one.tokens.append(one.following)
            for request in row.finished:
                free.append(held[request].slot)
        return {request: tuple(one.tokens[known[request].input_toks :]) for request, one in held.items()}

    def take_blocks(self, tokens: int) -> tuple[int, ...]:
        """Addresses of blocks of swap space for so many tokens; the scheduler knows that there are as many."""
        count = -(-tokens // self._block)
        taken, self._free = self._free[:count], self._free[count:]
        return tuple(taken)

    def alone(self, workload: Workload, run: Run) -> dict[int, tuple[int, ...]]:
        """The answers of each request by itself, from its first token on without a break."""
        made = {}
        for request in workload.requests:
            if request.id in run.refused:
                continue
            one = Held(self.prompt(request), 0)
            while len(one.tokens) < request.total:
                self._take(one, len(one.tokens) - one.computed)
                one.tokens.append(one.following)
            made[request.id] = tuple(one.tokens[request.input_toks :])
        return made

    @property
    def kv_bytes(self) -> KvBytes:
        """Bytes of a token in all caches."""
        token = sum(cache.token_bytes for cache in self.made.caches)
        return KvBytes(token, token, 0)


@dataclass(frozen=True)
class ServedValues(Detail):
    """A workload that was served with values."""

    model: str
    workload: Workload
    run: Run
    config: SchedulerConfig
    answers: Mapping[int, tuple[int, ...]]
    same: bool
    """Whether they are those of each request by itself."""
    slo: Mapping[str, int]
    kv: KvBytes
    core: Config | None
    """The platform whose firmware schedules; None: the host does."""

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        return {
            **run_keys(self.run, self.core),
            "workload": {"name": self.workload.name, "requests": len(self.workload.requests)},
            **summary(self.run, self.slo, self.kv), "control": dict(self.run.control),
            "blocks": {"total": self.config.blocks, "allocated": self.run.allocated, "released": self.run.released},
            "refusals": {str(request): why for request, why in self.run.refused.items()},
            "answers": {str(request): list(tokens) for request, tokens in self.answers.items()},
            "answers_as_alone": self.same,
        }  # fmt: skip

    def sections(self, result: Result[Any]) -> list[Section]:
        """Returns the requests, the pressure, and whether it changed an answer."""
        figures = summary(self.run, self.slo, self.kv)
        facts = [
            ("requests", f"{figures['requests']:,} of {self.workload.name}, {figures['refused']:,} refused"),
            ("tokens", f"{figures['input_tokens']:,} in, {figures['output_tokens']:,} out"),
            ("time", f"{figures['seconds'] * 1e3:,.3f} ms, {figures['steps']:,} steps"),
            ("blocks", f"{figures['most_blocks']:,} of {self.config.blocks:,} in use at most, of "
             f"{self.config.block_size} tokens"),
            ("preemptions", preemptions_text(figures)),
            ("answers", "those of each by itself" if self.same else "not those of each by itself: a bug"),
        ]  # fmt: skip
        return [Section("figures", f"{self.model} serves with values", [Facts(facts)])]

    def files(self, result: Result[Any]) -> dict[str, bytes]:
        """requests.csv, steps.csv."""
        table = requests_csv(self.run, self.model, self.kv)
        return {"requests.csv": table.encode(), "steps.csv": self.run.steps_csv}


PAGE = 4096
"""What swap space begins at a multiple of."""
MOST_SLOTS, MOST_SERVED = 64, 4096
"""Requests that run, and tokens of a request, with values."""


def serve_values(
    path: Path, workload: Workload, config: SchedulerConfig, npu: NpuConfig, core: Config | None,
    slo: Mapping[str, int], progress: ProgressDisplay = hidden,
) -> ServedValues:  # fmt: skip
    """Serve with values; `core`: the platform whose firmware schedules, None: the host does. `progress`: as of
    `Session`. UsageError, ModelError,
    BadInputError: what cannot be served, one line."""
    longest = max(request.total for request in workload.requests)
    for name, value, most in (("--max-num-seqs", config.max_num_seqs, MOST_SLOTS),
                              ("tokens of a request", longest, MOST_SERVED)):  # fmt: skip
        if value > most:
            raise UsageError(f"{name} {value}: a decoder with values serves at most {most}; give less")
    if config.prefix_cache:
        raise UsageError("--prefix-cache: each slot of a decoder with values has caches of its own; drop it")
    server = DecoderServer(path, npu, longest, config, len(workload.requests))
    if core is None:
        run = serve(workload, config, npu.clock_hz, server.step_cycles, server.swap_cycles, progress)
    else:
        run = serve_on_core(workload, config, core, server.step_cycles, server.swap_cycles, progress)
    tokens = sum(row.tokens for row in run.ledger) + sum(one.request.total - 1 for one in run.served)
    progress(lambda: f"{server.computed:,} of {tokens:,} tokens are computed, in the batch and one by one")
    answers = server.compute(workload, run)
    same = answers == server.alone(workload, run)
    return ServedValues(path.stem, workload, run, config, answers, same, slo, server.kv_bytes, core)
