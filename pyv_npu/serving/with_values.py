"""Serving of a small ONNX decoder with values: the tokens of each request are computed.

Each running request has a slot, a memory with the weights and a set of caches. A preempted request loses its slot, and
another request overwrites its keys and values. It later computes them again in any free slot, or they are copied to
swap space, which all slots share, and from there to the new slot. Answers must not depend on any of this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import NpuConfig
from pyv_native.arena import zeros
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.result import Detail, Result
from pyv_npu.sections import Facts, Section
from pyv_npu.serving.figures import KvBytes, preemptions_text, run_keys, summary, tables
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
class SlotRequest:
    """State of a request and its slot."""

    tokens: list[int]
    """Prompt and generated tokens."""
    slot: int = -1
    computed: int = 0
    following: int = -1
    """Token after the last computed token."""
    swap_blocks: tuple[int, ...] = ()
    """Addresses of the request's swap blocks."""


class DecoderServer:
    """Decoder with the memories of its slots."""

    def __init__(self, path: Path, npu: NpuConfig, longest: int, config: SchedulerConfig, requests: int) -> None:
        """`longest`: maximum tokens of a request; ModelError: no decoder, or a decoder that does not fit."""
        decoder = load_decoder(path)
        self.vocab = decoder.vocab
        self._npu = npu
        self.decoder: CompiledDecoder = compile_decoder(decoder, target_of(npu), 1, longest)
        inputs = {CONVERSATION: self.decoder.conversation((0,), 1)}
        self._runs, self._block = runs_of(self.decoder.caches), config.block_size
        size, most = block_bytes(self._runs, self._block), requests * -(-longest // self._block)
        blocks = min(config.swap_blocks, most)
        self._copies = -(-max(self.decoder.compiled.end, self.decoder.compiled.memory.end) // PAGE) * PAGE
        """Address of the extended blocks of a copy; swap space follows."""
        first = self._copies + -(-most * len(self._runs) * EXTENDED_SIZE // PAGE) * PAGE
        if blocks and first + blocks * size > DRAM_BASE + npu.dram.size:
            raise UsageError(
                f"--swap-blocks {config.swap_blocks}: {blocks} of {size} bytes end behind npu.dram.size "
                f"{npu.dram.size}; give fewer, or more DRAM"
            )
        self._free = [first + at * size for at in range(blocks)]
        swap = [("SWAP", self._copies, zeros(first + blocks * size - self._copies))] if blocks else []
        self.slots = [FunctionalMachine(self.decoder.compiled, npu, inputs, swap) for _ in range(config.max_num_seqs)]
        self.computed = 0
        """Number of tokens computed so far."""
        self._cycles = cache(self._token_cycles)
        self.swap_cycles = cache(self._swap_cycles)
        """Function from (tokens, whether to swap space) to the CA_HYBRID cycles of the copies of a request."""

    def step_cycles(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the CA_HYBRID cycles of a step: each token of each chunk separately, at its position."""
        return sum(self._cycles(at) for tokens, context in chunks for at in range(context, context + tokens))

    def _token_cycles(self, position: int) -> int:
        memory = {self.decoder.address(POSITION): position.to_bytes(4, "little")}
        return run_commands(self.decoder.step(0), self._npu, memory=memory).cycles

    def _swap_cycles(self, tokens: int, out: bool) -> int:
        commands = self.copies(tokens, self._free[: -(-tokens // self._block)], out)
        return run_commands(commands, self._npu).cycles

    def copies(self, tokens: int, blocks: Sequence[int], out: bool) -> list[Command]:
        """Return the commands that copy the first tokens of a slot's caches to blocks of swap space, or back."""
        commands = copies(self._runs, tokens, self._block, blocks, self.decoder.compiled.target, out)
        return addressed(commands, self._copies - len(commands) * DESCRIPTOR_SIZE)

    def swap(self, entry: SlotRequest, tokens: int, out: bool) -> None:
        """Copy a request's keys and values between the caches of its slot and its blocks of swap space."""
        machine, commands = self.slots[entry.slot], self.copies(tokens, entry.swap_blocks, out)
        machine.memory.write_bytes(
            self._copies, b"".join(command.block.pack() for command in commands if command.block is not None)
        )
        machine.run(commands)

    def prompt(self, request: Request) -> list[int]:
        """Return the tokens of a prompt; if unknown, random tokens with the request's id as seed. UsageError."""
        tokens = list(request.tokens)
        if not tokens:
            source = np.random.default_rng(request.id)
            tokens = [int(token) for token in source.integers(0, self.vocab, request.input_toks)]
        if invalid := [token for token in tokens if not 0 <= token < self.vocab]:
            raise UsageError(f"request {request.id}: token {invalid[0]}: the vocabulary has 0..{self.vocab - 1}")
        return tokens

    def _take(self, entry: SlotRequest, count: int) -> None:
        machine = self.slots[entry.slot]
        for position in range(entry.computed, entry.computed + count):
            machine.memory.write_bytes(self.decoder.address(POSITION), position.to_bytes(4, "little"))
            machine.memory.write_bytes(self.decoder.address(IDS), entry.tokens[position].to_bytes(4, "little"))
            machine.run(self.decoder.step(0))
        entry.computed += count
        self.computed += count
        entry.following = int(np.frombuffer(machine.read(NEXT), "<u4")[0])

    def compute(self, workload: Workload, run: Run) -> dict[int, tuple[int, ...]]:
        """Replay the ledger of a run with values. Return request -> tokens of its answer."""
        requests_by_id = {request.id: request for request in workload.requests}
        entries = {
            request: SlotRequest(self.prompt(requests_by_id[request]))
            for request in requests_by_id
            if request not in run.refused
        }
        free = list(range(len(self.slots)))
        for row in run.ledger:
            tokens_of = dict(row.swapped)
            for request in row.preempted:
                entry = entries[request]
                entry.computed = tokens_of.get(request, 0)
                if entry.computed:
                    entry.swap_blocks = self.take_blocks(entry.computed)
                    self.swap(entry, entry.computed, out=True)
                free.append(entry.slot)
                entry.slot = -1
            for request, tokens, context in row.scheduled:
                entry = entries[request]
                if entry.slot < 0:
                    entry.slot = free.pop(0)
                if entry.swap_blocks:
                    self.swap(entry, entry.computed, out=False)
                    self._free += entry.swap_blocks
                    entry.swap_blocks = ()
                assert entry.computed == context
                self._take(entry, tokens)
                if entry.computed == len(entry.tokens):
                    entry.tokens.append(entry.following)
            for request in row.finished:
                free.append(entries[request].slot)
        return {
            request: tuple(entry.tokens[requests_by_id[request].input_toks :]) for request, entry in entries.items()
        }

    def take_blocks(self, tokens: int) -> tuple[int, ...]:
        """Allocate swap blocks for `tokens`, whose addresses are returned; the scheduler ensures that they are free."""
        count = -(-tokens // self._block)
        blocks, self._free = self._free[:count], self._free[count:]
        return tuple(blocks)

    def unbatched(self, workload: Workload, run: Run) -> dict[int, tuple[int, ...]]:
        """Return the answers of each request computed alone, without preemption."""
        answers = {}
        for request in workload.requests:
            if request.id in run.refused:
                continue
            entry = SlotRequest(self.prompt(request), 0)
            while len(entry.tokens) < request.total:
                self._take(entry, len(entry.tokens) - entry.computed)
                entry.tokens.append(entry.following)
            answers[request.id] = tuple(entry.tokens[request.input_toks :])
        return answers

    @property
    def kv_bytes(self) -> KvBytes:
        """Bytes of a token in all caches."""
        token = sum(cache.token_bytes for cache in self.decoder.caches)
        return KvBytes(token, token, 0)


@dataclass(frozen=True)
class ServedValues(Detail):
    """Result of serving with values."""

    model: str
    workload: Workload
    run: Run
    config: SchedulerConfig
    answers: Mapping[int, tuple[int, ...]]
    same: bool
    """Whether the answers equal those of each request alone."""
    slo: Mapping[str, int]
    kv: KvBytes
    core: Config | None
    """Platform whose firmware schedules; None: the host schedules."""

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
        """Return the requests, the use of blocks, and whether batching changed an answer."""
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

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        return tables(self.run, self.model, self.kv)


PAGE = 4096
"""Alignment of swap space."""
MOST_SLOTS, MOST_SERVED = 64, 4096
"""Maximum number of running requests, and of tokens of a request, with values."""


def serve_values(
    path: Path, workload: Workload, config: SchedulerConfig, npu: NpuConfig, core: Config | None,
    slo: Mapping[str, int], progress: ProgressDisplay = hidden,
) -> ServedValues:  # fmt: skip
    """Serve with values; `core`: platform whose firmware schedules, None: the host schedules. `progress`: as in
    `Session`. UsageError, ModelError, BadInputError, one line, for an invalid option, model or workload."""
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
    tokens = sum(row.tokens for row in run.ledger) + sum(record.request.total - 1 for record in run.served)
    progress(lambda: f"{server.computed:,} of {tokens:,} tokens are computed, in the batch and one by one")
    answers = server.compute(workload, run)
    is_equal = answers == server.unbatched(workload, run)
    return ServedValues(path.stem, workload, run, config, answers, is_equal, slo, server.kv_bytes, core)
