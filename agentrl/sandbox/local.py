"""`Sandbox`: runs programs on this machine."""

from __future__ import annotations

import operator
import os
import sys
import time
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .pool import Pool
from .request import Request, checked
from .result import RunResult, Status, from_report, without_run
from .worker import WorkerLost, WorkerStuck

LEVELS = ("L0",)
_N_TRIES = 2


class Sandbox:
    """Runs Python programs in processes of their own, with limits. A context manager.

    workers: how many programs run at once; default `os.cpu_count()`. Each keeps one small process.
    level: the isolation. Only "L0" exists in this version: resource limits, a clean environment,
        a scratch folder, an own process group and a wall-clock deadline. NOT protected at L0:
        the filesystem, the network, other processes of the same user (these workers included),
        the number of processes and the total disk space; on macOS memory isn't bounded either.
        None means L0 and says so once on stderr; "L0" says nothing.
    max_output_chars: characters kept of each of stdout and stderr; beyond that the program is
        killed and the result is OUTPUT_LIMIT.

    Programs see the standard library and the packages of the running interpreter (per-user
    packages excepted). Hash seed, locale and time zone are fixed, so that runs repeat. Where the
    kernel permits, so is the layout of memory; an object's printed address can still depend on
    what its worker ran before.

    Threads may share one Sandbox; a call waits until a worker is free. Close it with `close()` or
    `with`; a forgotten one is closed when it is collected or the interpreter exits.

    Raises ValueError or TypeError for bad arguments, and RuntimeError where a worker doesn't
    start, or on Windows.
    """

    def __init__(
        self,
        workers: int | None = None,
        level: str | None = None,
        max_output_chars: int = 2_000_000,
    ) -> None:
        if os.name != "posix":
            raise RuntimeError(
                "agentrl.sandbox needs Linux or macOS. On Windows, run it inside WSL2: "
                "https://learn.microsoft.com/windows/wsl/install"
            )
        if level is not None and level not in LEVELS:
            raise ValueError(f"unknown isolation level {level!r}; this version has {', '.join(LEVELS)}")
        n_workers = _count("workers", os.cpu_count() or 1 if workers is None else workers, 1)
        self.max_output_chars = _count("max_output_chars", max_output_chars, 0)
        self.level = "L0"
        self.workers = n_workers
        if level is None:
            print(
                "agentrl.sandbox: isolation level L0 (resource limits only; programs can reach "
                "the filesystem and the network)",
                file=sys.stderr,
            )
        try:
            self._pool = Pool(n_workers)
        except (WorkerLost, WorkerStuck, OSError) as error:
            raise RuntimeError(f"the sandbox can't start: {error}") from error
        self._finalizer = weakref.finalize(self, self._pool.close)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove all scratch folders. Calls under way end as INFRA."""
        self._pool.close()

    def run(
        self,
        code: str,
        stdin: str = "",
        timeout_s: float = 30,
        memory_limit_mb: float = 2048,
        cpu_limit_s: float | None = None,
        echo_last: bool = False,
    ) -> RunResult:
        """Run one program as `__main__` and wait for its end.

        code: Python source. Anything in it, however broken, gives a result, not an exception.
        stdin: what the program reads, as UTF-8 (lone surrogates become "?").
        timeout_s: wall-clock seconds from its start; then it is killed, descendants included.
        memory_limit_mb: address space of each of its processes, in MiB.
        cpu_limit_s: CPU seconds of each of its processes, rounded up to whole ones; default
            `timeout_s` + 1.
        echo_last: where the last statement is an expression other than a call to print, and no
            semicolon follows, write its repr to stdout as a notebook does (None is not shown).

        A program may write files up to 64 MiB each and hold 256 of them open. A worker that dies
        is replaced and the program run once more; if that fails too, the status is INFRA.

        Raises TypeError or ValueError for a wrong type or a limit that isn't a finite positive
        number, and RuntimeError once the Sandbox is closed.
        """
        request = checked(code, stdin, timeout_s, memory_limit_mb, cpu_limit_s, echo_last)
        return self._answer(request)

    def run_many(self, requests: Iterable[Mapping[str, Any]]) -> list[RunResult]:
        """Run many programs, side by side over the workers; results in the requests' order.

        requests: mappings of `run`'s arguments by name. One that `run` would refuse gives an
        ERROR result whose `stderr` says why; no request's fate raises. Raises RuntimeError once
        the Sandbox is closed.
        """
        requests = list(requests)
        if self._pool.closed:
            raise RuntimeError("this Sandbox is closed")
        if not requests:
            return []
        with ThreadPoolExecutor(min(len(self._pool), len(requests))) as threads:
            return list(threads.map(self._run_safely, requests))

    def _run_safely(self, request: Mapping[str, Any]) -> RunResult:
        try:
            accepted = checked(**request)
        except (TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            return without_run(Status.ERROR, reason, 0.0, self.level)
        try:
            return self._answer(accepted)
        except Exception as error:  # a closed Sandbox, or a fault of this package
            reason = f"{type(error).__name__}: {error}"
            return without_run(Status.INFRA, reason, 0.0, self.level)

    def _answer(self, request: Request) -> RunResult:
        worker = self._pool.take()
        started = time.monotonic()
        reason = ""
        try:
            for _ in range(_N_TRIES):
                try:
                    worker.ensure_running()
                    report, stdout, stderr = worker.call(request, self.max_output_chars)
                    return from_report(request, report, stdout, stderr, self.level)
                except (WorkerLost, OSError) as error:
                    reason = str(error)
                except WorkerStuck as error:
                    reason = str(error)
                    break  # a second wait would be as long as the first
                if self._pool.closed:
                    reason = "this Sandbox was closed"
                    break
        finally:
            self._pool.give(worker)
        return without_run(Status.INFRA, reason, time.monotonic() - started, self.level)


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not bool")
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}") from None
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value
