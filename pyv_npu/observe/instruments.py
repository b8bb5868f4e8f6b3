"""What can be learnt of a run besides its results: a commit log, a profile and its text, the signature of a test."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pyv_ext.elf import Program
from pyv_ext.source_lines import Line
from pyv_ext.tracing.commits import CommitLog, signature
from pyv_ext.tracing.profile import STALLS, Profile
from pyv_ext.tracing.tracers import add_tracer, remove_tracer
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform
from pyv_npu.text import MISSING, columns, wrapped

STALL_HEADS = tuple(f"{stall} stall" for stall in STALLS)
HEADS = ("function", "cycles", "share", "executing", *STALL_HEADS, "instructions", "hottest line")


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
            _short(program.line_of(share.hottest)),
        )
        for share in profile.functions(program)
    ]
    head = f"profile: {cycles:,} cycles, {instructions:,} instructions"
    head += f", {profile.traps:,} traps, {profile.interrupts:,} interrupts"
    counts = "retired: " + ", ".join(f"{name} {count:,}" for name, count in _ranked(profile.mnemonics))
    return "\n".join((head, "", columns(HEADS, rows), "", *wrapped(counts))) + "\n"


def _short(line: Line | None) -> str:
    """The line without the folders of its file: the function is in the row."""
    return MISSING if line is None else f"{PurePosixPath(line.file).name}:{line.line}"


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    """Largest first, equal ones by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


@dataclass
class Instruments:
    """Which are wanted; files are None where they are not. None of them changes the run."""

    commits: Path | None = None
    """Spike's commit log."""
    profile: bool = False
    folded: Path | None = None
    """The profile as folded stacks."""
    signature: Path | None = None
    """The words between begin_signature and end_signature, at the end of the run."""
    table: str = field(default="", init=False)
    """The profile as text, after the run."""

    @contextmanager
    def on(self, platform: Platform) -> Iterator[None]:
        """Look at the loaded platform; the files are complete afterwards. PyvExtError where there is no signature."""
        program, engine = platform.program, platform.engine
        if program is None:
            raise UsageError("nothing to look at: load a program first")
        if self.signature is not None:
            signature(program, platform.bus)  # refused before the run rather than after it
        with ExitStack() as ends:
            if self.commits is not None:
                log = ends.enter_context(self.commits.open("w", encoding="ascii"))
                commits = CommitLog(platform.hart, platform.bus, log.write)
                add_tracer(engine, commits)
                ends.callback(remove_tracer, engine, commits)
            if self.profile:
                profile = Profile(platform.timing)
                add_tracer(engine, profile)
                ends.callback(self._profiled, profile, program)
                ends.callback(remove_tracer, engine, profile)
            yield
        if self.signature is not None:
            self.signature.write_text(signature(program, platform.bus), encoding="ascii")

    def _profiled(self, profile: Profile, program: Program) -> None:
        self.table = render_profile(profile, program)
        if self.folded is not None:
            self.folded.write_text(profile.folded(program), encoding="utf-8")
