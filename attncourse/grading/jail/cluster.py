"""Grading on a cluster: the same pure function, on the workers of a dask scheduler that is there.

A submission's bytes go to a worker, plain data comes back. A worker needs the course's package,
the same version as here, and may build jails; it needs no file of the course, and sees neither the
gradebook nor another submission. Whatever starts the workers (ssh, dask-jobqueue on SLURM,
Kubernetes) is none of our business: an address is all that is needed.

dask sends pickles, so everybody who can connect to the scheduler can run programs on it, on its
workers and here: keep it in a private network, or use TLS (`tls://`). Students' code is never part
of a pickle that is run. It is text to the worker, and runs in the worker's jails, as it does here.
"""

import collections
import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

from attncourse.grading import CannotGrade
from attncourse.grading.jail import workers
from attncourse.grading.jail.job import TRIES, Job, version
from attncourse.grading.jail.workers import GradeAll

log = logging.getLogger(__name__)


class Unusable(Exception):
    """The cluster cannot grade; says what to do."""


def on_cluster(address: str) -> GradeAll:
    """Grade on the workers of the scheduler at an address such as "tcp://10.0.0.1:8786"."""

    def grade_all(job: Job, notebooks: dict[str, Path]) -> Iterator[tuple[str, dict | str]]:
        if notebooks:
            with _connected(address) as client:
                yield from _map(client, job, notebooks)

    return grade_all


@contextlib.contextmanager
def _connected(address: str):
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is said here
    try:
        _knock(address)
        client = Client(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise Unusable(f"no dask scheduler answers at {address} ({error})") from None
    with client:
        if not client.nthreads():
            log.warning(f"the cluster at {address} has no workers yet; waiting for the first")
        yield client


def _knock(address: str) -> None:
    """See whether anybody listens: a client that finds nobody takes its time, and a traceback."""
    from distributed.comm.addressing import parse_address, parse_host_port

    kind, place = parse_address(address)
    if kind in ("tcp", "tls"):
        socket.create_connection(parse_host_port(place, 8786), timeout=10).close()


def _map(client, job: Job, notebooks: dict[str, Path]) -> Iterator[tuple[str, dict | str]]:
    """Each dask worker has as many submissions as it has threads; all others stay here."""
    from distributed import as_completed

    waiting, deaths = collections.deque(notebooks), collections.Counter()
    busy, done = {}, as_completed([], loop=client.loop)
    graded: list[tuple[str, dict | str]] = []
    while waiting or busy or graded:
        while waiting and len(busy) < max(1, sum(client.nthreads().values())):
            student = waiting.popleft()
            try:
                data = notebooks[student].read_bytes()
            except OSError as error:
                graded.append((student, f"the file cannot be read: {error.strerror}"))
                continue
            future = client.submit(_grade, version(), job, data, pure=False)
            busy[future] = student
            done.add(future)
        yield from graded  # the workers do not wait for what is done with it
        graded = []
        if busy:
            future = next(done)
            student = busy.pop(future)
            reply = _result(future)
            if reply is None:
                deaths[student] += 1
                if deaths[student] < TRIES:
                    waiting.append(student)
                    continue
                _result(client.submit(_grade, version(), job, None, pure=False))
            graded.append((student, reply or f"the worker that graded it {workers.DIED}"))


def _result(future) -> dict | str | None:
    """What came of a submission; None if dask gave up, as one worker after the other died.

    Raises:
        Unusable: the cluster is gone, or has not the course that is here.
        CannotGrade: a worker's machine fails with the course's own solution.
        Unavailable: a worker may not build jails.
    """
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    try:
        return future.result()
    except KilledWorker:
        return None
    except FutureCancelledError:
        raise Unusable("the scheduler is gone") from None
    except (ImportError, AttributeError, RuntimeError) as error:
        raise Unusable(
            f"scheduler and workers cannot load the course ({error}). Install on all of them: "
            "pip install 'attncourse[grader,cluster]', the same version as here"
        ) from None


def _grade(theirs: bytes, job: Job, data: bytes | None) -> dict | str:
    """What a dask worker runs: a worker of ours does it, as dask's threads would disturb the judge.

    Raises:
        Unusable: this is another version of the course.
        CannotGrade: this machine fails with the course's own solution.
        Unavailable: no jail can be built here.
    """
    from distributed import get_worker

    place = f"the worker {get_worker().address}"
    if version() != theirs:
        raise Unusable(
            f"{place} has another version of attncourse than this "
            "machine: install the same one, and start the workers again"
        )
    try:
        return workers.in_own_process(job, data)
    except CannotGrade as error:
        raise CannotGrade(f"{place}: {error}") from None
