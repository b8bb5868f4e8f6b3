"""Figures of other simulators, with their date (docs/benchmarks.md, "Other simulators")."""

from typing import NamedTuple

from benchmarks.host import CALIBRATION, calibrate

RECORDED = "November 2026"
"""When they were written down. They were measured on a machine with two cores."""


class Peer(NamedTuple):
    """A tool, and the figures of one workload on it."""

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

LLAMA_FINISH = (200_838, 212_609, 347_959, 351_301, 1_274_574, 1_286_841, 1_791_525, 1_794_867)
"""ONNXim C1: cycles at which the stages of prefill 100 are finished, in the order of `workloads.llama_layer`."""


def cpu_scale() -> float:
    """Returns CPU seconds of this host for one of the machine on which the peers were measured."""
    return calibrate() / CALIBRATION


def scaled_peers(scale: float) -> tuple[str, list[Peer]]:
    """Returns a line on the date and the scale, and the peers with their CPU seconds scaled to this host."""
    peers = [peer if peer.cpu_s is None else peer._replace(cpu_s=peer.cpu_s * scale) for peer in PEERS]
    return f"figures of {RECORDED}, CPU seconds scaled by {scale:.2f} to this host", peers
