"""The road of all work: a workload is prepared for a configuration, runs at its level, and gives a `Result`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.config import Config, with_values
from pyv_npu.errors import UsageError
from pyv_npu.result import Comparison, Detail, Result

if TYPE_CHECKING:
    from pathlib import Path

    from pyv_npu.faults.plan import Fault
    from pyv_npu.platform import Platform

SUBMITTING: Mapping[str, object] = {"npu.queue.full_policy": "stall"}
"""Defaults of work whose firmware does nothing but submit: ENQCMD_T waits for a free slot instead of trying again."""

D = TypeVar("D", bound=Detail, covariant=True)


ProgressDisplay = Callable[[Callable[[], str]], None]
"""Shows how far a run is, by a function that returns it."""


def hidden(state: Callable[[], str]) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Session:
    """Control and observation of a run."""

    console: Callable[[bytes], None] | None = None
    """Is given the UART's bytes as they come."""
    drive: "Callable[[Platform], Stop] | None" = None
    """Takes the loaded platform to its end: from a snapshot, or under a debugger; None: by itself."""
    faults: "Sequence[Fault] | None" = None
    """Faults to be injected. Not None, if only an empty list: the run records what faults would lead to."""
    keep: bool = False
    """Whether a run without a core keeps its events, as a report needs them."""
    progress: ProgressDisplay = hidden


PLAIN = Session()
"""Session to the end, without an observer."""


class PreparedWorkload(ABC, Generic[D]):
    """A workload that is loaded or compiled, for any number of runs."""

    @abstractmethod
    def run(self, config: Config, session: Session = PLAIN) -> Result[D]:
        """Run at `config.run.sim_level`, on the core in the mode of `config`."""

    def program(self) -> Program:
        """Return the program of the core. UsageError for work without firmware."""
        raise UsageError("no firmware: this workload runs without a core")


class Workload(ABC, Generic[D]):
    """Firmware, a model, a decoder that generates, a built-in model, or a command list."""

    defaults: ClassVar[Mapping[str, object]] = {}
    """Keys of the configuration that have these values unless they are set."""
    needs: ClassVar[str] = "default of models: their firmware only submits"
    """Why: the origin of those keys."""

    @property
    def files(self) -> "tuple[Path, ...]":
        """Input files besides the program."""
        return ()

    def uses_core(self, config: Config) -> bool:
        """Check whether firmware submits the work, at the level of `config`."""
        return False

    def sees_core(self, config: Config) -> bool:
        """Check whether the core decides figures: firmware runs on it, or kernels of a model are timed on it."""
        return self.uses_core(config)

    def sees(self, config: Config) -> Hashable:
        """Return the part of the configuration that `prepare` reads: equal parts have equal preparations."""
        return repr(config.npu)

    def group(self, config: Config) -> Hashable:
        """Return the key of preparations that are equal: runs of a group share one."""
        return repr(self), self.sees(config)

    def run_prepared(self, prepared: PreparedWorkload[D], config: Config) -> Result[D]:
        """Run what a workload of the same group has prepared."""
        return prepared.run(config)

    def check(self, config: Config) -> None:
        """Raise UsageError or BadInputError for what cannot run at the level of `config`, before anything is read."""
        return

    @abstractmethod
    def prepare(self, config: Config) -> PreparedWorkload[D]:
        """Load or compile it for the device of `config`. UsageError, BadInputError, ModelError: one line."""

    def run(self, config: Config, session: Session = PLAIN) -> Result[D]:
        """Prepare it, and run it once."""
        return self.prepare(config).run(config, session)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C stopped the first run of a comparison: there is nothing to compare it with."""

    def __init__(self, loose: Result[Any]) -> None:
        super().__init__()
        self.loose = loose


def compare(
    prepared: PreparedWorkload[D], config: Config, session: Callable[[str], Session] = lambda mode: PLAIN
) -> Comparison:
    """Run something loose and tight; everything else of `config` stays. `session` is asked for that of each mode.

    Interrupted when Ctrl-C stopped the first run.
    """
    loose = prepared.run(with_values(config, {"npu.mode": "loose"}), session("loose"))
    if loose.stop.reason is StopReason.INTERRUPTED:
        raise Interrupted(loose)
    return Comparison(loose, prepared.run(with_values(config, {"npu.mode": "tight"}), session("tight")))
