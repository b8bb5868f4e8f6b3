"""Runs of a campaign on one machine: a golden run, and from its snapshots any number with one fault each.

A run with a fault resumes from the last snapshot before the fault. It ends once its state equals that of a later
snapshot: from there it would repeat the golden run, cycle by cycle.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.errors import UsageError
from pyv_npu.faults.injection import Injection
from pyv_npu.faults.plan import Fault, Point
from pyv_npu.faults.record import record_of
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot
from pyv_npu.studies.fault_outcomes import Evidence, longest, program_lines

FAULT_SNAPSHOTS, PERIODIC_SNAPSHOTS = 100, 20
"""Maximum number of snapshots taken just before faults, and at even distances over the run."""


_Ranges = list[tuple[int, int]]
_ExternalEvidence = tuple[frozenset[int], tuple[_Ranges, _Ranges]]


class _SavePoint(NamedTuple):
    """Snapshot of the golden run, at which other runs begin or end."""

    snapshot: Snapshot
    in_spm: Mapping[tuple[int, int], None]
    external_evidence: _ExternalEvidence
    """Evidence that is not part of the machine's state."""


class FaultedRuns:
    """Platform with a loaded program, its golden run, and runs with faults."""

    def __init__(self, platform: Platform) -> None:
        """Run the golden run. The events of the platform are not stored from then on. UsageError if the program does
        not terminate without faults."""
        assert platform.program is not None and platform.injection is not None and platform.latency is not None
        self._platform = platform
        self._program = platform.program
        self._injection: Injection = platform.injection
        self._probe = platform.latency
        self.points: dict[Point, list[int]] = {}
        """Point -> cycles of the golden run in which it occurs."""
        platform.events.rewind(platform.events.mark()._replace(log=None))  # no verdict reads the events
        self._save_points = [self._save()]
        self._injection.arm((), self.points)
        stop = self._run_until()
        if stop.reason is not StopReason.EXIT:
            raise UsageError(f"no campaign: without faults the program stops with {stop.reason.value}, {stop.text}")
        self.reference = self._evidence(stop)
        """Evidence of the golden run."""
        self.pages = _pages(self._save().snapshot)
        """Addresses of the pages that are not zero at the end of the golden run."""

    def prepare(self, faults: Sequence[Fault]) -> None:
        """Take the snapshots from which runs with these faults resume."""
        cycles = sorted(max(_start(fault), 0) for fault in faults)
        stride, total = -(-len(cycles) // FAULT_SNAPSHOTS), self.reference.cycles
        periodic_count = min(PERIODIC_SNAPSHOTS, len(cycles))
        self._restore(self._save_points[0])
        del self._save_points[1:]
        periodic = (number * total // periodic_count for number in range(1, periodic_count))
        for cycle in sorted({*cycles[::stride], *periodic}):
            if cycle > self._save_points[-1].snapshot.cycle and self._run_until(cycle).reason is StopReason.LIMIT:
                self._save_points.append(self._save())

    def run(self, fault: Fault) -> Evidence:
        """Return the evidence of a run with this fault."""
        begin = max(bisect_right(self._save_points, _start(fault), key=attrgetter("snapshot.cycle")) - 1, 0)
        self._restore(self._save_points[begin])
        self._injection.arm((fault,))
        step, (armed_fault,) = 1, self._injection.armed
        while (begin := begin + step) < len(self._save_points):
            stop = self._run_until(self._save_points[begin].snapshot.cycle)
            if stop.reason is not StopReason.LIMIT:
                return self._evidence(stop)
            if self._injection.is_finished and self._is_at(self._save_points[begin]):
                return self._evidence_of_reference()
            if armed_fault.fired:
                step *= 2
        return self._evidence(self._run_until(longest(self.reference.cycles)))

    def finish_golden_run(self) -> Stop:
        """Restore the last snapshot and run to the end without faults."""
        self._restore(self._save_points[-1])
        return self._run_until()

    def _run_until(self, cycle: int | None = None) -> Stop:
        """Run to this cycle, or to the end."""
        stop = self._platform.run(until=cycle)
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        return stop

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _save(self) -> _SavePoint:
        platform = self._platform
        previous = self._save_points[-1].snapshot if hasattr(self, "_save_points") else None
        in_spm = dict(platform.outputs.in_spm or {})
        return _SavePoint(platform.save(previous), in_spm, self._external_evidence())

    def _external_evidence(self) -> _ExternalEvidence:
        """Return the lines of status words, and the ranges of outputs in DRAM and scratchpads."""
        return self._probe.status_lines, self._platform.outputs.covered()

    def _restore(self, save_point: _SavePoint) -> None:
        self._injection.arm(())
        self._platform.restore(save_point.snapshot)
        self._platform.outputs.in_spm = dict(save_point.in_spm)

    def _is_at(self, save_point: _SavePoint) -> bool:
        """Check whether the rest of the run equals that of the golden run."""
        return self._platform.is_at(save_point.snapshot) and self._external_evidence() == save_point.external_evidence

    # -- evidence ----------------------------------------------------------------------------------------------

    def _evidence(self, stop: Stop) -> Evidence:
        platform = self._platform
        platform.deliver()
        record = record_of(platform, self._injection, self._program)
        text = program_lines(platform.console.text, self._program)
        return Evidence(stop, platform.cycle, text, len(platform.npu.error_log), record)

    def _evidence_of_reference(self) -> Evidence:
        """Return the evidence of the golden run, with the injected faults of this run."""
        present = record_of(self._platform, self._injection, self._program)
        record = self.reference.record._replace(injected=present.injected, retried=present.retried)
        return self.reference._replace(record=record)


def _start(fault: Fault) -> int:
    """Return a cycle before the fault can act."""
    assert fault.at is not None
    return fault.at.value - 1 if fault.at.kind == "cycle" else 0


def _pages(snapshot: Snapshot) -> list[int]:
    """Return the addresses of the pages of DRAM and scratchpad that are not zero."""
    bases = {"DRAM": DRAM_BASE} | {f"SPM{index}": SPM_BASE + index * SPM_CLUSTER_STRIDE for index in range(4)}
    return [bases[name] + number * PAGE for name, pages in snapshot.memory.items() for number in sorted(pages)]
