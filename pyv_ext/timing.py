"""Cycle costs on the core's side of the bus (docs/latency.md, "Timing presets").

An instance is the core's part of a preset; the table of presets is in `pyv_npu`.
"""

from dataclasses import dataclass, field

LONGEST = 1 << 32
"""Maximum cycles of a single cost: sums over a run stay far below 2^63."""
DEEPEST = 1 << 8
"""Maximum posted stores in flight; real store buffers hold some tens."""


def _cycles(meaning: str, default: int, minimum: int = 1, maximum: int = LONGEST, unit: str = "cycles") -> int:
    """Return a field, of cycles by default: at least 1 for an instruction, so that time advances in every loop; 0 for a
    delay."""
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "min": minimum, "max": maximum})


@dataclass(frozen=True)
class CoreTiming:
    """Costs in core cycles. The defaults are the cycle contract of preset `pyv` (docs/core-timing.md)."""

    alu: int = _cycles("register and immediate arithmetic, lui, auipc", 1)
    mul: int = _cycles("mul, mulh, mulhsu, mulhu, clmul, clmulh, clmulr", 1)
    div: int = _cycles("div, divu, rem, remu", 1)
    fp_add: int = _cycles("fadd, fsub, fmin, fmax, feq, flt, fle, single and double", 1)
    fp_mul: int = _cycles("fmul", 1)
    fp_div: int = _cycles("fdiv, fsqrt", 1)
    fp_fma: int = _cycles("fmadd, fmsub, fnmadd, fnmsub", 1)
    fp_convert: int = _cycles("fcvt, between integers, single and double", 1)
    fp_move: int = _cycles("fsgnj, fsgnjn, fsgnjx, fmv, fclass", 1)
    load: int = _cycles("load from RAM", 1)
    store: int = _cycles("store to RAM", 1)
    branch: int = _cycles("conditional branch, not taken", 1)
    taken: int = _cycles("conditional branch, taken", 1)
    jump: int = _cycles("jal, jalr, mret", 1)
    csr: int = _cycles("CSR instructions", 1)
    fence: int = _cycles("fence, fence.i", 1)
    trap: int = _cycles("a synchronous trap, from the start of the trapping instruction to the first of the handler", 1)
    wfi: int = _cycles("wfi, once an interrupt is pending", 1)
    reset: int = _cycles("from reset to the first instruction", 1, minimum=0)
    near_extra: int = _cycles("added to load/store for devices close to the core: CLINT and scratchpad", 0, minimum=0)
    mmio_write: int = _cycles("posted MMIO write: core busy", 1)
    mmio_one_way: int = _cycles("MMIO request, one way", 0, minimum=0)
    mmio_read: int = _cycles("MMIO read, round trip", 1)
    posted_depth: int = _cycles("posted stores in flight before the core stalls", 8, maximum=DEEPEST, unit="stores")
    custom: int = _cycles("custom instruction: issue, until the device sees the request", 1)
    custom_response: int = _cycles("custom instruction: from the answer to the next instruction", 0, minimum=0)
    irq: int = _cycles("from mip to the first instruction of the handler", 1)
    irq_fast: int = _cycles("the same through a fast interrupt path, where the core has one", 1)
    plic: int = _cycles("from an interrupt line through the PLIC to mip", 0, minimum=0)
