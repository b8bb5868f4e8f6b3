"""Oaken (docs/oaken.md): the paper's figures, each beside the figure of the device and of `serve`, with its origin.

Source of the figures: Kim et al., Oaken, ISCA 2025. P-numbers refer to docs/oaken.md, "Claims", which has the protocol
of each. A verdict compares with the paper, within the bound of the protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npu_device.kv_quant import oaken as codec
from npu_device.kv_quant.thresholds import Thresholds
from pyv_npu.config.shape_file import shape_of
from pyv_npu.kv_quant.ablations import ablations, group_counts, ratio_sweep
from pyv_npu.kv_quant.synthetic import HEAD_DIM, RATIO_SWEEP, errors, layer
from pyv_npu.studies.reproductions.oaken_steps import (
    A100,
    A100_INT4,
    LPU_HBM,
    LPU_LPDDR,
    OAKEN_HBM,
    OAKEN_LPDDR,
    SYSTEMS,
    Machine,
    StepCosts,
    coexist,
)

SOURCE = "Kim et al., Oaken: Fast and Efficient LLM Serving with Online-Offline Hybrid KV Cache Quantization, ISCA 2025"
SIMULATED, CALIBRATED, COMPUTED, CITED = "simulated", "calibrated", "computed", "cited"
SIX = ("llama2-7b", "llama2-13b", "mistral-7b", "opt-30b", "mixtral-8x7b", "llama2-70b")
BATCHES = (16, 32, 64, 128, 256)
SHOWN = (16, 64, 256)
"""Batch sizes of figures 4 and 11."""
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
BURST = 1024, 1024
"""Tokens of prompt and answer."""
CONTEXT = 1535
"""Context of the timed token: the middle of the answers of a burst."""
AREA = {"core": 3.971, "quantization engine": 0.074, "dequantization engine": 0.252}
"""mm2 of a core in 28 nm at 1 GHz, table 4."""
AREA_SHARES = {"quantization and dequantization": 8.21, "VPU": 22.86, "MPU": 6.03}
"""Percent of a core."""
POWER = {"oaken": 222.7, "a100": 400.0}
"""Watts."""
NORMAL = Thresholds(-2.0537, -0.07527, 0.07527, 2.0537)
"""Quantiles of a normal distribution for 4/90/6 %."""
P_OUT = 0.10
TOLERANCE = 0.01
"""Maximum relative error of stored step costs on the current device for valid figures: the error of `serve`."""


class Claim(NamedTuple):
    """Figure of the paper."""

    id: str
    text: str
    paper: str
    ours: str
    word: str
    met: bool | None
    """None: no bound was set before the run, or the figure is only cited."""
    error: float | None = None
    """Relative error, if both figures are numbers."""
    remark: str = ""

    @property
    def verdict(self) -> str:
        return {True: "met", False: "NOT MET", None: "-"}[self.met]


def element_bits(width: int) -> float:
    """Return the bits of an element of token vectors of `width` elements: nibbles, entries, 96 bits of metadata."""
    return 4 + 8 * P_OUT + 96 / width


def counted_bits(width: int) -> float:
    """Return the bits of an element, counted by the codec on normal tokens with the thresholds of 4/90/6 %."""
    x = np.random.default_rng(width).standard_normal((64, width)).astype(np.float32)
    return 8 * codec.encode(x, NORMAL.check("normal")).payload / x.size


def mean(numbers: Mapping[str, float]) -> float:
    return sum(numbers.values()) / len(numbers)


class Study:
    """Study of Oaken: all figures, from step costs."""

    def __init__(self, costs: StepCosts, trace: Path | None = None) -> None:
        """`trace`: a workload for P16; without it P16 has synthetic lengths and no verdict."""
        self.costs, self._trace = costs, trace

    def rate(self, machine: Machine, model: str, requests: int = 256, lengths: tuple[int, int] = BURST) -> float:
        """Return the new tokens per second of a burst; 0: out of memory."""
        return self.costs.burst(machine, model, requests, lengths)

    def ratios(self, machine: Machine, baseline: Machine) -> dict[str, float]:
        """Return model -> throughput relative to another system."""
        rates = {name: (self.rate(machine, name), self.rate(baseline, name)) for name in SIX}
        return {name: first / second for name, (first, second) in rates.items() if first and second}

    def claims(self) -> Iterator[Claim]:
        """Yield the claims P1 to P17."""
        yield from _sizes()
        yield from self._speeds()
        yield from self._attention()
        yield from self._capacity()
        yield from self._others()

    def _speeds(self) -> Iterator[Claim]:
        ratios = self.ratios(OAKEN_LPDDR, A100)
        smaller = {name: ratio for name, ratio in ratios.items() if name != "llama2-70b"}
        error = mean(ratios) / 1.79 - 1
        terms = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        yield Claim("P4", "Oaken-LPDDR over vLLM, mean of six models, batch 256", "1.79 x",
                    f"{mean(ratios):.2f} x; {mean(smaller):.2f} x without 70B ({terms})", SIMULATED, abs(error) <= 0.15,
                    error, "stand-in a100; bound 15 %")  # fmt: skip
        ratios = self.ratios(OAKEN_LPDDR, A100_INT4)
        error = mean(ratios) / 1.58 - 1
        yield Claim("P5", "Oaken-LPDDR over a GPU with 4-bit KV, mean, batch 256", "1.58 x", f"{mean(ratios):.2f} x",
                    SIMULATED, abs(error) <= 0.15, error,
                    "the stand-in reads 4 bits at 1.8 times the bandwidth, a GPU's kernels do not")  # fmt: skip
        ratios = self.ratios(OAKEN_HBM, LPU_HBM)
        yield Claim("P6", "Oaken-HBM over fp16 in the same memory, batch 256", "figure 11, no number",
                    ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()), SIMULATED, None)  # fmt: skip

    def _attention(self) -> Iterator[Claim]:
        cycles = {batch: [self.costs.attention(machine, "llama2-7b", batch, CONTEXT)
                          for machine in (OAKEN_LPDDR, LPU_LPDDR)]
                  for batch in BATCHES}  # fmt: skip
        savings = {batch: 100 * (1 - first / second) for batch, (first, second) in cycles.items()}
        average = sum(savings.values()) / len(savings)
        terms = ", ".join(f"{batch}: -{share:.1f}" for batch, share in savings.items())
        yield Claim("P7", "attention time against the LPU, mean over batches", "-55.0 %",
                    f"-{average:.1f} % ({terms})", SIMULATED, None, average / 55 - 1,
                    "the bits that are saved are 69.9 %; the device has nearly no other work in attention")  # fmt: skip
        work = self.costs.engines(OAKEN_LPDDR, "llama2-7b", 64, CONTEXT)
        channels = OAKEN_LPDDR.npu.dma.channels
        quantize, dequantize = (100 * work[f"{name}_busy"] / (channels * work["cycles"]) for name in
                                ("quantize", "dequantize"))  # fmt: skip
        exposed = [100 * work[f"{name}_exposed"] / (channels * work["cycles"]) for name in ("quantize", "dequantize")]
        yield Claim("P8", "quantization, dequantization of latency, 7B, batch 64", "1.29 %, 3.23 %, hidden",
                    f"busy {quantize:.2f} %, {dequantize:.2f} %; transfers longer by {exposed[0]:.2f} %, "
                    f"{exposed[1]:.2f} % of the channels", CALIBRATED,
                    abs(quantize - 1.29) <= 0.5 and abs(dequantize - 3.23) <= 1, None,
                    "w_q 1 and w_dq 64 of 256 cores, chosen for this figure; bounds 0.5 and 1 points")  # fmt: skip
        shares = {system.name: {batch: self.costs.parts(system, "llama2-7b", batch, CONTEXT) for batch in BATCHES}
                  for system in (LPU_LPDDR, OAKEN_LPDDR)}  # fmt: skip
        terms = "; ".join(
            f"{name} " + ", ".join(f"{100 * row['attention'] / sum(row.values()):.0f}" for row in rows.values())
            for name, rows in shares.items()
        )
        yield Claim("F12b", "share of attention in a step, 7B, batch 16..256, %", "figure 12b, no number", terms,
                    SIMULATED, None)  # fmt: skip

    def _capacity(self) -> Iterator[Claim]:
        model = "llama2-13b"
        alive = {
            length: {system.name for system in SYSTEMS if coexist(system, model, 16, length)} for length in LENGTHS
        }
        met = not any("hbm" in name or "a100" in name for name in alive[16384]) and alive[32768] == {OAKEN_LPDDR.name}
        yield Claim("P9", "longest sequence, 13B, batch 16", "HBM fails at 16K, only Oaken-LPDDR at 32K",
                    "; ".join(f"{length // 1024}K {', '.join(sorted(names))}" for length, names in alive.items()
                              if length >= 8192), SIMULATED, met)  # fmt: skip
        rates = self.by_length()
        order = {length: [rates[system.name][index] for system in (A100_INT4, OAKEN_HBM)]
                 for index, length in enumerate(LENGTHS)}  # fmt: skip
        crossing = next((length for length, (gpu, hbm) in order.items() if hbm > gpu), None)
        met = crossing is not None and 4096 <= crossing <= 16384
        yield Claim("P10", "13B, batch 16: GPUs ahead below 8K, then Oaken-HBM", "crossover near 8K",
                    f"Oaken-HBM over the 4-bit stand-in: {'never' if crossing is None else f'{crossing // 1024}K'} ("
                    + ", ".join(f"{length // 1024}K {gpu:.0f}/{hbm:.0f}" for length, (gpu, hbm) in order.items() if gpu)
                    + ")", SIMULATED, met, None, "the stand-in has the same bandwidth and fewer bits")  # fmt: skip
        small, large = ([self.rate(system, name) for system in (LPU_HBM, LPU_LPDDR)] for name in (model, "opt-30b"))
        yield Claim("P11", "fp16: HBM ahead for 13B, LPDDR for OPT-30B, batch 256", "figure 4",
                    f"13B {small[0]:.0f}/{small[1]:.0f}, OPT-30B {large[0]:.0f}/{large[1]:.0f}", SIMULATED,
                    small[0] > small[1] and large[0] < large[1], None, "direction")  # fmt: skip
        small, large = ([self.rate(system, name, 64) for system in (OAKEN_HBM, OAKEN_LPDDR)]
                        for name in ("llama2-7b", "opt-30b"))  # fmt: skip
        none = [self.rate(OAKEN_HBM, name, 16) for name in ("mixtral-8x7b", "llama2-70b")]
        yield Claim("P12", "Oaken-HBM for small models, LPDDR for large ones, batch 64", "figure 11",
                    f"7B {small[0]:.0f}/{small[1]:.0f}, OPT-30B {large[0]:.0f}/{large[1]:.0f}; Mixtral and 70B do not "
                    "fit HBM", SIMULATED, small[0] > small[1] and large[0] < large[1] and not any(none), None,
                    "direction")  # fmt: skip

    def by_length(self) -> dict[str, list[float]]:
        """Return the throughput of 16 sequences of 13B, half prompt and half answer; 0: they do not fit together."""
        return {
            system.name: [
                self.rate(system, "llama2-13b", 16, (length // 2, length // 2))
                if coexist(system, "llama2-13b", 16, length)
                else 0
                for length in LENGTHS
            ]
            for system in SYSTEMS
        }

    def gains(self) -> dict[str, dict[str, float]]:
        """Return model -> lengths -> gain of Oaken-LPDDR over the A100, on a trace or 128 synthetic requests."""
        models = "llama2-13b", "mixtral-8x7b"
        if self._trace is not None:
            served = {
                name: [self.costs.trace(machine, name, self._trace) for machine in (OAKEN_LPDDR, A100)]
                for name in models
            }
            return {name: {self._trace.name: first / second} for name, (first, second) in served.items()}
        return {
            name: {
                f"{tokens[0]} + {tokens[1]}": self.rate(OAKEN_LPDDR, name, 128, tokens)
                / self.rate(A100, name, 128, tokens)
                for tokens in ((1024, 128), (512, 512), (256, 1024))
            }
            for name in models
        }

    def _others(self) -> Iterator[Claim]:
        shares = [100 * AREA[name] / AREA["core"] for name in ("quantization engine", "dequantization engine")]
        power = 100 * (1 - POWER["oaken"] / POWER["a100"])
        met = [round(share, 2) for share in shares] == [1.86, 6.35] and round(power, 1) == 44.3
        yield Claim("P13", "area of the engines, power against an A100", "1.86 %, 6.35 %; -44.3 %",
                    f"{shares[0]:.2f} %, {shares[1]:.2f} %; -{power:.1f} %", COMPUTED, met, None,
                    "of the constants of table 4")  # fmt: skip
        yield Claim("P14", "accuracy: FP16, KVQuant, KIVI, QServe", "-0.87, -0.54, -0.32, +1.38 points",
                    "needs weights", CITED, None)  # fmt: skip
        yield Claim("P15", "perplexity of Llama2-7B by shares and by number of groups (figure 12a, table 3)",
                    "5.47 -> 5.526 at 4/90/6", "needs weights; errors of synthetic keys and values are below", CITED,
                    None)  # fmt: skip
        gains = self.gains()
        terms = "; ".join(f"{name} " + ", ".join(f"{at}: {gain:.2f} x" for at, gain in row.items())
                         for name, row in gains.items())  # fmt: skip
        ahead = None if self._trace is None else all(gain > 1 for row in gains.values() for gain in row.values())
        yield Claim("P16", "traces, over vLLM", "about 1.3 x (Conversation), 1.8 x (BurstGPT)", terms, SIMULATED, ahead,
                    None, "" if self._trace else "synthetic lengths: no verdict; --trace FILE")  # fmt: skip
        ratios = {name: self.rate(OAKEN_LPDDR, name) / self.rate(LPU_LPDDR, name)
                 for name in ("llama2-7b", "llama2-13b", "mistral-7b", "mixtral-8x7b")}  # fmt: skip
        mha, gqa = [ratios["llama2-7b"], ratios["llama2-13b"]], [ratios["mistral-7b"], ratios["mixtral-8x7b"]]
        yield Claim("P17", "grouped heads shrink the gain over the LPU, batch 256", "figure 11",
                    ", ".join(f"{name} {gain:.2f} x" for name, gain in ratios.items()), SIMULATED, max(gqa) < min(mha),
                    None, "direction")  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Return the data of the charts."""
        return {
            "figure4": {
                name: {system.name: [self.rate(system, name, batch) for batch in SHOWN]
                       for system in (LPU_HBM, LPU_LPDDR)}
                for name in ("llama2-13b", "opt-30b")
            },
            "figure11": {
                name: {system.name: [self.rate(system, name, batch) for batch in SHOWN] for system in SYSTEMS}
                for name in SIX
            },
            "figure12a": [row._asdict() for row in ratio_sweep([layer()], RATIO_SWEEP)],
            "figure12b": {
                str(batch): {system.name: self.costs.parts(system, "llama2-7b", batch, CONTEXT)
                             for system in (OAKEN_LPDDR, LPU_LPDDR)}
                for batch in BATCHES
            },
            "figure13": self.by_length(), "figure14": self.gains(),
        }  # fmt: skip


