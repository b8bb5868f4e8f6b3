"""Built-in decoders: compilation of a shape to the commands of one step, by the passes and generator of all models."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from toolchain.backend import Program, compile_layers
from toolchain.codegen import Command, Target
from toolchain.decoders.caches import StoredCache, caches_of
from toolchain.decoders.generation import conversation
from toolchain.decoders.shapes import Job
from toolchain.decoders.step import IDS, POSITION, blocks_of, step_graph


@dataclass(frozen=True)
class CompiledShape:
    """Commands that process `tokens` tokens of every request of a job. They read the position at their start."""

    job: Job
    tokens: int
    program: Program

    @property
    def commands(self) -> tuple[Command, ...]:
        return self.program.commands

    @cached_property
    def caches(self) -> tuple[StoredCache, ...]:
        """Keys and values of all layers."""
        return caches_of(self.program)

    def position(self, first: int) -> dict[int, bytes]:
        """Return the initial memory contents by address: the position of the first token, and parameter blocks. In the
        caches of a sliding window, which hold the latest tokens, it is the row of the first new token."""
        row = min(first, self.job.t_max - self.tokens)
        return {self.program.address(POSITION): row.to_bytes(4, "little"), **blocks_of(self.program)}

    def conversation(self, tokens: Sequence[int] = ()) -> bytes:
        """Return the words with which firmware submits the commands once; `tokens`: known tokens."""
        ids = self.program.address(IDS)
        return conversation(
            self.program.address(POSITION), ids, ids, ids, prompt=self.tokens, total=self.tokens, tokens=tokens
        )


def compile_shape(
    job: Job, target: Target, tokens: int, passes: str = "all", position: int | None = None
) -> CompiledShape:
    """Compile a step. `position`: position of its first token, to which tile commands are fixed. ModelError: the step
    does not fit DRAM or scratchpad, in one line."""
    job.check_capacity(target.dram_bytes)
    form, phases = ("macro", ()) if position is None else ("tile", (("", position),))
    program = compile_layers(step_graph(job, tokens), target, passes=passes, granularity=form, phases=phases)
    if job.storage.encoded:
        job.check_capacity(target.dram_bytes, max(0, program.dram_bytes - job.weight_bytes))
    return CompiledShape(job, tokens, program)
