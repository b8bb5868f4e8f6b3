"""Oaken (docs/oaken.md): the paper's claims, one row each, with what follows from specifications alone, what needs a
fitted constant, and what can only be cited.

Source of the claims: Kim et al., Oaken, ISCA 2025; P-numbers are those of docs/oaken.md, "Claims".
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npu_device.kv_quant import oaken as codec
from npu_device.kv_quant.thresholds import Thresholds
from pyv_npu.kv_quant import study
from pyv_npu.kv_quant.ablations import ablations, ratio_sweep
from pyv_npu.kv_quant.schedule import Engines, Step, step
from pyv_npu.kv_quant.synthetic import HEAD_DIM, RATIO_SWEEP, errors, layer
from pyv_npu.kv_quant.systems import (
    A100,
    FP16,
    LPU_HBM,
    LPU_LPDDR,
    OAKEN,
    OAKEN_HBM,
    OAKEN_LPDDR,
    QSERVE,
    SYSTEMS,
    System,
    longest,
    on,
    throughput,
)
from pyv_npu.studies.reproductions import Reproduced
from pyv_npu.text import columns
from toolchain.decoders.shapes import Shape, shape_of

SOURCE = "Kim et al., Oaken: Fast and Efficient LLM Serving with Online-Offline Hybrid KV Cache Quantization, ISCA 2025"
EXACT, PREDICTED, CALIBRATED, CITED = "exact", "predicted", "calibrated", "cite only"
SIX = ("llama2-7b", "llama2-13b", "mistral-7b", "opt-30b", "mixtral-8x7b", "llama2-70b")
BATCHES = (16, 32, 64, 128, 256)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
OTHER_SHARE, DMA_EFFICIENCY = 0.27, 0.9
"""Fitted to P7 and P8: attention that is no read, as a share of reading fp16; share of the bandwidth that DMA
reaches."""
AREA = {"core": 3.971, "quantization engine": 0.074, "dequantization engine": 0.252}
"""mm2 of a core in 28 nm at 1 GHz, table 4."""
AREA_SHARES = {"quantization and dequantization": 8.21, "VPU": 22.86, "MPU": 6.03}
"""Percent of a core."""
POWER = {"oaken": 222.7, "a100": 400.0}
"""Watts."""
NORMAL = Thresholds(-2.0537, -0.07527, 0.07527, 2.0537)
"""Quantiles of a normal distribution for 4/90/6 %."""


class Claim(NamedTuple):
    """One of the paper's."""

    id: str
    text: str
    paper: str
    ours: str
    kind: str
    met: bool | None
    """None: there is nothing of ours to compare."""
    constants: str = ""

    @property
    def verdict(self) -> str:
        return {True: "met", False: "NOT MET", None: "-"}[self.met]


def ratios(mine: System, other: System, requests: int = 256) -> dict[str, float]:
    """Model -> throughput over another system's, of decoding alone."""
    return {
        name: throughput(mine, shape_of(name), requests) / throughput(other, shape_of(name), requests)
        for name in SIX
        if throughput(other, shape_of(name), requests)
    }


def mean(numbers: Mapping[str, float]) -> float:
    return sum(numbers.values()) / len(numbers)


def counted_bits(width: int, tokens: int = 64) -> float:
    """Bits of an element as the codec stores normal tokens with the thresholds of 4/90/6 %."""
    x = np.random.default_rng(width).standard_normal((tokens, width)).astype(np.float32)
    return 8 * codec.encode(x, NORMAL.check("normal")).payload / x.size


def kv_efficiency_of(target: float) -> float:
    """Share of the bandwidth at which QServe would have to read keys and values for a mean ratio to it."""
    low, high = 1e-3, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        found = mean(ratios(OAKEN_LPDDR, replace(QSERVE, kv_efficiency=middle)))
        low, high = (low, middle) if found < target else (middle, high)
    return (low + high) / 2


