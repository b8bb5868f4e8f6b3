"""Decoders with encoded keys and values (docs/oaken.md): thresholds, parameter blocks, measurements."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import DataType
from npu_device.config import KvQuantConfig
from npu_device.kv_quant.block import Side, pack_block, unpack_block, without_values
from npu_device.kv_quant.codec import NO_POSITIONS, Encoded, Parameters, entropy_bound
from npu_device.kv_quant.methods import METHODS, KvMethod
from npu_device.kv_quant.storage import EncodedCache, pages
from npu_device.kv_quant.thresholds import SIDES, LayerThresholds, Profiler, parse
from npu_device.memory.region import Region
from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.errors import BadInputError
from toolchain.decoders.decoder import CompiledDecoder, Decoder
from toolchain.decoders.reference import Reference

Values = NDArray[Any]
ALL = "all"
"""Name of a row over all layers."""


def ratios_of(config: KvQuantConfig) -> tuple[float, float, float]:
    """Return the outer, middle and inner share."""
    outer, inner = config.outer_permille / 1000, config.inner_permille / 1000
    return outer, 1 - outer - inner, inner


def tokens_by_channels(cache: Values) -> Values:
    """Reshape keys or values (1, heads, tokens, D) to (tokens, C)."""
    _, heads, tokens, size = cache.shape
    return cache[0].transpose(1, 0, 2).reshape(tokens, heads * size)


def profiled(
    decoder: Decoder, prompts: Iterable[Sequence[int]], ratios: Sequence[float],
    watch: Callable[[int, Values], None] | None = None,
) -> Profiler:  # fmt: skip
    """Profile the keys and values that the decoder would store, after rotary positions, over prompts. `watch` receives
    index and content of each cache. BadInputError: keys or values that are not finite."""
    reference, profiler = Reference(decoder), Profiler(ratios)
    for prompt in prompts:
        past = reference.step(prompt, reference.empty()).past
        for index, cache in enumerate(decoder.caches):
            try:
                profiler.add(index // 2, SIDES[index % 2], past[cache.past])
            except NpuDeviceError as error:
                raise BadInputError(f"{decoder.name}: {cache.past}: {error}") from None
            if watch is not None:
                watch(index, past[cache.past])
    return profiler


def read_thresholds(path: Path, layers: int) -> list[LayerThresholds]:
    """Read the thresholds of a decoder's layers from a file. BadInputError names file, layer, value and rule."""
    try:
        check_input(path, MAX_TEXT)
        thresholds = parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: no JSON: {error}") from None
    except NpuDeviceError as error:
        raise BadInputError(str(error)) from None
    if len(thresholds) != layers:
        raise BadInputError(f"{path}: thresholds of {len(thresholds)} layers: the decoder has {layers}")
    return thresholds


def samples_of(decoder: Decoder, method: KvMethod, prompts: Iterable[Sequence[int]]) -> list[list[Values]]:
    """Return, for each cache, the reference's keys or values (tokens, C) of each prompt; empty if the method needs
    none."""
    samples: list[list[Values]] = [[] for _ in decoder.caches]
    if not (method.key_codec.offline or method.value_codec.offline):
        return samples
    reference = Reference(decoder)
    for prompt in prompts:
        past = reference.step(prompt, reference.empty()).past
        for sample, cache in zip(samples, decoder.caches, strict=True):
            sample.append(tokens_by_channels(np.asarray(past[cache.past], np.float32)))
    return samples


