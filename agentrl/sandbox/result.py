"""How a call ended: the statuses, the result, and the rule that maps facts to a status."""

from __future__ import annotations

import enum
import os
import signal
from dataclasses import dataclass

from .capture import Capture
from .request import Request
from .zygote.wire import Report, Stopped

# A kill that nobody here sent counts as one for memory from this share of the limit upwards.
_NEAR_MEMORY_LIMIT = 0.9
# The kernel acts on the CPU limit at a timer tick; rusage may read slightly below the limit.
_CPU_SLACK_S = 0.1


class Status(enum.StrEnum):
    """Why a program ended. INFRA is the machine's fault and must never become a reward."""

    OK = "OK"
    """It exited with code 0."""
    ERROR = "ERROR"
    """An uncaught exception, a syntax error or a non-zero exit code."""
    TIMEOUT = "TIMEOUT"
    """Killed at the wall-clock deadline."""
    CPU_LIMIT = "CPU_LIMIT"
    """Killed by the kernel at the CPU limit, before the wall-clock deadline."""
    OOM = "OOM"
    """An uncaught MemoryError, or killed close to the memory limit."""
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    """It wrote more than `max_output_chars` to a stream, and was killed for it."""
    SIGNALED = "SIGNALED"
    """Ended by a signal that this package did not send; `exit_code` is minus its number."""
    INFRA = "INFRA"
    """The sandbox itself failed; `stderr` says how. Nothing is known about the program."""


@dataclass(frozen=True)
class RunResult:
    """The outcome of one call.

    status: why the program ended.
    stdout, stderr: what it wrote, decoded as UTF-8 with U+FFFD for bad bytes, each cut at exactly
        `max_output_chars` characters. `stderr` ends with the traceback of an uncaught exception,
        reduced to the program's own frames.
    exit_code: its exit code; minus the signal number where a signal ended it; None where this
        package stopped it (TIMEOUT, OUTPUT_LIMIT) and for INFRA.
    wall_s: seconds from its start to its end. cpu_s: seconds of user and system time, including
        descendants it waited for.
    peak_mb: largest resident memory, in MiB (a fresh interpreter's own share included).
    truncated: whether `stdout` or `stderr` was cut.
    level: the isolation it ran under.
    """

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None
    wall_s: float
    cpu_s: float
    peak_mb: float
    truncated: bool
    level: str


def from_report(request: Request, report: Report, stdout: Capture, stderr: Capture, level: str) -> RunResult:
    """The result that the zygote's facts and the captured output amount to."""
    truncated = stdout.overflowed or stderr.overflowed
    peak_mb = report.peak_bytes / 2**20
    status, exit_code = _judge(request, report, truncated, peak_mb)
    return RunResult(
        status=status,
        stdout=stdout.text(),
        stderr=stderr.text(),
        exit_code=exit_code,
        wall_s=report.wall_s,
        cpu_s=report.cpu_s,
        peak_mb=peak_mb,
        truncated=truncated,
        level=level,
    )


def without_run(status: Status, reason: str, wall_s: float, level: str) -> RunResult:
    """A result for a program that never ran, or of whose run nothing is known."""
    return RunResult(status, "", reason, None, wall_s, 0.0, 0.0, False, level)


def _judge(request: Request, report: Report, truncated: bool, peak_mb: float) -> tuple[Status, int | None]:
    # Too much output is OUTPUT_LIMIT even where the program ended before the kill reached it, so
    # that the same program always gets the same status.
    if truncated:
        return Status.OUTPUT_LIMIT, None
    if report.stopped == Stopped.DEADLINE:
        return Status.TIMEOUT, None
    exit_code = os.waitstatus_to_exitcode(report.wait_status)
    if exit_code < 0:
        number = -exit_code
        if number == signal.SIGXCPU:
            return Status.CPU_LIMIT, exit_code
        # With soft = hard the kernel ends the process with SIGKILL, for CPU and memory alike.
        if number == signal.SIGKILL:
            if report.cpu_s >= request.cpu_limit_s - _CPU_SLACK_S:
                return Status.CPU_LIMIT, exit_code
            if peak_mb >= _NEAR_MEMORY_LIMIT * request.memory_limit_mb:
                return Status.OOM, exit_code
        return Status.SIGNALED, exit_code
    if exit_code == 0:
        return Status.OK, 0
    # The program could set this mark itself, which would only turn one failure into another.
    if exit_code == 1 and report.memory_error:
        return Status.OOM, exit_code
    return Status.ERROR, exit_code