def decoding(requests: int, engines: Engines | None = None, system: System = OAKEN_LPDDR) -> Step:
    """A step of Llama2-7B with the constants of P7 and P8."""
    contexts = [1536] * requests
    return step(
        system, shape_of("llama2-7b"), contexts, engines or Engines(), dma_efficiency=DMA_EFFICIENCY,
        other_share=OTHER_SHARE,
    )  # fmt: skip


def claims() -> Iterator[Claim]:
    """P1 to P17."""
    yield from _sizes()
    yield from _speeds()
    yield from _attention()
    yield from _capacity()
    yield from _cited()


def _sizes() -> Iterator[Claim]:
    widths = {"7B": 4096, "13B": 5120, "70B": 1024}
    bits = {name: OAKEN.element_bits(width) for name, width in widths.items()}
    counted = {name: counted_bits(width) for name, width in widths.items()}
    paper = {"7B": 4.82, "13B": 4.82, "70B": 4.89}
    near = all(abs(found[name] - paper[name]) <= 0.01 for found in (bits, counted) for name in paper)
    shown = "/".join(f"{one:.3f}" for one in bits.values())
    text = f"{shown}; counted by the codec {'/'.join(f'{one:.3f}' for one in counted.values())}"
    yield Claim("P1", "bits of an element, Llama2 7B/13B/70B", "4.82/4.82/4.89", text, EXACT, near)
    saved = 1 - OAKEN.element_bits(4096) / FP16.bits
    slide = (0.9 * 4 + 0.1 * 23, 0.9 * 4 + 0.1 * 12, 0.9 * 4 + 0.1 * 8)
    text = f"16 + 6 + 1 = 23 -> 6 + 1 + 1 = 8; -{100 * saved:.1f} %; {'/'.join(f'{one:.1f}' for one in slide)}"
    met = [round(one, 1) for one in slide] == [5.9, 4.8, 4.4] and round(100 * saved, 1) == 69.9
    yield Claim("P2", "bits of an outlier, of all; of the slides", "23 -> 8; -69.9 %; 5.9/4.8/4.4", text, EXACT, met)
    shape = shape_of("llama2-13b")
    kv = shape.kv_bytes(2048, 256)
    share = 100 * kv / (kv + shape.weight_bytes())
    yield Claim("P3", "KV's share of memory, 13B, batch 256, 2K", "94 %", f"{share:.1f} %", PREDICTED,
                round(share) == 94)  # fmt: skip


def _speeds() -> Iterator[Claim]:
    found = ratios(OAKEN_LPDDR, A100)
    order = sorted((name for name in found if name != "llama2-70b"), key=lambda name: -found[name])
    wanted = ["llama2-13b", "llama2-7b", "opt-30b", "mistral-7b", "mixtral-8x7b"]
    met = abs(mean(found) / 1.79 - 1) <= 0.15 and order == wanted and min(found.values()) >= 1
    yield Claim("P4", "Oaken-LPDDR over vLLM, mean of six models, batch 256", "1.79 x",
                f"{mean(found):.2f} x ({', '.join(f'{one:.2f}' for one in found.values())})", PREDICTED, met,
                "decoding alone, 1K + 1K, waves, all memory; fragile: pyv-npu docs oaken")  # fmt: skip
    ideal = mean(ratios(OAKEN_LPDDR, QSERVE))
    fitted = kv_efficiency_of(1.58)
    reached = mean(ratios(OAKEN_LPDDR, replace(QSERVE, kv_efficiency=fitted)))
    yield Claim("P5", "Oaken-LPDDR over QServe, mean, batch 256", "1.58 x", f"{reached:.2f} x; ideal {ideal:.2f} x",
                CALIBRATED, abs(reached - 1.58) < 0.01, f"QServe reads KV at {fitted:.2f} of the rate")  # fmt: skip
    found = ratios(OAKEN_HBM, LPU_HBM)
    expected = {"llama2-7b": 2.91, "llama2-13b": 3.03, "mistral-7b": 1.72, "opt-30b": 3.13}
    met = all(abs(found[name] / value - 1) <= 0.05 for name, value in expected.items())
    yield Claim("P6", "Oaken-HBM over fp16 in the same memory, batch 256", "figure 11",
                ", ".join(f"{name} {found[name]:.2f}" for name in expected), PREDICTED, met)  # fmt: skip


