"""Instruments of a run: commit log, instruction log, profile, and signature of a test."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyv_ext.isa import OpClass
from pyv_ext.tracing.commits import CommitLog, signature
from pyv_ext.tracing.instructions import InstructionLog
from pyv_native.files import write_text
from pyv_npu.errors import UsageError
from pyv_npu.observe.profile.profile import ACCESSES, Profile
from pyv_npu.observe.profile.tables import ProgramProfile
from pyv_npu.platform import Platform

FOLDED, SPEEDSCOPE, LINES = "profile.folded", "profile.speedscope.json", "profile.csv"


@dataclass
class Instruments:
    """Selection of instruments; a file is None if its instrument is off. No instrument changes the run."""

    commits: Path | None = None
    """File of the commit log, in Spike's format."""
    profile: bool = False
    profile_folder: Path | None = None
    """Folder of the profile: folded stacks, a speedscope file, a table by source line."""
    signature: Path | None = None
    """File of the words between begin_signature and end_signature, at the end of the run."""
    instructions: bool = False
    """Whether all instructions are logged."""
    profiled: ProgramProfile | None = field(default=None, init=False)
    """Profile, after the run."""
    log: InstructionLog | None = field(default=None, init=False)
    """Log of all instructions, after the run."""

    @contextmanager
    def on(self, platform: Platform) -> Iterator[None]:
        """Observe the loaded platform within the context, and write the files at its end. PyvExtError when the program
        has no signature."""
        program, engine = platform.program, platform.engine
        if program is None:
            raise UsageError("nothing to look at: load a program first")
        if self.signature is not None:
            signature(program, platform.bus)  # raises before the run rather than after it
        with ExitStack() as ends:
            if self.commits is not None:
                log = ends.enter_context(self.commits.open("w", encoding="ascii"))
                commits = CommitLog(platform.hart, platform.bus, log.write)
                engine.add_tracer(commits)
                ends.callback(engine.remove_tracer, commits)
            if self.instructions:
                self.log = InstructionLog(platform.isa)
                engine.add_tracer(self.log)
                ends.callback(engine.remove_tracer, self.log)
            if self.profile:
                profile = ends.enter_context(profiling(platform))
                self.profiled = ProgramProfile(profile, program)
            yield
        if self.profiled is not None and self.profile_folder is not None:
            for name, text in (
                (FOLDED, self.profiled.folded()),
                (SPEEDSCOPE, self.profiled.speedscope(program.name)),
                (LINES, self.profiled.csv()),
            ):
                write_text(self.profile_folder / name, text)
        if self.signature is not None:
            write_text(self.signature, signature(program, platform.bus))


@contextmanager
def profiling(platform: Platform) -> Iterator[Profile]:
    """Profile the platform within the context; the profile is complete at its end."""
    hart, bus, engine = platform.hart, platform.bus, platform.engine
    profile = Profile(hart, bus, platform.timing, platform.npu, platform.clint, platform.is_status)
    bus.clock.log.subscribe(profile.read, ACCESSES)
    bus.watchers.append(profile.loaded)
    platform.observe_custom(profile.answered)
    engine.add_tracer(profile)
    try:
        yield profile
    finally:
        engine.remove_tracer(profile)
        platform.unobserve_custom(profile.answered)
        bus.watchers.remove(profile.loaded)
        bus.clock.log.unsubscribe(profile.read)
        word = bus.peek(hart.pc, 4)
        instruction = None if word is None else platform.isa.decode(int.from_bytes(word, "little"))
        profile.close(platform.cycle, instruction is not None and instruction.row.op_class is OpClass.WFI)
