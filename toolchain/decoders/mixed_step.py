"""Step of a server as NPU-IR: each request has a separate chunk with its length and position.

Products process the rows of all requests at once, in chunk order. Positions, keys and values are separate for each
request, since an ATTN_T command attends to one cache. At its start a step reads one word per request, its position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from npu_device.abi.opcodes import DataType
from npu_device.kv_quant.methods import KvMethod
from toolchain.backend import Program, compile_layers
from toolchain.codegen import Command, Target
from toolchain.decoders.shapes import LEARNED_OFFSET, Job
from toolchain.decoders.step import POSITION, AttentionBatch, DecoderStep, blocks_of
from toolchain.errors import ModelError
from toolchain.passes import SCHEDULING, run_passes, select_passes


class Chunk(NamedTuple):
    """Tokens of a request in a step."""

    tokens: int
    """New tokens: 1 during generation, a part of the prompt before."""
    context: int
    """Tokens already in the caches."""


class Parts(StrEnum):
    """Part of a step to generate commands for."""

    ALL = "all"
    ATTENTION = "attention"
    """Positions, appends and attention of all layers. A sum in place of the previous layers writes their operands."""
    PRODUCTS = "products"
    """Everything except attention, with a copy of the queries in its place."""
    BETWEEN = "between"
    """PRODUCTS from the queries of the first layer to those of the last: the time of an inner layer."""
    HEAD = "head"
    """Part after the layers. A sum in their place writes its operand."""


@dataclass(frozen=True)
class CompiledMixedStep:
    """Commands of a step with its initial memory contents."""

    chunks: tuple[Chunk, ...]
    program: Program

    @property
    def commands(self) -> tuple[Command, ...]:
        return self.program.commands

    storage: KvMethod

    @property
    def memory(self) -> dict[int, bytes]:
        """Initial memory contents by address: positions, parameter blocks, and counts of encoded caches."""
        words = b"".join(chunk.context.to_bytes(4, "little") for chunk in self.chunks)
        contents = {self.program.address(POSITION): words}
        for tensor in self.program.graph.tensors.values():
            if tensor.dtype is DataType.ENCODED:
                cache = tensor.encoded(self.program.address(tensor.id))
                if cache.chunks:
                    contents[cache.address("counts")] = cache.expected_counts(self.storage.outliers)
        return contents | blocks_of(self.program)


def compile_mixed_step(
    job: Job, target: Target, chunks: Sequence[Chunk], parts: Parts = Parts.ALL, passes: str = "all", beside: int = 1
) -> CompiledMixedStep:
    """Compile a step. The chunks set the requests and T_max: the caches hold the longest request after the step.
    `beside`: requests that attend in parallel, each on one engine with a share of the scratchpad; 1 for one request at
    a time on all engines. ModelError: a chunk is invalid, or the step does not fit, in one line."""
    if not chunks:
        raise ModelError(f"{job.shape.name}: a step without requests: must have at least one")
    for chunk in chunks:
        if chunk.tokens < 1 or chunk.context < 0:
            raise ModelError(
                f"{job.shape.name}: {chunk.tokens} tokens at context {chunk.context}: must be at least 1, and 0"
            )
    longest = max(chunk.tokens + chunk.context for chunk in chunks)
    job = replace(job, requests=len(chunks), t_max=longest)
    graph = _MixedStep(job, tuple(chunks), parts, beside).graph
    program = compile_layers(graph, target, passes=passes, traced=False)
    return CompiledMixedStep(tuple(chunks), program, job.storage)


def is_resident(job: Job, target: Target, rows: int) -> bool:
    """Check whether the operands of attention stay in the scratchpad in a step of `rows` rows, for any mix of requests.
    Attention itself is modelled as a copy."""
    graph = _MixedStep(replace(job, t_max=rows), (Chunk(rows, 0),), Parts.PRODUCTS).graph
    early = [name for name in select_passes("all") if name not in SCHEDULING]
    scheduled = run_passes(graph, [*early, "schedule", "residency"], target)
    return scheduled.resident("layer0.attention.qkv.out")


class _MixedStep(DecoderStep):
    def __init__(self, job: Job, chunks: tuple[Chunk, ...], parts: Parts, beside: int = 1) -> None:
        self.chunks, self.parts, self._beside = chunks, parts, beside
        firsts, at = [], 0
        for chunk in chunks:
            firsts.append(at)
            at += chunk.tokens
        self.firsts = firsts
        self._boundary: list[str] = []
        super().__init__(job, 1, at, len(chunks))
        self.graph.inputs += tuple(self._boundary)

    def _embedding(self) -> str:
        width = self.shape.width
        if self.parts is Parts.ATTENTION:
            return ""
        if self.parts is Parts.HEAD:
            return self._sum("x", width)
        x = self._tokens()
        if not self.shape.positions:
            return x
        entries = max(self.shape.positions, LEARNED_OFFSET + self.job.t_max)  # time is also estimated beyond the table
        table = self._weight("positions.table", (entries, width))
        for index, (first, chunk) in enumerate(zip(self.firsts, self.chunks, strict=True)):
            block = chunk.tokens, width
            rows = self._view(table, block, (LEARNED_OFFSET + chunk.context) * width)
            part = self._view(x, block, first * width)
            self._eltwise(f"positions.{index}", "ADD", part, rows, out=part)
        return x

    def _attention(self, name: str, index: int, x: str) -> str:
        if self.parts is Parts.HEAD:
            return x
        if self.parts is not Parts.ATTENTION:
            return super()._attention(name, index, x)
        attended = self._attended(name, index, self._sum(f"{name}.qkv", self.shape.qkv_width))
        return self._eltwise(f"{name}.output", "ADD", attended, attended)

    def _attended(self, name: str, index: int, qkv: str) -> str:
        if self.parts not in (Parts.PRODUCTS, Parts.BETWEEN):
            return super()._attended(name, index, qkv)
        dims = self.rows, self.shape.heads * self.shape.cache_dim
        return self._layer(f"{name}.heads", "COPY", (qkv,), dims, dims=dims, **{
            "from": (self.shape.qkv_width, 1), "to": (dims[1], 1),
        })  # fmt: skip

    def _batches(self) -> Sequence[AttentionBatch]:
        beside = self._beside
        return [
            AttentionBatch(f".{index}", chunk.tokens, chunk.tokens + chunk.context, self._position(index), row=row,
                           engines={"engines": 1, "buffers": beside, "turn": index % beside} if beside > 1 else {})
            for index, (chunk, row) in enumerate(zip(self.chunks, self.firsts, strict=True))
        ]  # fmt: skip

    def _part(self, base: str, batch: AttentionBatch, first: int, count: int) -> str:
        _, columns = shape = self.graph.tensors[base].shape
        if (batch.tokens, count) == shape:
            return base
        return self._view(base, (batch.tokens, count), batch.row * columns + first, columns)

    def _feed_forward(self, name: str, index: int, source: str, x: str) -> str:
        last = index == self.job.layers - 1
        computed = self.parts in (Parts.ALL, Parts.PRODUCTS) or (self.parts is Parts.BETWEEN and not last)
        return super()._feed_forward(name, index, source, x) if computed else x

    def _head(self, x: str) -> None:
        if self.parts not in (Parts.ATTENTION, Parts.BETWEEN):
            super()._head(x)

    def _last_rows(self, x: str) -> str:
        """Copy the last row of each request, unless every row is one. Consecutive requests of one token are copied
        together."""
        width, count = self.shape.width, len(self.chunks)
        if count == self.rows:
            return x
        rows, at = self._tensor("head.rows", (count, width)), 0
        while at < count:
            ends = at + 1
            while self.chunks[at].tokens == 1 and ends < count and self.chunks[ends].tokens == 1:
                ends += 1
            block, last = (ends - at, width), self.firsts[at] + self.chunks[at].tokens - 1
            self._layer(f"head.rows.{at}", "COPY", (self._view(x, block, last * width),),
                        self._view(rows, block, at * width), dims=(block[0] * width,), **{
                            "from": (1,), "to": (1,),
                        })  # fmt: skip
            at = ends
        return rows

    def _sum(self, name: str, width: int) -> str:
        """Add a sum that writes rows to the address where the omitted layers would write them."""
        rows = self._tensor(f"{name}.in", (self.rows, width))
        self._boundary.append(rows)
        return self._eltwise(name, "ADD", rows, rows)

    def _position(self, request: int) -> str:
        return POSITION if len(self.chunks) == 1 else self._view(POSITION, (1,), request)
