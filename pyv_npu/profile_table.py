"""A profile as text for people."""

from collections import Counter

from pyv_ext.elf import Program
from pyv_ext.traces.profile import STALLS, Profile
from pyv_npu.text import columns, wrapped

HEADS = ("function", "cycles", "share", "executing", *(f"{stall} stall" for stall in STALLS), "instructions")


def render_profile(profile: Profile, program: Program) -> str:
    """What each function took itself, then how often each instruction retired."""
    cycles, instructions = profile.cycles.total(), profile.instructions.total()
    rows = [
        (
            share.function,
            f"{share.cycles:,}",
            f"{share.cycles / max(cycles, 1):.1%}",
            f"{share.executing:,}",
            *(f"{share.stalls[stall]:,}" for stall in STALLS),
            f"{share.instructions:,}",
        )
        for share in profile.functions(program)
    ]
    head = f"profile: {cycles:,} cycles, {instructions:,} instructions"
    head += f", {profile.traps:,} traps, {profile.interrupts:,} interrupts"
    counts = "retired: " + ", ".join(f"{name} {count:,}" for name, count in _ranked(profile.mnemonics))
    return "\n".join((head, "", columns(HEADS, rows), "", *wrapped(counts))) + "\n"


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    """Largest first, equal ones by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
