"""Request for a decoder's generation, and its result: tokens, logits, cycles of each step, comparisons."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE
from npu_device.abi.opcodes import BITS
from npu_device.config import NpuConfig
from npu_device.kv_quant.methods import FLOAT8, FP16, METHODS, KvMethod
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.kv_quant import encoded_kv, engines
from pyv_npu.result import Detail, Result
from pyv_npu.run_sections.latency import token_steps
from pyv_npu.sections import Cell, Facts, Section, Table, Value
from pyv_npu.workloads.checks import check, check_codes, check_rounding, codes_row, float_rows
from pyv_npu.workloads.compiled import FIRMWARE_SUBMITS, listing, submission_row
from pyv_npu.workloads.data import RUNS, Values
from pyv_npu.workloads.kv_figures import EncodedSize, KvTraffic, csv_of, error, kv_capacity, kv_errors, kv_figures
from toolchain.decoders.decoder import CODES, LOG, LOGITS, CompiledDecoder, Decoder, KvBits
from toolchain.decoders.reference import DecodeStep, Reference, empty_past, step_feeds
from toolchain.decoders.shapes import BY_BITS
from toolchain.quantize.precision import FLOAT_TYPES, INT8, TOLERANCE
from toolchain.quantize.qconfig import QConfig

DRAWN = 4
"""Number of tokens of a random prompt."""
TABLES = ("kv_tokens", "kv_layers", "kv_errors", "kv_encoded", "kv_methods")
"""Figures that a report stores as CSV tables."""
TOKEN_BYTES = 4
"""Bytes of a token in the memory that firmware and host share."""


class GenerationRequest(NamedTuple):
    """Request for tokens of a decoder, with its compiler options."""

    prompt: tuple[int, ...]
    """Tokens of the prompt; empty: `DRAWN` tokens are drawn with the seed of the run."""
    new: int
    """Number of tokens after the prompt."""
    given: tuple[int, ...] = ()
    """First tokens after the prompt; all others have the largest logit."""
    t_max: int | None = None
    """Capacity of the caches, tokens; None: prompt and new tokens."""
    kv_bits: int | None = None
    """Bits of keys and values; None: the model's own type."""
    passes: str = "all"
    qconfig: Path | None = None
    """File with the widths of weights (`toolchain.quantize.qconfig`)."""
    precision: str = ""
    """INT8: the model is quantized first; empty: the model's own precision."""
    calibration: tuple[Path, ...] = ()
    """Files with input_ids on which ranges for INT8 are calibrated."""
    calibration_runs: int = RUNS
    calibration_method: str = "minmax"
    granularity: str = "macro"
    """tile: attention, too, is lowered to tile commands, separately for every token."""
    submit: str = FIRMWARE_SUBMITS
    """Submitter of the commands: generic firmware, or code generated for them."""
    kv: str = ""
    """Method that stores keys and values: a name of `METHODS`; empty: the model's type, or integers of `kv_bits`."""
    thresholds: Path | None = None
    """File of thresholds of oaken; None: they are profiled on `calibration`, or on random prompts."""

    @property
    def method(self) -> KvMethod:
        """Method that stores keys and values."""
        return METHODS[self.kv or FP16.name]

    @property
    def exact(self) -> bool:
        """True if weights and caches have the model's types, so that values are compared with the reference. Narrow
        weights of a model quantized by `precision` count as the model's."""
        config = self.weights()
        original_kv = self.kv_bits is None and not config.names_caches and not self.kv
        return original_kv and (self.qconfig is None or self.precision == INT8)

    @property
    def total(self) -> int:
        """Tokens of the whole conversation."""
        return len(self.prompt) + self.new

    def check(self, decoder: Decoder) -> None:
        """Raise UsageError for a request that the decoder cannot fulfil."""
        for name, tokens in (("--prompt", self.prompt), ("--given", self.given)):
            for token in tokens:
                if not 0 <= token < decoder.vocab:
                    raise UsageError(f"{name}: token {token}: the vocabulary has 0..{decoder.vocab - 1}")
        kind, config = decoder.caches[0].kind, self.weights()
        narrow, coded = self.kv_bits is not None, kind in CODES
        width = f"--qbits-kv {self.kv_bits}"
        typed = f"the model keeps keys and values as {kind.name}: drop it"
        stored = f"--kv {self.kv} says how keys and values are stored; drop one of them"
        profiled = [name for name, method in METHODS.items() if method.encoded and method.key_codec.has_thresholds]
        rules = (
            (self.new < 1, f"--generate {self.new}: must be at least 1"),
            (len(self.given) > self.new, f"--given: {len(self.given)} tokens, --generate asks for {self.new}"),
            (narrow and self.kv_bits not in BY_BITS, f"{width}: must be one of {', '.join(map(str, BY_BITS))}"),
            (narrow and coded, f"{width}: {typed}"),
            (config.names_caches and coded, f"{self.qconfig}: {typed}"),
            (narrow and config.names_caches,
             f"--qbits-kv: {self.qconfig} names widths of keys and values: give one of them"),
            (self.kv and narrow, f"--qbits-kv: {stored}"),
            (self.kv and self.granularity == "tile" and self.method.encoded, f"--granularity tile: {stored}"),
            (self.kv and config.names_caches, f"{self.qconfig}: {stored}"),
            (self.kv and coded, f"--kv {self.kv}: {typed}"),
            (self.thresholds is not None and self.kv not in profiled,
             f"--thresholds: are for --kv {' or '.join(profiled)}; give it too, or drop them"),
            (self.t_max is not None and self.total > self.t_max,
             f"--t-max {self.t_max}: prompt and new tokens are {self.total}: they must fit the caches"),
        )  # fmt: skip
        for is_broken, text in rules:
            if is_broken:
                raise UsageError(text)
        self._check_layers(decoder)
        self._check_rows(decoder)

    def weights(self) -> QConfig:
        """Return the QConfig of the request, or an empty QConfig."""
        return QConfig() if self.qconfig is None else load_qconfig(self.qconfig)

    def settled(self, decoder: Decoder, seed: int) -> "GenerationRequest":
        """Return the request with a prompt, and with the precision that the width of activations requires. UsageError
        for an unsupported width."""
        config, kind = self.weights(), decoder.caches[0].kind
        if config.overrides("activation") or config.activation not in (None, 8, BITS[kind]):
            raise UsageError(
                f"{self.qconfig}: activations of a decoder: qbits_activation_default must be 8 (int8), or "
                f"{BITS[kind]}, which are those of {decoder.name}, for all layers"
            )
        prompt = np.random.default_rng(seed).integers(0, decoder.vocab, DRAWN).tolist()
        request = self._replace(prompt=self.prompt or tuple(prompt))
        return request._replace(precision=INT8) if config.activation == 8 else request

    def cache_bits(self) -> KvBits:
        """Return the width of the keys and values of each head (docs/bit-widths.md, R14)."""
        if self.kv_bits is not None:
            return lambda layer, head: self.kv_bits
        if self.kv and not self.method.encoded and self.method.element not in FLOAT8:
            return lambda layer, head: self.method.bits
        return self.weights().cache_bits

    def _check_rows(self, decoder: Decoder) -> None:
        """Raise UsageError for rows of keys and values that do not end at a byte and are not padded
        (docs/bit-widths.md, R15)."""
        bits, pad = self.cache_bits(), self.weights().pad_rows
        for layer, cache in enumerate(decoder.caches[::2]):
            for head in range(cache.heads):
                width = bits(layer, head)
                if width is not None and cache.head_dim * width % 8 and not pad:
                    raise UsageError(
                        f"E_PACK: layer {layer}, head {head}: a row of {cache.head_dim} x {width} bits does not end at "
                        "a byte: kv.pad_rows: true in --qconfig pads it"
                    )

    def _check_layers(self, decoder: Decoder) -> None:
        """Raise UsageError for a layer or head that the decoder lacks."""
        for name in self.weights().override:
            layer, *head, role = name.removeprefix("layer_").replace("head_", "").split(".")
            if role != "kv":
                continue
            layers = len(decoder.caches) // 2
            heads = decoder.caches[2 * int(layer)].heads if int(layer) < layers else 0
            if int(layer) >= layers or (head and int(head[0]) >= heads):
                max_heads = max(cache.heads for cache in decoder.caches)
                raise UsageError(
                    f"{self.qconfig}: override.{name}: {decoder.name} has layers 0 to {layers - 1} of KV heads 0 to "
                    f"{(heads or max_heads) - 1}"
                )


