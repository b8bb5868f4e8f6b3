"""Keys and values of a run: bytes moved by token and by layer, summed over DMA events; bytes in DRAM; capacity in
tokens (docs/kv-cache.md, "Figures"; docs/bit-widths.md, R24 and R26)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType, Opcode
from npu_device.kv_quant.codecs import CODECS
from npu_device.operations.kernels.elements import decode
from npu_device.trace.events import VALUES, What
from npu_device.trace.records import Batch
from pyv_npu.csv_table import csv_text
from toolchain.codegen import Command
from toolchain.decoders.caches import SIDES, StoredCache, cache_indices
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import TensorIR, Values

if TYPE_CHECKING:  # a built-in model does not need these
    from toolchain.decoders.decoder import CompiledDecoder
    from toolchain.decoders.reference import DecodeStep

_OPCODE_BITS = 0xFF
"""Mask of the opcode in `aux` of DMA_BEGIN."""
READ, WRITTEN = 0, 1
CACHE_DIMENSIONS = ("batch", "heads", "tokens", "size")


class KvTraffic:
    """Bytes that a run moves between caches and scratchpad, accumulated over its DMA events.

    `steps`: commands of each step of the run, in the order of submission.
    """

    def __init__(self, caches: Sequence[StoredCache], steps: Sequence[Sequence[Command]]) -> None:
        self._caches = caches
        touched_by_step = {id(step): list(cache_indices(step, caches)) for step in steps}
        self._touched = [access for step in steps for access in touched_by_step[id(step)]]
        self._ends = np.cumsum([len(step) for step in steps])
        self._moved = np.zeros((len(self._touched), len(SIDES), 2), np.int64)

    def add(self, batch: Batch, first: int = 0) -> None:
        """Add the next events; ticket 1 is the command `first` of the run."""
        begun = batch[batch["what"] == What.DMA_BEGIN]
        opcode = begun["aux"] & _OPCODE_BITS
        for way, kv_opcode in ((READ, Opcode.KV_READ), (WRITTEN, Opcode.KV_APPEND)):
            rows = begun[opcode == kv_opcode]
            side = (rows["aux"] & VALUES != 0).astype(np.int64)
            np.add.at(self._moved[..., way], (first + rows["ticket"].astype(np.int64) - 1, side), rows["bytes"])

    def steps(self) -> list[tuple[int, ...]]:
        """Return the bytes of keys and of values moved by each step."""
        table = np.zeros((len(self._ends), len(SIDES)), np.int64)
        for index, cache, bytes_ in self._shares():
            table[np.searchsorted(self._ends, index, "right"), cache.side] += bytes_.sum()
        return [tuple(row) for row in table.tolist()]

    def layers(self) -> dict[int, tuple[int, int]]:
        """Return the bytes read and written by each decoder layer."""
        table = {cache.layer: np.zeros(2, np.int64) for cache in self._caches}
        for _, cache, bytes_ in self._shares():
            table[cache.layer] += bytes_
        return {layer: (int(row[READ]), int(row[WRITTEN])) for layer, row in sorted(table.items())}

    def _shares(self) -> Iterable[tuple[int, StoredCache, Any]]:
        """Yield (command, cache, bytes read and written)."""
        for index in np.flatnonzero(self._moved.any(axis=(1, 2))).tolist():
            for cache, byte_count in zip(self._touched[index], self._moved[index], strict=False):
                yield index, self._caches[cache], byte_count


class EncodedSize(NamedTuple):
    """Size of encoded keys and values, which is smaller than the address range of their caches."""

    method: str
    layers: Mapping[int, int]
    """Decoder layer -> bytes of all tokens."""
    allocated: Mapping[int, int]
    """Decoder layer -> bytes of the pages for T_max tokens."""


def kv_figures(
    caches: Sequence[StoredCache], traffic: KvTraffic | None, positions: Sequence[int], tokens: int,
    encoded: EncodedSize | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the keys of a result. `positions`: last token of each step; `tokens`: number in the caches at the end.
    Without `traffic`, its figures are None or empty."""
    layers = []
    bytes_by_layer = {} if traffic is None else traffic.layers()
    for layer in sorted({cache.layer for cache in caches}):
        layer_caches = [cache for cache in caches if cache.layer == layer]
        read, written = bytes_by_layer.get(layer, (None, None))
        size = sum(cache.token_bytes for cache in layer_caches) * tokens
        bits = "/".join(map(str, sorted({cache.qbits for cache in layer_caches})))
        layers.append(
            {
                "layer": layer, "qbits_kv": bits if encoded is None else encoded.method,
                "kv_bytes_total": size if encoded is None else encoded.layers[layer],
                "kv_bytes_alloc": sum(cache.bytes_alloc for cache in layer_caches)
                if encoded is None else encoded.allocated[layer],
                "kv_bytes_read": read, "kv_bytes_written": written,
            }
        )  # fmt: skip
    steps = [] if traffic is None else zip(positions, traffic.steps(), strict=True)
    return {
        "kv_tokens": [{"token": token, "bytes_k": keys, "bytes_v": values} for token, (keys, values) in steps],
        "kv_layers": layers,
        "kv_bytes_alloc": sum(layer["kv_bytes_alloc"] for layer in layers),
        "kv_bytes_used": sum(layer["kv_bytes_total"] for layer in layers),
    }


