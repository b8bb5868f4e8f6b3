"""Execution of points in processes of this machine, which communicate over pipes: no port is opened."""

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

from pyv_npu.studies.sweep.point import Job, JobRunner, Record, batches_for, failure_record

DEATHS = 1
"""Maximum number of retries of a job whose worker died."""
READY = ("pyv_npu.workloads.firmware", "pyv_npu.studies.sweep.point")
"""Modules that every worker needs: workers are forked from a process that has imported them."""


def run_in_processes(jobs: Sequence[Job], workers: int, done: Callable[[Job, Record], None]) -> None:
    """Run jobs on `workers` processes. Jobs of a worker that died are retried one by one; a second death fails the job.

    An unexpected exception on a worker is raised here.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(READY))
    waiting = deque(batches_for(jobs, workers))
    deaths = Counter[str]()
    idle: list[tuple[Connection, BaseProcess]] = []
    busy: dict[Connection, tuple[BaseProcess, list[Job]]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                connection, worker = idle.pop() if idle else _start(context)
                busy[connection] = worker, waiting.popleft()
                with suppress(BrokenPipeError):  # the worker has died, which `recv` reports below
                    connection.send(busy[connection][1])
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, batch = busy.pop(ready)
                try:
                    answer = ready.recv()
                except (EOFError, ConnectionError):
                    worker.join()
                    for job in batch:
                        deaths[job.address] += 1
                        if deaths[job.address] <= DEATHS:
                            waiting.append([job])
                        else:
                            done(job, failure_record(f"its worker died {DEATHS + 1} times: out of memory, or killed"))
                    continue
                if isinstance(answer, Exception):
                    raise answer
                idle.append((ready, worker))
                for job, record in zip(batch, answer, strict=True):
                    done(job, record)
    finally:
        for worker in (*(worker for _, worker in idle), *(worker for worker, _ in busy.values())):
            worker.kill()


def _start(context: ForkServerContext) -> tuple[Connection, BaseProcess]:
    """Start a worker; return the pipe to it, and its process."""
    connection, far_end = context.Pipe()
    process = context.Process(target=_serve, args=(far_end,), daemon=True)
    process.start()
    far_end.close()
    return connection, process


def _serve(connection: Connection) -> None:
    """Answer batches with their records, as a worker, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep handles Ctrl-C and kills its workers
    runner = JobRunner()
    with suppress(EOFError, ConnectionError):
        while True:
            batch = connection.recv()
            try:
                connection.send([runner.run(job) for job in batch])
            except Exception as error:
                connection.send(error)
