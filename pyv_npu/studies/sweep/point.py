"""Point of a sweep: its run, the hash of everything that determines the run, and its record."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import npu_device
import pyv_ext
import pyv_native
import toolchain as toolchain  # in a wheel it has another name: setup.py
from npu_device.abi.errors import NpuDeviceError
from pyv_ext.engines.core import StopReason
from pyv_ext.errors import PyvExtError
from pyv_npu.boot import files_beside
from pyv_npu.config import Config
from pyv_npu.config.schema import flatten
from pyv_npu.errors import PyvNpuError
from pyv_npu.plugins import fault_of
from pyv_npu.report.run_folder import fingerprints
from pyv_npu.result import Result
from pyv_npu.studies.sweep.figures import derived_figures
from pyv_npu.versions import versions
from pyv_npu.workloads.workload import PreparedWorkload, Workload
from toolchain.errors import ToolchainError

SCHEMA = 1
"""Version of the record format."""
REFUSED = (PyvNpuError, PyvExtError, NpuDeviceError, ToolchainError, OSError)
"""Errors in the inputs of a point: they become the reason in its row, and the sweep continues."""
DROPPED = ("host", "uart")
"""Keys of a result that a record omits: `host` varies between equal runs, `uart` may be long."""

Record = Mapping[str, Any]
"""`schema`, and `result` (the JSON object of the run) with `derived`, or `error`."""


@dataclass(frozen=True)
class Job:
    """Run of a sweep."""

    address: str
    """Hash of everything that determines the figures."""
    workload: Workload[Any]
    config: Config

    @property
    def group(self) -> Hashable:
        """Key of jobs that share one preparation (a compiled model; simulated products of `serve`) if a worker runs
        them consecutively."""
        return self.workload.group(self.config)


class JobRunner:
    """Sequential runner of jobs, with the preparation of the last job as a cache."""

    def __init__(self) -> None:
        self._group: Hashable = None
        self._prepared: PreparedWorkload[Any] | None = None

    def run(self, job: Job) -> Record:
        """Return the record of a job. KeyboardInterrupt on Ctrl-C."""
        try:
            job.workload.check(job.config)
            if self._prepared is None or self._group != job.group:
                self._group, self._prepared = None, None
                self._prepared, self._group = job.workload.prepare(job.config), job.group
            return record_of(job.workload.run_prepared(self._prepared, job.config))
        except REFUSED as error:
            return failure_record(reason(error))
        except Exception as error:
            fault = fault_of(error)
            if fault is None:
                raise
            return failure_record(reason(fault))


def record_of(run: Result[Any]) -> Record:
    """Return the record of a run. KeyboardInterrupt for an interrupted run."""
    if run.stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    result = {name: value for name, value in run.json.items() if name not in DROPPED}
    return {"schema": SCHEMA, "result": result, "derived": derived_figures(run)}


def failure_record(text: str) -> Record:
    """Return the record of a job without a result."""
    return {"schema": SCHEMA, "error": text}


def reason(error: Exception) -> str:
    """Return an error as a single line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return "; ".join(str(error).splitlines()) or type(error).__name__


class Addresses:
    """Addresses of jobs; files are read once."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, ...], Mapping[str, str]] = {}
        self._versions = versions()

    def of(self, workload: Workload[Any], config: Config) -> str:
        """Return the SHA-256 over versions, the code of this package, the configuration, the workload and the files it
        reads."""
        program = config.run.program
        names = (*map(str, workload.files), *config.files)
        if (program, *names) not in self._files:
            self._files[program, *names] = fingerprints([program, *files_beside(program), *names])
        decides = {
            "schema": SCHEMA,
            "versions": self._versions,
            "code": code(),
            "config": _decisive(config, workload.uses_core(config), workload.sees_core(config)),
            "workload": [type(workload).__name__, {name: repr(value) for name, value in vars(workload).items()}],
            "files": self._files[program, *names],
        }
        return sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


OF_THE_CORE = ("core.", "clint.", "platform.", "driver.", "load.", "npu.mode", "npu.queue.", "npu.frontend.",
               "run.args", "run.max_cycles", "run.timeout")  # fmt: skip
"""Keys without effect on a run without a core: points that differ only in these are one run."""


def _decisive(config: Config, core: bool, kernels: bool) -> Mapping[str, object]:
    """Return the keys on which a run depends. `core`: firmware runs; `kernels`: kernels of a model are timed on the
    core."""
    excluded_keys = () if core else tuple(key for key in OF_THE_CORE if not (kernels and key == "core."))
    return {name: _plain(value) for name, value in flatten(config).items() if not name.startswith(excluded_keys)}


def _plain(value: object) -> object:
    """Convert a value of the configuration to JSON types."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


@cache
def code() -> str:
    """Return the SHA-256 of the product's modules, so that points are run again when a module has changed."""
    digest = sha256()
    for package in (npu_device, pyv_ext, pyv_native, toolchain):
        assert package.__file__ is not None
        for path in _modules(Path(package.__file__).parent):
            digest.update(path.name.encode() + path.read_bytes())
    for path in _modules(Path(__file__).parents[2]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _modules(folder: Path) -> Sequence[Path]:
    return sorted(folder.rglob("*.py"))


BATCH = 8
"""Maximum number of jobs in a batch, which is the number lost when a worker dies."""
BATCHES_A_WORKER = 4
"""Minimum number of batches per worker, so that workers finish at about the same time."""


def batches(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Split jobs into batches of at most `size`, each of one group and so compiled once; batches of a group are
    adjacent."""
    groups: dict[Hashable, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]


def batches_for(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Split jobs into batches for a number of workers."""
    return batches(jobs, max(1, min(BATCH, len(jobs) // (BATCHES_A_WORKER * workers))))


def run_serially(jobs: Sequence[Job], done: Callable[[Job, Record], None]) -> None:
    """Run every job in this process, in order."""
    runner = JobRunner()
    for batch in batches(jobs, max(len(jobs), 1)):
        for job in batch:
            done(job, runner.run(job))