def kv_capacity(
    caches: Sequence[StoredCache], dram_bytes: int, other_bytes: int, per_token: int, more_per_token: int = 0
) -> dict[str, Any]:
    """Return the token capacity of the caches (docs/bit-widths.md, R26). `other_bytes`: DRAM whose size is constant;
    `per_token`: bytes of a token in them; `more_per_token`: other growth, such as a log of logits."""
    t_max = caches[0].t_max
    capacity = max(0, dram_bytes - other_bytes)
    return {
        "t_max": t_max, "kv_bytes_per_token": per_token, "dram_bytes": dram_bytes, "other_bytes": other_bytes,
        "t_max_limit": capacity // (per_token + more_per_token),
    }  # fmt: skip


def kv_errors(
    compiled: "CompiledDecoder",
    read: Callable[[str], bytes],
    reference_steps: "Sequence[DecodeStep]",
    steps_of_run: Sequence[Mapping[str, Values]],
) -> list[dict[str, Any]]:
    """Return the errors of keys, values and attention for each layer: the norm of the difference relative to that of
    the reference. `reference_steps`: steps of the reference; `steps_of_run`: attention outputs of each of our steps."""
    decoder, rows = compiled.decoder, []
    caches = zip(decoder.caches[::2], decoder.caches[1::2], decoder.attended, strict=True)
    names = (decoder.original or decoder).attended
    for layer, (keys, values, attended) in enumerate(caches):
        got = [np.asarray(step[attended], np.float64).reshape(-1) for step in steps_of_run]
        want = [np.asarray(step.watched[names[layer]], np.float64).reshape(-1) for step in reference_steps]
        past = reference_steps[-1].past
        parts = compiled.stored(keys.past)
        rows.append(
            {
                "layer": layer, "qbits_kv": "/".join(sorted({_width(part) for part in parts})),
                **{f"error_{SIDES[side]}":
                   error(cached(compiled, read, cache.past, past[cache.past].shape[2]), past[cache.past])
                   for side, cache in enumerate((keys, values))},
                "error_attention": error(np.concatenate(got), np.concatenate(want)),
            }
        )  # fmt: skip
    return rows


def _width(part: TensorIR) -> str:
    """Return the bits of an element, or the name of the codec, whose elements have no fixed width."""
    return CODECS[part.codec].policy.name.lower() if part.dtype is DataType.ENCODED else str(part.qbits)


def cached(compiled: "CompiledDecoder", read: Callable[[str], bytes], past: str, tokens: int = 0) -> Values:
    """Return the values in a cache, shape (1, heads, T_max, size); of an encoded cache, those of the first `tokens`."""
    from pyv_npu.kv_quant import encoded_kv  # a built-in model does not need it

    if compiled.kv_blocks:
        return encoded_kv.numbers_of(compiled, read, past, tokens)
    scales = compiled.scales.get(past)
    parts, first = [], 0
    for part in compiled.stored(past):
        _, heads, t_max, size = part.shape
        rows = np.frombuffer(read(part.id), np.uint8).reshape(heads * t_max, -1)
        numbers = decode(rows, part.dtype, heads * t_max, size).reshape(part.shape).astype(np.float64)
        of_tokens = compiled.token_scales(past, first, read)
        if of_tokens is not None:
            numbers = numbers * of_tokens.reshape(1, heads, t_max, 1).astype(np.float64)
        elif part.dtype not in FLOATS and scales is not None:
            numbers = numbers * scales[first : first + heads].reshape(1, heads, 1, 1).astype(np.float64)
        parts.append(numbers)
        first += heads
    return np.concatenate(parts, axis=1)


def error(got: Values, want: Values) -> float:
    """Return the relative error in the Euclidean norm; `got` may have more tokens than `want`."""
    want = want.astype(np.float64)
    got = got[..., : want.shape[-2], :] if got.ndim == len(CACHE_DIMENSIONS) else got
    norm = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / norm if norm else 0.0


def csv_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Format a table as CSV."""
    heads = list(rows[0])
    return csv_text(heads, ([row[head] for head in heads] for row in rows)).encode()
