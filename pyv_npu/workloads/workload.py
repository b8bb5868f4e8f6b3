"""Interface of all workloads: a workload is prepared for a configuration, runs at its level, and returns a `Result`."""

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
"""Defaults of workloads whose firmware only submits: ENQCMD_T waits for a free slot instead of retrying."""

D = TypeVar("D", bound=Detail, covariant=True)


ProgressDisplay = Callable[[Callable[[], str]], None]
"""Callback that displays progress; its argument is a function that returns the current text."""


def hidden(state: Callable[[], str]) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Session:
    """Control and observation of a run."""

    console: Callable[[bytes], None] | None = None
    """Callback for the UART's bytes."""
    drive: "Callable[[Platform], Stop] | None" = None
    """Function that runs the loaded platform, for example from a snapshot or under a debugger; None: `Platform.run`."""
    faults: "Sequence[Fault] | None" = None
    """Faults to inject; with an empty list the run still records what a comparison with faults needs."""
    keep: bool = False
    """Whether a run without a core keeps its events, which a report needs."""
    progress: ProgressDisplay = hidden


PLAIN = Session()
"""Session without observers."""


class PreparedWorkload(ABC, Generic[D]):
    """Loaded or compiled workload, for any number of runs."""

    @abstractmethod
    def run(self, config: Config, session: Session = PLAIN) -> Result[D]:
        """Run at `config.run.sim_level`, on the core in the mode of `config`."""

    def program(self) -> Program:
        """Return the program of the core. UsageError for a workload without firmware."""
        raise UsageError("no firmware: this workload runs without a core")


class Workload(ABC, Generic[D]):
    """Firmware, model, decoder that generates, built-in model, or command list."""

    defaults: ClassVar[Mapping[str, object]] = {}
    """Configuration key -> default value in this workload."""
    needs: ClassVar[str] = "default of models: their firmware only submits"
    """Origin of these defaults, shown with a configuration."""

    @property
    def files(self) -> "tuple[Path, ...]":
        """Input files besides the program."""
        return ()

    def uses_core(self, config: Config) -> bool:
        """Check whether firmware submits the commands, at the level of `config`."""
        return False

    def sees_core(self, config: Config) -> bool:
        """Check whether figures depend on the core: firmware runs on it, or kernels of a model are timed on it."""
        return self.uses_core(config)

    def sees(self, config: Config) -> Hashable:
        """Return the part of the configuration that `prepare` reads: equal parts lead to equal preparations."""
        return repr(config.npu)

    def group(self, config: Config) -> Hashable:
        """Return the key of equal preparations: runs of a group share a preparation."""
        return repr(self), self.sees(config)

    def run_prepared(self, prepared: PreparedWorkload[D], config: Config) -> Result[D]:
        """Run the preparation of a workload of the same group."""
        return prepared.run(config)

    def check(self, config: Config) -> None:
        """Raise UsageError or BadInputError, before any file is read, if the workload cannot run with `config`."""
        return

    @abstractmethod
    def prepare(self, config: Config) -> PreparedWorkload[D]:
        """Load or compile the workload for the device of `config`. UsageError, BadInputError, ModelError: one line."""

    def run(self, config: Config, session: Session = PLAIN) -> Result[D]:
        """Prepare the workload and run it once."""
        return self.prepare(config).run(config, session)


class Interrupted(KeyboardInterrupt):
    """Error raised when Ctrl-C stops the first run of a comparison, which then has no second run."""

    def __init__(self, loose: Result[Any]) -> None:
        super().__init__()
        self.loose = loose


def compare(
    prepared: PreparedWorkload[D], config: Config, session: Callable[[str], Session] = lambda mode: PLAIN
) -> Comparison:
    """Run a workload loose and tight, with `config` otherwise unchanged. `session(mode)` returns the session of a mode.

    Interrupted when Ctrl-C stopped the first run.
    """
    loose = prepared.run(with_values(config, {"npu.mode": "loose"}), session("loose"))
    if loose.stop.reason is StopReason.INTERRUPTED:
        raise Interrupted(loose)
    return Comparison(loose, prepared.run(with_values(config, {"npu.mode": "tight"}), session("tight")))