def _attention() -> Iterator[Claim]:
    ideal = OAKEN.element_bits(4096) / FP16.bits
    ours = 1 - (ideal + OTHER_SHARE) / (1 + OTHER_SHARE)
    text = f"-{100 * ours:.1f} %; ideal -{100 * (1 - ideal):.1f} %"
    yield Claim("P7", "attention time against the LPU", "-55.0 %", text, CALIBRATED,
                0.5 <= ours <= 0.7, f"other work of attention {OTHER_SHARE} of reading fp16")  # fmt: skip
    made = decoding(64)
    quantize, dequantize = (100 * one / made.total for one in (made.quantize_busy, made.dequantize_busy))
    exposed = 100 * (made.quantize_exposed + made.dequantize_exposed) / made.total
    met = abs(quantize - 1.29) <= 0.5 and abs(dequantize - 3.23) <= 1 and exposed < 1
    yield Claim("P8", "quantization, dequantization of latency, 7B, batch 64", "1.29 %, 3.23 %, hidden",
                f"busy {quantize:.2f} %, {dequantize:.2f} %; exposed {exposed:.4f} %", CALIBRATED, met,
                f"w_q 1, w_dq 64 of 256 cores, DMA at {DMA_EFFICIENCY}, other work {OTHER_SHARE}")  # fmt: skip


def _capacity() -> Iterator[Claim]:
    shape = shape_of("llama2-13b")
    most = {one.name: longest(one, shape, 16) for one in SYSTEMS}
    at16 = {name for name, tokens in most.items() if tokens >= 16384}
    at32 = {name for name, tokens in most.items() if tokens >= 32768}
    met = at16 == {"oaken-lpddr", "lpu-lpddr"} and at32 == {"oaken-lpddr"}
    yield Claim("P9", "longest sequence, 13B, batch 16", "HBM fails at 16K, only Oaken-LPDDR at 32K",
                ", ".join(f"{name} {tokens:,}" for name, tokens in most.items()), PREDICTED, met)  # fmt: skip
    short = {length: [_total(one, shape, length) for one in (A100, OAKEN_LPDDR)] for length in LENGTHS}
    met = all(short[length][0] > short[length][1] for length in LENGTHS[:3]) and not short[8192][0] and all(
        short[length][1] for length in LENGTHS
    )  # fmt: skip
    yield Claim("P10", "short sequences: GPUs ahead, then out of memory", "crossover near 8K",
                ", ".join(f"{length // 1024}K {a:.0f}/{b:.0f}" for length, (a, b) in short.items()), PREDICTED, met,
                "direction of vLLM/Oaken-LPDDR alone; Oaken-HBM's crossover needs two GPU constants")  # fmt: skip
    large = [throughput(one, shape, 256, prefill=True) for one in (LPU_HBM, LPU_LPDDR)]
    opt = shape_of("opt-30b")
    sixteen, four = ([throughput(one, opt, n, prefill=True) for one in (LPU_HBM, LPU_LPDDR)] for n in (16, 4))
    yield Claim("P11", "figure 4: HBM ahead for 13B, LPDDR for OPT-30B at larger batch", "figure 4",
                f"13B {large[0]:.0f}/{large[1]:.0f}; OPT-30B at 16 {sixteen[0]:.0f}/{sixteen[1]:.0f}", PREDICTED,
                large[0] > large[1] and sixteen[0] < sixteen[1] and four[0] > four[1], "prefill at 0.6")  # fmt: skip
    opts = [throughput(one, opt, 64) for one in (OAKEN_LPDDR, OAKEN_HBM)]
    small = [throughput(one, shape_of("llama2-7b"), 64) for one in (OAKEN_LPDDR, OAKEN_HBM)]
    none = [throughput(OAKEN_HBM, shape_of(name), 16) for name in ("mixtral-8x7b", "llama2-70b")]
    yield Claim("P12", "Oaken-HBM for small models, LPDDR for large ones", "figure 11",
                f"7B {small[0]:.0f}/{small[1]:.0f}, OPT-30B {opts[0]:.0f}/{opts[1]:.0f} at 64; 70B does not fit HBM",
                PREDICTED, small[1] > small[0] and opts[0] > opts[1] and not any(none))  # fmt: skip
    shares = [100 * AREA[name] / AREA["core"] for name in ("quantization engine", "dequantization engine")]
    power = 100 * (1 - POWER["oaken"] / POWER["a100"])
    met = [round(one, 2) for one in shares] == [1.86, 6.35] and round(power, 1) == 44.3
    yield Claim("P13", "area of the engines, power against an A100", "1.86 %, 6.35 %; -44.3 %",
                f"{shares[0]:.2f} %, {shares[1]:.2f} %; -{power:.1f} % of the published constants", EXACT, met,
                "constants of table 4")  # fmt: skip