@dataclass(frozen=True)
class GenerationDetail(Detail):
    """Tokens and logits, with their comparison with the reference."""

    difference: ClassVar[str] = "the logits differ from the ONNX reference"
    compiled: CompiledDecoder
    tokens: tuple[int, ...]
    """Tokens of the prompt, then the new tokens."""
    logits: Values
    """Logits of every token but the last, shape (tokens - 1, vocabulary)."""
    figures: Mapping[str, Any]
    """Object `generate` of the result."""
    cycles: Sequence[int] | None
    """Core cycles of the prompt and of each token after it; None at IA, empty if some are missing."""

    @classmethod
    def of(
        cls, compiled: CompiledDecoder, request: GenerationRequest, tokens: Sequence[int], read: Callable[[str], bytes],
        codes: Sequence[Mapping[str, Values]] | None, cycles: Sequence[int] | None, traffic: KvTraffic | None,
        npu: NpuConfig,
    ) -> "GenerationDetail":  # fmt: skip
        """Return the detail of a run; `read` returns the final bytes of a tensor. `codes`: codes of each step, with
        which the reference continues; None: the run is not compared. `traffic`: of the DMA, if it was recorded."""
        decoder = compiled.decoder
        logits = compiled.logits(read(LOG))[: len(tokens) - 1]
        contents = {LOG: read(LOG)}
        for cache in decoder.caches:
            contents[cache.past] = b"".join(read(tensor.id) for tensor in compiled.stored(cache.past))
        kinds = {tensor.dtype.name: None for cache in decoder.caches for tensor in compiled.stored(cache.past)}
        positions = range(len(request.prompt) - 1, request.total - 1)
        count = len(tokens) - 1
        encoded = None
        if compiled.kv_blocks:
            measured = encoded_kv.measured(compiled, read, count, npu.kv_quant.page_bytes)
            allocated = encoded_kv.allocated(compiled, npu.kv_quant)
            encoded = EncodedSize(request.kv, encoded_kv.bytes_by_layer(measured), allocated)
        cache_figures = kv_figures(compiled.caches, traffic, positions, count, encoded)
        figures = {
            "prompt": list(request.prompt), "tokens": list(tokens), "given": list(request.given),
            "t_max": compiled.t_max, "kv_type": "/".join(kinds), **cache_figures,
            "kv_capacity": _capacity(compiled, npu, -(-cache_figures["kv_bytes_used"] // count) if encoded else None),
            "commands": {"prompt": compiled.prompt_commands, "step": compiled.step_commands},
            "floats": dict(decoder.floats),
            "outputs_sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        }  # fmt: skip
        comparison: dict[str, Any] = {"steps": [], "rounding": {}, "codes": {}, "original_error": None}
        figures |= comparison if codes is None else compare_logits(decoder, request, tokens, logits, codes)
        if codes is not None and not request.exact and all(codes):
            figures |= _errors(compiled, tokens, logits, read, codes)
        if encoded is not None:
            figures |= {"kv_encoded": measured, "kv_type": encoded.method}
        return cls(compiled, tuple(tokens), logits, figures, cycles)

    def with_engines(
        self, counted: Iterable[Mapping[str, int]], cycles: int, npu: NpuConfig
    ) -> "GenerationDetail":  # fmt: skip
        """Return the detail with the work of the engines of encoded keys and values, counted in the parts of the
        run."""
        total: Counter[str] = Counter()
        for counts in counted:
            total.update(counts)
        return replace(self, figures={**self.figures, "kv_engines": engines.figures(total, cycles, npu)})

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        cycles = {} if self.cycles is None else {"cycles_by_step": list(self.cycles)}
        return {**cycles, "generate": dict(self.figures)}

    def sections(self, result: Result[Any]) -> list[Section]:
        """Return the tokens and the comparison of each step with the reference."""
        figures = self.figures
        rows = [
            *self._tokens(),
            (
                "commands",
                f"{figures['commands']['prompt']} for the prompt, {figures['commands']['step']} for every token",
            ),
            ("KV", f"{figures['kv_type']}, {figures['kv_bytes_used']:,} of {figures['kv_bytes_alloc']:,} bytes used"),
        ]
        if "kv_engines" in figures:
            rows.append(("KV engines", engines.sentence(figures["kv_engines"])))
        rows += submission_row(figures.get("submission", {})) + float_rows(figures["floats"], "generate.floats")
        steps = figures["steps"]
        if steps:
            worst = max(steps, key=lambda step: -1.0 if step["error"] is None else float(step["error"]))
            limit = f", limit {worst['limit']:.0e}"
            if worst["ok"] is None:
                limit = "; not checked: weights or caches have another type"
            rows.append(("worst error of logits", f"{worst['error']:.2e} at position {worst['position']}{limit}"))
            if "arithmetic" in figures["rounding"]:
                rounding = figures["rounding"]
                text = f"error {rounding['error']:.2e}, limit {rounding['limit']:.0e}"
                rows.append(("in double precision", f"{text}; one rounding: error {rounding['arithmetic']:.2e}"))
            match_count = sum(step["next"] == step["reference_next"] for step in steps)
            rows.append(("same choice", f"{match_count} of {len(steps)} positions"))
            rows += codes_row(figures["codes"])
            if "logits_error" in figures:
                rows.append(("relative error of logits", f"{figures['logits_error']:.2e}"))
            if figures["original_error"] is not None:
                error = f"{figures['original_error']:.2e} against the model before it was quantized"
                rows.append(("original", f"error {error}"))
            rows += [("DIFFERS", f"position {step['position']}") for step in steps if step["ok"] is False]
        against = "onnx.reference" if self.compiled.decoder.proto is not None else "numpy on its layers"
        tables = [
            *_error_table(figures.get("kv_errors", ())),
            *_encoded_tables(figures.get("kv_encoded", ()), figures.get("kv_methods", ())),
        ]
        return [Section("decoder", f"Decoder, against {against}", [Facts(rows), *tables])]

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        """Return IR and commands, and the tables of keys and values."""
        tables = {name: self.figures.get(name) for name in TABLES}
        csv_files = {f"{name}.csv": csv_of(rows) for name, rows in tables.items() if rows}
        return {**listing(self.compiled.compiled, result.config.npu), **csv_files}

    def compared(self, loose: Result[Any], tight: Result[Any]) -> tuple[dict[str, Any], list[Section]]:
        """Return the tokens, and the cycles of each in both modes."""
        runs = {"loose": loose.json, "tight": tight.json}
        tokens = {name: run["generate"]["tokens"] for name, run in runs.items()}
        timed = all(run.get("cycles_by_step") for run in runs.values())
        generated = {"same_tokens": tokens["loose"] == tokens["tight"], "tokens": tokens["loose"],
                "steps": token_steps(runs) if timed else []}  # fmt: skip
        rows = [*self._tokens(), ("same in both modes", "yes" if generated["same_tokens"] else "NO")]
        title = "Decoder: from the first submission of a step until firmware knows its result"
        return {"generate": generated}, [Section("decoder", title, [Facts(rows)])]

    def _tokens(self) -> list[tuple[str, str]]:
        count = len(self.figures["prompt"])
        token_lists = (("prompt", self.tokens[:count]), ("new tokens", self.tokens[count:]))
        return [(name, " ".join(map(str, tokens))) for name, tokens in token_lists]


def _errors(
    compiled: CompiledDecoder, tokens: Sequence[int], logits: Values, read: Callable[[str], bytes],
    codes: Sequence[Mapping[str, Values]],
) -> dict[str, Any]:  # fmt: skip
    """Return errors against the model before any quantization, on the same tokens."""
    decoder = compiled.decoder.original or compiled.decoder
    prompt = len(tokens) - len(codes)
    reference_steps = list(Reference(decoder, watched=decoder.attended).steps(tokens, prompt))
    methods = {"kv_methods": encoded_kv.compared(compiled, reference_steps[-1].past)} if compiled.kv_blocks else {}
    return {
        **methods,
        "kv_errors": kv_errors(compiled, read, reference_steps, codes),
        "logits_error": error(logits.astype(np.float64), np.concatenate([step.logits for step in reference_steps])),
    }


def _capacity(compiled: CompiledDecoder, npu: NpuConfig, encoded: int | None) -> dict[str, Any]:
    """Return the capacity of the caches in tokens, in DRAM that the core can address. `encoded`: bytes of a token in
    pages, which take no addresses there."""
    program, tensors = compiled.compiled, compiled.compiled.graph.tensors
    caches = sum(cache.bytes_alloc for cache in compiled.caches) if encoded is None else 0
    grows = caches + tensors[LOG].size
    program_bytes = program.end - DRAM_BASE - grows
    return kv_capacity(
        compiled.caches,
        min(npu.dram.size, DRAM_CORE_VISIBLE),
        program_bytes,
        sum(cache.token_bytes for cache in compiled.caches) if encoded is None else encoded,
        tensors[LOG].size // compiled.t_max + TOKEN_BYTES,
    )


def compare_logits(
    decoder: Decoder, request: GenerationRequest, tokens: Sequence[int], logits: Values,
    codes: Sequence[Mapping[str, Values]],
) -> dict[str, Any]:  # fmt: skip
    """Compare each token's logits, and all codes, with the reference on the same tokens. If types differ from the
    model's, the error is only reported. Logits may be wider than what they are computed from, which has the type of
    keys and values."""
    cached = {cache.kind for cache in decoder.caches}
    min_limit = max((TOLERANCE[name] for name, kind in FLOAT_TYPES.items() if kind in cached), default=0.0)
    if not request.exact:
        codes = [{} for _ in codes]
    names = list(codes[0])
    reference_steps = list(_reference(decoder, names, tokens, len(request.prompt), codes))
    reference_logits, rows = np.concatenate([step.logits for step in reference_steps]), []
    for position, (got, want) in enumerate(zip(logits, reference_logits, strict=True)):
        compared = check(got, want, min_limit)
        rows.append(
            {
                "position": position, "token": tokens[position], "next": int(got.argmax()),
                "reference_next": int(want.argmax()), "error": compared["error"], "limit": compared["limit"],
                "ok": compared["ok"] if request.exact else None,
            }
        )  # fmt: skip
    rounding = {}
    if not (names or all(row["ok"] in (None, True) for row in rows)):
        rounding = _check_rounding(decoder, tokens, logits, reference_logits)
        rows = [row | {"ok": row["ok"] or rounding["ok"]} for row in rows]
    pairs = [
        (values[name], step.codes[name]) for values, step in zip(codes, reference_steps, strict=True) for name in names
    ]
    original = None
    if decoder.original is not None:
        original_steps = Reference(decoder.original).steps(tokens, len(request.prompt))
        original = check(logits, np.concatenate([step.logits for step in original_steps]))["error"]
    codes_result = check_codes(pairs) if names else {}
    return {"steps": rows, "rounding": rounding, "codes": codes_result, "original_error": original}


def _check_rounding(decoder: Decoder, tokens: Sequence[int], logits: Values, expected: Values) -> dict[str, Any]:
    """Compare the logits of all tokens, as those of one step, with the reference in double precision."""
    checks = {LOGITS: check(logits, expected)}
    if decoder.proto is None:
        return checks[LOGITS]
    inputs = step_feeds(decoder, tokens[:-1], empty_past(decoder))
    model = decoder.model(len(tokens) - 1)
    return check_rounding(model, inputs, {LOGITS: logits[None]}, {LOGITS: expected[None]}, checks)[LOGITS]


def _reference(
    decoder: Decoder, names: Sequence[str], tokens: Sequence[int], prompt: int, codes: Sequence[Mapping[str, Values]]
) -> Iterator[DecodeStep]:
    """Return the steps of the reference: onnx.reference, or numpy on layers of NPU-IR, which has no ONNX model."""
    if decoder.proto is not None:
        return Reference(decoder, names).steps(tokens, prompt, codes)
    from toolchain.decoders.layers import LayerDecoder

    assert isinstance(decoder, LayerDecoder)
    return decoder.steps(tokens)


def _error_table(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table of the errors due to narrow keys and values, by layer."""
    heads = ("layer", "qbits_kv", "error of K", "error of V", "error of attention")
    names = ("error_k", "error_v", "error_attention")
    cells = [tuple(map(Cell, (str(row["layer"]), row["qbits_kv"], *(f"{row[name]:.2e}" for name in names))))
             for row in rows]  # fmt: skip
    return [Table(heads, cells)] if rows else []


def _encoded_tables(rows: Sequence[Mapping[str, Any]], methods: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return tables of the counted bits of encoded keys and values, and of all methods on the reference's."""
    if not rows:
        return []
    heads = {"outer": "outer", "inner": "inner", "p_out": "p_out", "b_eff": "b_eff", "b_eff_inline": "with counts",
             "b_slide": "b_slide", "entropy_bound": "entropy bound"}  # fmt: skip
    columns = [name for name in heads if name in rows[0]]
    cells: list[list[Value]] = [[str(row["layer"]), row["side"], *(row[name] for name in columns)] for row in rows]
    tables = [Table(("layer", "side", *(heads[name] for name in columns)), cells)]
    if methods:
        titles = ("method, on the reference's K and V", "layer", "bits", "error of K", "error of V")
        table: list[list[Value]] = [[row["method"], Cell(str(row["layer"])), row["bits"], Cell(f"{row['error_k']:.2e}"),
                                     Cell(f"{row['error_v']:.2e}")] for row in methods]  # fmt: skip
        tables.append(Table(titles, table))
    return tables
