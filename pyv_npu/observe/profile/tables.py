"""Output formats of a profile: text, CSV by source line, folded stacks and speedscope.

Folded stacks have one line per stack, "frame;frame cycles", for flame graph tools (Brendan Gregg, FlameGraph).
Speedscope files follow https://www.speedscope.app/file-format-schema.json. Both have a frame for each function of the
stack, including inlined ones, and a last frame with the activity in brackets unless it is `executing`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pyv_ext.elf import Program
from pyv_ext.source_lines import SourceLine
from pyv_npu.csv_table import csv_text
from pyv_npu.observe.profile.profile import Activity, Profile
from pyv_npu.observe.profile.stacks import INTERRUPT, TRAP
from pyv_npu.sections import Note, Section, Table, Value, as_text
from pyv_npu.text import MISSING

UNKNOWN = "[unknown]"
"""Name of code outside all functions."""
SHOWN_LINES = 20
"""Number of source lines in the text; profile.csv has all."""
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_SHORT = {Activity.EXECUTING: "executing", Activity.MMIO: "MMIO", Activity.CUSTOM: "custom",
          Activity.POLLING: "polling", Activity.QUEUE: "queue wait", Activity.HANDLER: "handler",
          Activity.WFI: "wfi"}  # fmt: skip


class Share(NamedTuple):
    """Self time of a function or source line."""

    function: str
    line: SourceLine | None
    """Source line; of a function, that of its instruction with the most cycles (ties: the lowest address)."""
    instructions: int
    cycles: int
    by_activity: Mapping[Activity, int]


class ProgramProfile:
    """Profile of a finished run of a program."""

    def __init__(self, profile: Profile, program: Program) -> None:
        self.profile = profile
        self.program = program

    @cached_property
    def _names(self) -> Mapping[int, str]:
        """Address -> name of the function."""
        names = {}
        for pc in {charge.pc for charge in self.profile.cycles}:
            function = self.program.function_at(pc)
            names[pc] = UNKNOWN if function is None else function.name
        return names

    def functions(self) -> list[Share]:
        """Return the shares by function, by descending cycles, then by name."""
        cycles: Counter[int] = Counter()
        for charge, count in self.profile.cycles.items():
            cycles[charge.pc] += count
        hottest: dict[str, int] = {}
        for pc in sorted(cycles):
            name = self._names[pc]
            if name not in hottest or cycles[pc] > cycles[hottest[name]]:
                hottest[name] = pc
        keys = {pc: (name, self.program.line_of(hottest[name])) for pc, name in self._names.items()}
        return self._shares(keys)

    def lines(self) -> list[Share]:
        """Return the shares by source line and function, by descending cycles."""
        return self._shares({pc: (name, self.program.line_of(pc)) for pc, name in self._names.items()})

    def _shares(self, keys: Mapping[int, tuple[str, SourceLine | None]]) -> list[Share]:
        cycles_by_line: defaultdict[tuple[str, SourceLine | None], Counter[Activity]] = defaultdict(Counter)
        for charge, count in self.profile.cycles.items():
            cycles_by_line[keys[charge.pc]][charge.activity] += count
        retired: Counter[tuple[str, SourceLine | None]] = Counter()
        for pc, count in self.profile.instructions.items():
            retired[keys[pc]] += count
        shares = [Share(*key, retired[key], cycles.total(), cycles) for key, cycles in cycles_by_line.items()]
        return sorted(shares, key=lambda share: (-share.cycles, share.function, share.line or SourceLine("", 0)))

    # -- text and tables ---------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the self time by function, the hottest source lines, and the retired instructions by mnemonic."""
        profile = self.profile
        cycles, instructions = profile.cycles.total(), profile.instructions.total()
        totals: Counter[Activity] = Counter()
        for charge, count in profile.cycles.items():
            totals[charge.activity] += count
        activities = [activity for activity in Activity if totals[activity]]
        head = f"profile: {cycles:,} cycles, {instructions:,} instructions"
        head += f", {profile.traps:,} traps, {profile.interrupts:,} interrupts"
        parts = ", ".join(f"{_SHORT[activity]} {totals[activity]:,} ({totals[activity] / max(cycles, 1):.1%})"
                          for activity in activities)  # fmt: skip
        heads = ("cycles", "share", *(_SHORT[activity] for activity in activities), "instructions")

        def row(first: str, share: Share, last: str) -> list[Value]:
            spent = [share.by_activity.get(activity, 0) for activity in activities]
            return [first, share.cycles, share.cycles / max(cycles, 1), *spent, share.instructions, last]

        functions = [row(share.function, share, _short(share.line)) for share in self.functions()]
        lines = [row(_short(share.line), share, share.function) for share in self.lines()]
        more = [Note(f"and {len(lines) - SHOWN_LINES:,} more lines")] if len(lines) > SHOWN_LINES else []
        ranked = sorted(profile.mnemonics.items(), key=lambda item: (-item[1], item[0]))
        counts = ", ".join(f"{name} {count:,}" for name, count in ranked)
        units = ("", "", "share")
        sections = [
            Section("activities", head, [Note(parts)]),
            Section("functions", "", [Table(("function", *heads, "hottest line"), functions, units)]),
            Section("lines", "", [Table(("source line", *heads, "function"), lines[:SHOWN_LINES], units), *more]),
            Section("instructions", "", [Note(f"retired: {counts}")]),
        ]
        return as_text(sections, len(functions) + SHOWN_LINES)

    def csv(self) -> str:
        """Return a row for each source line and function."""
        heads = ("function", "file", "line", "instructions", "cycles", *(activity.value for activity in Activity))
        rows = list[tuple[object, ...]]()
        for share in self.lines():
            file, line = ("", "") if share.line is None else share.line
            counts = [share.by_activity.get(activity, 0) for activity in Activity]
            rows.append((share.function, file, line, share.instructions, share.cycles, *counts))
        return csv_text(heads, rows)

    # -- stacks ------------------------------------------------------------------------------------------------

    def stacks(self) -> dict[tuple[str, ...], int]:
        """Return cycles by stack (frames, outermost first, and activity), in alphabetical order."""
        stacks = self.profile.stacks

        @cache
        def frames(address: int) -> tuple[str, ...]:
            function = self.program.function_at(address)
            name = UNKNOWN if function is None else function.name
            return (name, *self.program.inlined.at(address))

        @cache
        def callers(stack: int) -> tuple[str, ...]:
            first = ["[interrupt]"] if stacks.root(stack) == INTERRUPT else []
            for site in stacks.sites(stack):
                first += ["[trap]"] if site == TRAP else frames(site)
            return tuple(first)

        totals: Counter[tuple[str, ...]] = Counter()
        for (stack, pc, activity), count in self.profile.cycles.items():
            last = () if activity is Activity.EXECUTING else (f"[{_SHORT[activity]}]",)
            totals[(*callers(stack), *frames(pc), *last)] += count
        return dict(sorted(totals.items()))

    def folded(self) -> str:
        """Return the folded stacks."""
        return "".join(f"{';'.join(map(_frame, stack))} {count}\n" for stack, count in self.stacks().items() if count)

    def speedscope(self, name: str) -> str:
        """Return a speedscope file with two profiles in cycles: call stacks and source lines."""
        frames: dict[tuple[str, str, int], int] = {}

        def number(name: str, file: str = "", line: int = 0) -> int:
            return frames.setdefault((name, file, line), len(frames))

        stacks = [([number(frame) for frame in stack], count) for stack, count in self.stacks().items() if count]
        lines = [
            ([number(share.function), *([number(str(share.line), *share.line)] if share.line else [])], share.cycles)
            for share in self.lines()
            if share.cycles
        ]
        document = {
            "$schema": SCHEMA,
            "name": name,
            "exporter": "PyV-NPU",
            "activeProfileIndex": 0,
            "profiles": [_sample_profile("call stacks", stacks), _sample_profile("source lines", lines)],
            "shared": {"frames": [{"name": name} | ({"file": file, "line": line} if file else {})
                                  for name, file, line in frames]},
        }  # fmt: skip
        return json.dumps(document, indent=1) + "\n"


def _sample_profile(name: str, stacks: Sequence[tuple[list[int], int]]) -> dict[str, Any]:
    return {
        "type": "sampled", "name": f"{name} (cycles)", "unit": "none", "startValue": 0,
        "endValue": sum(count for _, count in stacks), "samples": [stack for stack, _ in stacks],
        "weights": [count for _, count in stacks],
    }  # fmt: skip


def _frame(name: str) -> str:
    """Return a name without semicolons and newlines, which separate frames and stacks."""
    return name.replace(";", ":").replace("\n", " ")


def _short(line: SourceLine | None) -> str:
    """Return file name and line number."""
    return MISSING if line is None else f"{PurePosixPath(line.file).name}:{line.line}"