def _total(system: System, shape: Shape, length: int) -> float:
    """Throughput of 16 sequences at once, half in and half out; 0: they do not fit."""
    if longest(on(system, shape), shape, 16) < length:
        return 0.0
    return throughput(system, shape, 16, (length // 2, length // 2), prefill=True)


def _cited() -> Iterator[Claim]:
    yield Claim("P14", "accuracy: FP16, KVQuant, KIVI, QServe", "-0.87, -0.54, -0.32, +1.38 points", "needs weights",
                CITED, None)  # fmt: skip
    yield Claim("P15", "perplexity of Llama2-7B, 4/90/6", "5.47 -> 5.526", "needs weights", CITED, None)
    gains = {
        name: [_gain(shape_of(name), lengths) for lengths in ((1024, 128), (256, 1024))]
        for name in ("llama2-13b", "mixtral-8x7b")
    }
    met = all(short < long for short, long in gains.values()) and gains["mixtral-8x7b"][1] < gains["llama2-13b"][1]
    yield Claim("P16", "traces: gain grows with the output, less for GQA", "about 1.3 x, 1.8 x",
                "; ".join(f"{name} {short:.2f} x, {long:.2f} x" for name, (short, long) in gains.items()), PREDICTED,
                met,
                "direction alone, 1024 + 128 and 256 + 1024 tokens in place of the traces")  # fmt: skip
    found = {name: throughput(OAKEN_LPDDR, shape_of(name), 256) / throughput(LPU_LPDDR, shape_of(name), 256)
             for name in ("llama2-7b", "llama2-13b", "mistral-7b", "mixtral-8x7b")}  # fmt: skip
    mha, gqa = [found["llama2-7b"], found["llama2-13b"]], [found["mistral-7b"], found["mixtral-8x7b"]]
    yield Claim("P17", "grouped heads shrink the gain over the LPU", "figure 11",
                ", ".join(f"{name} {one:.2f} x" for name, one in found.items()), PREDICTED,
                max(gqa) < min(mha))  # fmt: skip


def _gain(shape: Shape, tokens: tuple[int, int]) -> float:
    """Of Oaken over the LPU with the same memory, 128 requests."""
    both = (throughput(one, shape, 128, tokens, prefill=True) for one in (OAKEN_LPDDR, LPU_LPDDR))
    mine, other = both
    return mine / other


def figure_data() -> dict[str, Any]:
    """What the charts show."""
    shape = shape_of("llama2-13b")
    return {
        "figure4": {
            name: {one.name: [throughput(one, shape_of(name), batch, prefill=True) for batch in BATCHES]
                   for one in (LPU_HBM, LPU_LPDDR)}
            for name in ("llama2-13b", "opt-30b")
        },
        "figure11": {
            name: {one.name: [throughput(one, shape_of(name), batch) for batch in BATCHES] for one in SYSTEMS}
            for name in SIX
        },
        "figure12a": [one._asdict() for one in ratio_sweep([layer()], RATIO_SWEEP)],
        "figure12b": {
            str(batch): {one.name: decoding(batch, system=one)._asdict() for one in (OAKEN_LPDDR, LPU_LPDDR)}
            for batch in BATCHES
        },
        "figure13": {one.name: [_total(one, shape, length) for length in LENGTHS] for one in SYSTEMS},
        "figure14": {
            name: {f"{tokens[0]} + {tokens[1]}": _gain(shape_of(name), tokens)
                   for tokens in ((1024, 128), (512, 512), (256, 1024))}
            for name in ("llama2-13b", "mixtral-8x7b")
        },
    }  # fmt: skip


def _engine_rows() -> list[dict[str, Any]]:
    """The schedule with and without overlap, and narrow engines."""
    cases = {
        "overlap": Engines(), "no overlap": Engines(overlap=False), "w_dq 4": Engines(w_dq=4),
        "w_q 2, w_dq 128": Engines(w_q=2, w_dq=128),
    }  # fmt: skip
    return [{"engines": name, **decoding(64, engines)._asdict()} for name, engines in cases.items()]


def reproduce() -> Reproduced:
    """All claims, and the data of the figures."""
    rows, methods = list(claims()), errors()
    exact = all(row.met is not False for row in rows)
    json: dict[str, Any] = {
        "schema": 1, "reproduction": "oaken", "source": SOURCE, "exact": exact,
        "claims": [{**row._asdict(), "verdict": row.verdict} for row in rows],
        "constants": {"area_mm2": AREA, "area_percent": AREA_SHARES, "power_watts": POWER},
        "synthetic_errors": [one._asdict() for one in methods],
        "ablations": [one._asdict() for one in ablations([layer()], HEAD_DIM)],
        "schedule": _engine_rows(), **figure_data(),
    }  # fmt: skip

    def files() -> Mapping[str, str]:
        from pyv_npu.studies.reproductions.oaken_page import files as made

        return made(json)

    return Reproduced(json, _text(json, rows), exact, files)


def _text(json: Mapping[str, Any], rows: list[Claim]) -> str:
    """For people."""
    table = [(row.id, row.text, row.paper, row.ours, row.kind, row.verdict) for row in rows]
    methods = [(one["method"], f"{one['bits']:.2f}", f"{one['keys']:.3f}", f"{one['values']:.3f}")
               for one in json["synthetic_errors"]]  # fmt: skip
    schedule = [(one["engines"], *(f"{one[name]:,}" for name in _SHOWN)) for one in json["schedule"]]
    return "\n".join(
        [
            f"{json['source']}\n",
            columns(("", "claim", "paper", "ours", "kind", "verdict"), table),
            "\nconstants",
            *(f"  {row.id}: {row.constants}" for row in rows if row.constants),
            "\nsynthetic keys and values: relative error",
            columns(("method", "bits", "keys", "values"), methods),
            "\nablations, synthetic keys and values: relative error",
            study.ablation_table(json["ablations"]),
            "\nshares of outer, middle and inner group: relative error",
            study.sweep_table(json["figure12a"]),
            "\ntoken-level batch schedule, Llama2-7B, 64 requests on 256 cores: cycles",
            columns(("engines", *(name.replace("_", " ") for name in _SHOWN)), schedule),
            f"\nall that is claimed exactly, predicted or calibrated is met: {'yes' if json['exact'] else 'NO'}",
        ]
    )


_SHOWN: tuple[str, ...] = (
    "total", "quantize_busy", "quantize_exposed", "dequantize_busy", "dequantize_exposed",
)  # fmt: skip