def _sizes() -> Iterator[Claim]:
    widths = {"7B": 4096, "13B": 5120, "70B": 1024}
    bits = {name: element_bits(width) for name, width in widths.items()}
    counted = {name: counted_bits(width) for name, width in widths.items()}
    paper = {"7B": 4.82, "13B": 4.82, "70B": 4.89}
    is_near = all(abs(sizes[name] - paper[name]) <= 0.01 for sizes in (bits, counted) for name in paper)
    shown = "/".join(f"{bit:.3f}" for bit in bits.values())
    text = f"{shown}; counted by the codec {'/'.join(f'{count:.3f}' for count in counted.values())}"
    yield Claim("P1", "bits of an element, Llama2 7B/13B/70B", "4.82/4.82/4.89", text, COMPUTED, is_near)
    saving = 1 - element_bits(4096) / 16
    slide = (0.9 * 4 + 0.1 * 23, 0.9 * 4 + 0.1 * 12, 0.9 * 4 + 0.1 * 8)
    text = f"16 + 6 + 1 = 23 -> 6 + 1 + 1 = 8; -{100 * saving:.1f} %; {'/'.join(f'{slope:.1f}' for slope in slide)}"
    met = [round(slope, 1) for slope in slide] == [5.9, 4.8, 4.4] and round(100 * saving, 1) == 69.9
    yield Claim("P2", "bits of an outlier, of all; of the slides", "23 -> 8; -69.9 %; 5.9/4.8/4.4", text, COMPUTED, met)
    shape = shape_of("llama2-13b")
    kv = shape.kv_bytes(2048, 256)
    share = 100 * kv / (kv + shape.weight_bytes())
    yield Claim("P3", "KV's share of memory, 13B, batch 256, 2K", "94 %", f"{share:.1f} %", COMPUTED,
                round(share) == 94)  # fmt: skip


def figures(full: bool = False, trace: Path | None = None,
            report: Callable[[str], None] = lambda text: None) -> dict[str, Any]:  # fmt: skip
    """Return all figures, the JSON object. `full`: simulate all step costs again; `report` receives their names."""
    costs = StepCosts.renew(report) if full else StepCosts.read()
    study = Study(costs, trace)
    claims, pictures = list(study.claims()), study.figures()
    if full:
        costs.finish()
    samples = [] if full else list(costs.samples())
    error = max((abs(now - interpolation) / now for _, interpolation, now in samples), default=0.0)
    return {
        "schema": 2, "reproduction": "oaken", "source": SOURCE, "exact": error <= TOLERANCE,
        "claims": [{**claim._asdict(), "verdict": claim.verdict} for claim in claims],
        "step_costs": {"simulated": costs.simulated, "samples": len(samples), "error": error},
        "constants": {"area_mm2": AREA, "area_percent": AREA_SHARES, "power_watts": POWER},
        "synthetic_errors": [row._asdict() for row in errors()],
        "ablations": [row._asdict() for row in ablations([layer()], HEAD_DIM)],
        "groups": [row._asdict() for row in group_counts([layer()])], **pictures,
    }  # fmt: skip
