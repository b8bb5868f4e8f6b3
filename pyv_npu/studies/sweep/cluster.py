"""Execution of points on a Dask cluster, imported only with `--scheduler`."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.errors import UsageError
from pyv_npu.studies.sweep.point import Job, JobRunner, Record, batches_for, code, failure_record
from toolchain.errors import require_extra

if TYPE_CHECKING:
    from distributed import Client

PATIENCE = 10
"""Timeout, seconds, for the scheduler's answer and for its first worker."""
ENCRYPTED = ("tls://", "wss://")
"""Prefixes of addresses with TLS; Dask's configuration has the client's certificates."""


def run_on_cluster(
    jobs: Sequence[Job], scheduler: str, code: str, done: Callable[[Job, Record], None], *, insecure: bool
) -> None:
    """Run jobs on the workers of a scheduler: its address, or its JSON file.

    UsageError when no scheduler answers, its workers have another version of this package (`code`), or connections
    are not encrypted without `insecure`; MissingExtraError when distributed is not installed. A batch that killed its
    workers too often is run job by job; a job that does so fails.
    """
    with require_extra("cluster", "--scheduler"):
        import distributed

    if not insecure and not _address(scheduler).startswith(ENCRYPTED):
        raise UsageError(
            f"--scheduler {scheduler}: without TLS, everybody who reaches it can run code here and on its workers: "
            "give its tls:// address, or --insecure on a network that you trust"
        )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with _client(scheduler) as client:
        count = _check_workers(client, scheduler, code)
        todo = batches_for(jobs, count)
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
                    done(batch[0], failure_record("its workers died: out of memory, or killed"))
                else:
                    killed.append(batch)
                future.release()
            todo = [[job] for batch in killed for job in batch]


def run_batch(jobs: Sequence[Job]) -> list[Record]:
    """Run jobs on a worker and return their records. The next batch of the worker reuses compiled models."""
    from distributed import get_worker

    worker = get_worker()
    runner: JobRunner = worker.__dict__.setdefault("_pyv_npu_runner", JobRunner())
    return [runner.run(job) for job in jobs]


def versions_here() -> tuple[str, str]:
    """Return this process's hash of the package's code, and its working directory."""
    return code(), os.getcwd()


def _address(scheduler: str) -> str:
    """Return the address in a scheduler's JSON file, or the text itself if it is no such file."""
    try:
        check_input(Path(scheduler), MAX_TEXT)
        document = json.loads(Path(scheduler).read_text(encoding="utf-8"))
        return str(document["address"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return scheduler


def _client(scheduler: str) -> "Client":
    from distributed import Client

    named = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
    try:
        return Client(**named, timeout=PATIENCE)
    except (TimeoutError, OSError, ValueError) as error:
        reason = "; ".join(str(error).splitlines()) or type(error).__name__
        raise UsageError(
            f"--scheduler {scheduler}: no scheduler answers ({reason}); `dask scheduler` starts one"
        ) from None


def _check_workers(client: "Client", scheduler: str, code: str) -> int:
    """Return the number of workers. UsageError for no worker, other code or another working directory."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except (TimeoutError, OSError):
        raise UsageError(f"--scheduler {scheduler}: has no workers; `dask worker ADDRESS` starts one") from None
    workers = client.run(versions_here)
    for worker, (worker_code, folder) in workers.items():
        if worker_code != code:
            raise UsageError(
                f"--scheduler {scheduler}: worker {worker} has another version of PyV-NPU; install this one"
            )
        if folder != os.getcwd():
            raise UsageError(f"--scheduler {scheduler}: worker {worker} runs in {folder}; start it in {os.getcwd()}")
    return len(workers)
