"""Points on workers of Dask distributed, here or elsewhere. It is imported when workers are asked for."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.errors import UsageError
from pyv_npu.studies.sweep.point import Job, Record, Runner, batches, code, failed
from toolchain.errors import require_extra

if TYPE_CHECKING:
    from distributed import Client

BATCH = 8
"""Jobs of a task, at most; a worker that dies costs so many."""
TASKS_A_WORKER = 4
"""At least so many, so that no worker waits long for the last one."""
PATIENCE = 10
"""Seconds for a scheduler to answer, and for its first worker."""
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.memory.monitor-interval": "2s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.worker.multiprocessing-method": "forkserver",
}
"""What Dask does beside the work: for its dashboard, which there is none of, and for results that fill the memory of
workers, while records are small. Its environment makes malloc give back each large array at once: a run of
submit_latency had three times as many page faults by it."""
READY = ("distributed", "pyv_npu.workloads.firmware", "pyv_npu.studies.sweep.point")
"""Modules that every worker needs."""
DEATHS = 1
"""Of workers that a task outlives: it has one more try."""


def run_on_workers(
    jobs: Sequence[Job], workers: int, scheduler: str, code: str, done: Callable[[Job, Record], None]
) -> None:
    """Run jobs on `workers` processes of this machine, or on those of a scheduler: its address, or its JSON file.

    UsageError where no scheduler answers, or where its workers have another version of this package (`code`);
    MissingExtraError where distributed is not installed. A task whose workers died twice is run job by job, and a job
    on which they die is a failed one.
    """
    with require_extra("cluster", "--scheduler" if scheduler else "--workers"):
        import dask
        import distributed

    settings = {"distributed.scheduler.allowed-failures": DEATHS, **QUIET}
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set(settings), ExitStack() as open_things:
        client = open_things.enter_context(_client(workers, scheduler))
        count = _check_workers(client, scheduler, code)
        size = max(1, min(BATCH, len(jobs) // (TASKS_A_WORKER * count)))
        todo = batches(jobs, size)
        while todo:
            killed = []
            futures = {client.submit(run_batch, batch, pure=False): batch for batch in todo}
            for future in distributed.as_completed(futures):
                batch, error = futures[future], future.exception()
                if error is None:
                    for job, record in zip(batch, future.result(), strict=True):
                        done(job, record)
                elif not isinstance(error, distributed.KilledWorker):
                    raise error
                elif len(batch) == 1:
                    done(batch[0], failed(f"its worker died {DEATHS + 1} times: out of memory, or killed"))
                else:
                    killed.append(batch)
                future.release()
            todo = [[job] for batch in killed for job in batch]


def run_batch(jobs: Sequence[Job]) -> list[Record]:
    """On a worker: the records of jobs. What the last task has compiled is there for the next."""
    from distributed import get_worker

    worker = get_worker()
    runner: Runner = worker.__dict__.setdefault("_pyv_npu_runner", Runner())
    return [runner.run(job) for job in jobs]


def versions_here() -> tuple[str, str]:
    """On a worker: the code of this package, and the folder in which files are looked for."""
    return code(), os.getcwd()


@contextmanager
def _client(workers: int, scheduler: str) -> "Iterator[Client]":
    from distributed import Client, LocalCluster

    if not scheduler:
        _fork_ready_workers()
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster) as client,
        ):  # fmt: skip
            yield client
        return
    named = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
    try:
        made = Client(**named, timeout=PATIENCE)
    except (TimeoutError, OSError, ValueError) as error:
        why = "; ".join(str(error).splitlines()) or type(error).__name__
        raise UsageError(
            f"--scheduler {scheduler}: no scheduler answers ({why}); `dask scheduler` starts one"
        ) from None
    with made as client:
        yield client


def _fork_ready_workers() -> None:
    """Let workers be copies of one process that has imported what they need; by themselves, each would import it all.

    Distributed lets that process import more, pandas for one, unless it believes that this is done.
    """
    import multiprocessing

    import distributed.utils

    multiprocessing.get_context("forkserver").set_forkserver_preload(list(READY))
    distributed.utils._forkserver_preload_set = True


def _check_workers(client: "Client", scheduler: str, code: str) -> int:
    """How many workers there are. UsageError where there are none, or they have other code or another folder."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except (TimeoutError, OSError):
        raise UsageError(f"--scheduler {scheduler}: has no workers; `dask worker ADDRESS` starts one") from None
    found = client.run(versions_here)
    for worker, (theirs, folder) in found.items():
        if theirs != code:
            raise UsageError(
                f"--scheduler {scheduler}: worker {worker} has another version of PyV-NPU; install this one"
            )
        if scheduler and folder != os.getcwd():
            raise UsageError(f"--scheduler {scheduler}: worker {worker} runs in {folder}; start it in {os.getcwd()}")
    return len(found)