def blocks(
    decoder: Decoder, method: KvMethod, config: KvQuantConfig, samples: Sequence[Sequence[Values]],
    thresholds: Path | None = None,
) -> list[Values]:  # fmt: skip
    """Return the words of the parameter block of each layer, with thresholds of a file or calibrated on samples of each
    cache, (tokens, C) each. BadInputError: keys or values that are not finite, an invalid file."""
    codecs = method.key_codec, method.value_codec
    if thresholds is not None:
        layers = read_thresholds(thresholds, len(decoder.caches) // 2)
        parameters = [Parameters(side, config.outlier_code) for layer in layers for side in layer]
    else:
        parameters, positions = [], decoder.rotary
        for index, (cache, sample) in enumerate(zip(decoder.caches, samples, strict=True)):
            try:
                ratios, turned = ratios_of(config), positions[index // 2] if index % 2 == 0 else NO_POSITIONS
                parameters.append(
                    codecs[index % 2].calibrate(sample, cache.head_dim, ratios, config.outlier_code, turned)
                )
            except NpuDeviceError as error:
                raise BadInputError(f"{decoder.name}: {cache.past}: {error}") from None
    blocks = []
    for index, cache in enumerate(decoder.caches[::2]):
        sides = [Side(codec, parameters[2 * index + side]) for side, codec in enumerate(codecs)]
        blocks.append(np.frombuffer(pack_block(sides, cache.heads, cache.head_dim), np.int32))
    return blocks


def side_of(program: CompiledDecoder, index: int) -> Side:
    """Return codec and parameters of the cache with this index, from the block of its layer."""
    cache = program.decoder.caches[index]
    data = program.kv_blocks[index // 2].tobytes()
    return unpack_block(data, cache.heads, cache.head_dim, cache.past)[index % 2]


def parameters_of(program: CompiledDecoder, index: int) -> Parameters:
    """Return the parameters of the cache with this index."""
    parameters = side_of(program, index).parameters
    assert parameters is not None
    return parameters


def _reader(data: bytes) -> Callable[[Region], NDArray[np.uint8]]:
    """Return a reader of regions in the bytes of a cache at address 0."""
    array = np.frombuffer(data, np.uint8)

    def read(region: Region) -> NDArray[np.uint8]:
        address, rows, size, stride = region
        return np.lib.stride_tricks.as_strided(array[address:], (rows, size), (stride, 1), writeable=False)

    return read


def stored_tokens(program: CompiledDecoder, read: Callable[[str], bytes], index: int, tokens: int) -> Encoded:
    """Return the encoded tokens of a cache in DRAM."""
    tensor = program.compiled.graph.tensors[program.decoder.caches[index].past]
    return tensor.encoded(0).encoded(_reader(read(tensor.id)), tokens)


def numbers_of(program: CompiledDecoder, read: Callable[[str], bytes], past: str, tokens: int) -> Values:
    """Return the decoded values of a cache, shape (1, heads, tokens, size)."""
    index = next(at for at, cache in enumerate(program.decoder.caches) if cache.past == past)
    tensor = program.compiled.graph.tensors[past]
    cache = tensor.encoded(0)
    return cache.read(_reader(read(past)), tokens, parameters_of(program, index)).astype(np.float64)[None]


def measured(
    program: CompiledDecoder, read: Callable[[str], bytes], tokens: int, page_bytes: int
) -> list[dict[str, Any]]:
    """Return elements, outliers and bits of an element for each layer and side, counted in the stored bytes."""
    rows = []
    for index, cache in enumerate(program.decoder.caches):
        encoded = stored_tokens(program, read, index, tokens)
        elements = tokens * cache.heads * cache.head_dim
        codec = side_of(program, index).codec
        layout = EncodedCache(0, cache.heads, tokens, cache.head_dim, codec)
        streams = layout.stream_bytes(encoded.counts).sum(axis=0).tolist()
        occupied = pages(layout, tokens, streams, page_bytes)
        coded = codec.coded(tokens) * cache.heads * cache.head_dim
        waiting = 2 * (elements - coded)
        payload = encoded.payload + waiting
        rows.append(
            {
                "layer": index // 2, "side": "kv"[index % 2], "elements": elements,
                "p_out": len(encoded.sparse) / max(1, codec.entry_bytes) / elements, "b_eff": 8 * payload / elements,
                "b_eff_inline": 8 * (payload + encoded.counts.size) / elements,
                "entropy_bound": (coded * entropy_bound(encoded, codec.bits) + 8 * waiting) / elements,
                **codec.statistics(encoded),
                "dense_bytes": encoded.dense.size, "sparse_bytes": len(encoded.sparse),
                "meta_bytes": encoded.meta.size, "tail_bytes": waiting, "count_bytes": encoded.counts.size,
                "pages": occupied.dense + occupied.sparse + occupied.meta, "bursts": occupied.bursts,
            }
        )  # fmt: skip
    return rows


def compared(program: CompiledDecoder, references: Mapping[str, Values]) -> list[dict[str, Any]]:
    """Compare all methods on the reference's keys and values: bits of an element, relative errors of keys and of
    values, over all layers and for each layer."""
    rows = []
    layers = len(program.decoder.caches) // 2
    for name, method in METHODS.items():
        squared, bits = np.zeros((layers, 2, 2)), np.zeros((layers, 2))
        for index, cache in enumerate(program.decoder.caches):
            at = divmod(index, 2)
            x = tokens_by_channels(np.asarray(references[cache.past], np.float32))
            side, running = "kv"[at[1]], side_of(program, index)
            is_current = method.codecs is not None and method.codecs[at[1]] is running.codec
            parameters = parameters_of(program, index) if is_current else method.calibrate(x, side, cache.head_dim)
            stored = method.store(x, side, cache.head_dim, parameters)
            squared[at] = np.square(stored.numbers - x, dtype=np.float64).sum(), np.square(x, dtype=np.float64).sum()
            bits[at] = stored.bits
        for layer in (ALL, *range(layers)):
            sums = squared.sum(axis=0) if layer == ALL else squared[int(layer)]
            errors = np.sqrt(sums[:, 0] / np.maximum(sums[:, 1], np.finfo(float).tiny))
            mean = float(bits.mean() if layer == ALL else bits[int(layer)].mean())
            rows.append(
                {"method": name, "layer": layer, "bits": mean, "error_k": float(errors[0]),
                 "error_v": float(errors[1])}
            )  # fmt: skip
    return rows


def counts_of(program: CompiledDecoder, read: Callable[[str], bytes]) -> dict[str, NDArray[np.uint8]]:
    """Return the counts of entries of all tokens in memory: past -> (T_max, chunks)."""
    counts = {}
    for cache in program.decoder.caches:
        layout = program.compiled.graph.tensors[cache.past].encoded(0)
        at, size = layout.address("counts") if layout.chunks else 0, layout.chunks * layout.t_max
        counts[cache.past] = np.frombuffer(read(cache.past)[at : at + size], np.uint8).reshape(layout.t_max, -1)
    return counts


def tables(program: CompiledDecoder, counts: Mapping[str, NDArray[np.uint8]]) -> dict[int, bytes]:
    """Return the memory of a run without values, address -> bytes: the counts (tokens, chunks) of each cache, which
    determine sizes of transfers, and parameter blocks."""
    contents, graph = {}, program.compiled.graph
    for cache in program.decoder.caches:
        base = program.address(cache.past)
        layout = graph.tensors[cache.past].encoded(base)
        if layout.chunks:
            contents[layout.address("counts")] = counts[cache.past].tobytes()
    for layer in graph.layers:
        if any(graph.tensors[name].dtype is DataType.ENCODED for name in (*layer.inputs, *layer.outputs)):
            for name in layer.inputs:
                if name in graph.constants and graph.tensors[name].dtype is DataType.INT32:
                    block = without_values(graph.constants[name].tobytes())
                    contents |= {program.address(name): block} if any(block) else {}
    return contents


def allocated(program: CompiledDecoder, config: KvQuantConfig) -> dict[int, int]:
    """Return layer -> bytes of the pages for T_max tokens, with the outliers that runs without values assume."""
    sizes: dict[int, int] = {}
    for index, cache in enumerate(program.decoder.caches):
        layout = program.compiled.graph.tensors[cache.past].encoded(0)
        streams = layout.expected(layout.coded(layout.t_max), config.p_out_permille).sum(axis=0).tolist()
        page_bytes = pages(layout, layout.t_max, streams, config.page_bytes).bytes
        sizes[index // 2] = sizes.get(index // 2, 0) + page_bytes
    return sizes


def bytes_by_layer(rows: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return layer -> bytes of `measured` rows, counts of chunks included."""
    sizes: dict[int, int] = {}
    for row in rows:
        parts = sum(row[name] for name in ("dense_bytes", "sparse_bytes", "meta_bytes", "tail_bytes", "count_bytes"))
        sizes[row["layer"]] = sizes.get(row["layer"], 0) + parts
    return sizes
