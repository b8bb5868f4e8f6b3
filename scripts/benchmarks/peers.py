"""Figures of other simulators, with their date (docs/benchmarks.md, "Other simulators")."""

from typing import NamedTuple

from benchmarks.host import CALIBRATION, calibrate

RECORDED = "November 2026"
"""Date of the measurements, taken on a machine with two cores."""


class Peer(NamedTuple):
    """Tool and its figures for one workload."""

    tool: str
    workload: str
    cycles: int | None
    cpu_s: float | None
    memory_mb: int | None


ONNXIM = "ONNXim C1"
C1 = "onnxim-c1"
"""Our configuration of the same device."""
PEERS = (
    Peer(ONNXIM, "GEMM 1024", 67_284, 1.46, 33),
    Peer(ONNXIM, "GEMM 1024, 4 clusters", 25_776, 4.2, 47),
    Peer(ONNXIM, "GEMM 4096", 4_199_224, 95.9, 209),
    Peer(ONNXIM, "ResNet-18", 874_785, 3.88, 76),
    Peer(ONNXIM, "Llama prefill 100", 1_794_867, 107.0, 183),
    Peer(ONNXIM, "Llama prefill 512", 7_309_058, 271.0, 183),
    Peer(ONNXIM, "Llama decode 511", 1_743_447, 92.0, 183),
    Peer("SCALE-Sim v3, 128x128", "GEMM 1024", 81_791, 50.0, 1000),
    Peer("SCALE-Sim v3", "ResNet-18", None, 199.0, 7000),
    Peer("ZigZag 3.9, 32x32 int8", "GEMM 4096", 71_500_000, 3.8, 216),
)

ZIGZAG_TRAFFIC = {
    (1024, 1024, 1024): {1: 12.583, 8: 6.291},
    (384, 3072, 768): {1: 7.668, 8: 7.668},
    (128, 4096, 4096): {1: 38.797, 8: 35.652},
    (512, 11008, 4096): {1: 281.805, 8: 105.644},
    (128, 3072, 768): {1: 5.702, 8: 5.702},
}
"""zigzag-dse 3.9.1, loma, lpf_limit 6, minimum DRAM energy: M, N and K in fp16 -> MiB of scratchpad -> MB of DRAM
traffic. 64 x 32 multipliers, 32-bit sums in 256 KiB, one scratchpad for all operands, no double buffering."""
ZIGZAG_TRAFFIC_CONV = {(64, 64, 56, 3, 1): 0.877, (256, 64, 56, 1, 1): 2.040, (512, 512, 7, 3, 1): 4.819}
"""The same for convolutions, with 1 and 8 MiB: channels, filters, pixels per side, kernel, stride -> MB."""

LLAMA_FINISH = (200_838, 212_609, 347_959, 351_301, 1_274_574, 1_286_841, 1_791_525, 1_794_867)
"""ONNXim C1: finish cycles of the stages of prefill 100, in the order of `workloads.llama_layer`."""


def cpu_scale() -> float:
    """Return CPU seconds of this host per CPU second of the peers' machine."""
    return calibrate() / CALIBRATION


def scaled_peers(scale: float) -> tuple[str, list[Peer]]:
    """Return a line with date and scale, and the peers with CPU seconds scaled to this host."""
    peers = [peer if peer.cpu_s is None else peer._replace(cpu_s=peer.cpu_s * scale) for peer in PEERS]
    return f"figures of {RECORDED}, CPU seconds scaled by {scale:.2f} to this host", peers
