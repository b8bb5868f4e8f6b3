"""A small ONNX decoder that serves, with values: the tokens of each request are really computed.

So many requests run as there are slots; each slot is a memory with the weights and one set of caches. A request that is
preempted loses its slot: another one's keys and values come over its own, and it computes them again later, in
whatever slot is free. What is answered must not depend on any of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu_device.config import NpuConfig
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.serving.figures import KvBytes, ledger_csv, requests_csv, summary
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.server import Run, serve
from pyv_npu.text import lines_of
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.ia import Machine
from pyv_npu.workloads.timing import run_commands
from toolchain.decoders.decoder import CONVERSATION, IDS, NEXT, POSITION, CompiledDecoder, compile_decoder, load_decoder


@dataclass
class Held:
    """A request in the memory of its slot."""

    tokens: list[int]
    """The prompt, and what was answered."""
    slot: int = -1
    computed: int = 0
    following: int = -1
    """What the last token that was computed leads to."""


class DecoderServer:
    """A decoder, and the memories of its slots."""

    def __init__(self, path: Path, npu: NpuConfig, longest: int, slots: int) -> None:
        """`longest`: tokens of a request; ModelError: no decoder, or one that does not fit."""
        decoder = load_decoder(path)
        self.vocab = decoder.vocab
        self._npu = npu
        self._made: CompiledDecoder = compile_decoder(decoder, target_of(npu), 1, longest)
        inputs = {CONVERSATION: self._made.conversation((0,), 1)}
        self._slots = [Machine(self._made.compiled, npu, inputs) for _ in range(slots)]
        self._cycles: dict[int, int] = {}

    def step_cycles(self, chunks: Sequence[tuple[int, int]]) -> int:
        """CA_HYBRID cycles of a step: each token of each chunk by itself, at its position."""
        return sum(self._token(at) for tokens, context in chunks for at in range(context, context + tokens))

    def _token(self, position: int) -> int:
        if position not in self._cycles:
            memory = {self._made.address(POSITION): position.to_bytes(4, "little")}
            self._cycles[position] = run_commands(self._made.step(0), self._npu, memory=memory).cycles
        return self._cycles[position]

    def prompt(self, request: Request) -> list[int]:
        """The tokens of a prompt; drawn by the request's number where the workload does not say. UsageError."""
        found = list(request.tokens)
        if not found:
            source = np.random.default_rng(request.id)
            found = [int(one) for one in source.integers(0, self.vocab, request.input_toks)]
        if bad := [one for one in found if not 0 <= one < self.vocab]:
            raise UsageError(f"request {request.id}: token {bad[0]}: the vocabulary has 0..{self.vocab - 1}")
        return found

    def _take(self, one: Held, count: int) -> None:
        machine = self._slots[one.slot]
        for position in range(one.computed, one.computed + count):
            machine.memory.write_bytes(self._made.address(POSITION), position.to_bytes(4, "little"))
            machine.memory.write_bytes(self._made.address(IDS), one.tokens[position].to_bytes(4, "little"))
            machine.run(self._made.step(0))
        one.computed += count
        one.following = int(np.frombuffer(machine.read(NEXT), "<u4")[0])

    def compute(self, workload: Workload, run: Run) -> dict[int, tuple[int, ...]]:
        """Go through the ledger of a run with values: request -> the tokens of its answer."""
        known = {one.id: one for one in workload.requests}
        held = {request: Held(self.prompt(known[request])) for request in known if request not in run.refused}
        free = list(range(len(self._slots)))
        for row in run.ledger:
            for request in row.preempted:
                one = held[request]
                free.append(one.slot)
                one.slot, one.computed = -1, 0
            for request, tokens, context in row.scheduled:
                one = held[request]
                if one.slot < 0:
                    one.slot = free.pop(0)
                assert one.computed == context
                self._take(one, tokens)
                if one.computed == len(one.tokens):
                    one.tokens.append(one.following)
            for request in row.finished:
                free.append(held[request].slot)
        return {request: tuple(one.tokens[known[request].input_toks :]) for request, one in held.items()}

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
        """Of a token in all caches."""
        token = sum(cache.token_bytes for cache in self._made.caches)
        return KvBytes(token, token, 0)


@dataclass(frozen=True)
class ServedValues:
    """A workload that was served with values."""

    model: str
    workload: Workload
    run: Run
    config: SchedulerConfig
    answers: Mapping[int, tuple[int, ...]]
    same: bool
    """Whether they are those of each request by itself."""
    hz: int
    slo: Mapping[str, int]
    kv: KvBytes

    @property
    def json(self) -> dict[str, Any]:
        return {
            "model": self.model, "workload": {"name": self.workload.name, "requests": len(self.workload.requests)},
            **summary(self.run, self.hz, self.slo), "control": dict(self.run.control),
            "blocks": {"total": self.config.blocks, "allocated": self.run.allocated, "released": self.run.released},
            "refusals": {str(request): why for request, why in self.run.refused.items()},
            "answers": {str(request): list(tokens) for request, tokens in self.answers.items()},
            "answers_as_alone": self.same,
        }  # fmt: skip

    @property
    def text(self) -> str:
        """Who was served, what pressure there was, and whether it changed an answer."""
        made = summary(self.run, self.hz, self.slo)
        facts = [
            ("requests", f"{made['requests']:,} of {self.workload.name}, {made['refused']:,} refused"),
            ("tokens", f"{made['input_tokens']:,} in, {made['output_tokens']:,} out"),
            ("time", f"{made['seconds'] * 1e3:,.3f} ms, {made['steps']:,} steps"),
            ("blocks", f"{made['most_blocks']:,} of {self.config.blocks:,} in use at most, of {self.config.block_size} "
             "tokens"),
            ("preemptions", f"{made['preemptions']:,}, {made['recomputed_tokens']:,} tokens computed again"),
            ("answers", "those of each by itself" if self.same else "not those of each by itself: a bug"),
        ]  # fmt: skip
        return lines_of(f"{self.model} serves with values", facts) + "\n"

    def files(self) -> dict[str, str]:
        """requests.csv, steps.csv."""
        table = requests_csv(self.run, self.model, self.hz, self.kv)
        return {"requests.csv": table, "steps.csv": ledger_csv(self.run.ledger)}


MOST_SLOTS, MOST_SERVED = 64, 4096
"""Requests that run, and tokens of a request, with values."""


def serve_values(
    path: Path, workload: Workload, config: SchedulerConfig, npu: NpuConfig, core: Config | None, slo: Mapping[str, int]
) -> ServedValues:
    """Serve with values; `core`: the platform whose firmware schedules, None: the host does. UsageError, ModelError,
    BadInputError: what cannot be served, one line."""
    longest = max(one.total for one in workload.requests)
    for name, value, most in (("--max-num-seqs", config.max_num_seqs, MOST_SLOTS),
                              ("tokens of a request", longest, MOST_SERVED)):  # fmt: skip
        if value > most:
            raise UsageError(f"{name} {value}: a decoder with values serves at most {most}; give less")
    if config.prefix_cache:
        raise UsageError("--prefix-cache: each slot of a decoder with values has caches of its own; drop it")
    server = DecoderServer(path, npu, longest, config.max_num_seqs)
    if core is None:
        run = serve(workload, config, npu.clock_hz, server.step_cycles)
    else:
        from pyv_npu.serving.on_core import serve_on_core

        run = serve_on_core(workload, config, core, server.step_cycles)
    answers = server.compute(workload, run)
    same = answers == server.alone(workload, run)
    return ServedValues(path.stem, workload, run, config, answers, same, npu.clock_hz, slo, server.kv_bytes)
