"""One zygote as its owner sees it: start, run a call, notice its death, stop."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from .capture import Capture
from .handover import readonly_descriptor
from .request import MAX_FILE_MB, Request
from .zygote import scratch, wire

_ZYGOTE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote")
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
_START_PATIENCE_S = 60.0
_STOP_PATIENCE_S = 5.0
# How long after a program's deadline its zygote may take to kill, clean up and report.
_REPORT_PATIENCE_S = 15.0
_CHUNK_BYTES = 1 << 16


class WorkerLost(Exception):
    """The zygote ended; a new one may well do."""


class WorkerStuck(Exception):
    """The zygote didn't report in time."""


class Worker:
    """Owns one zygote. Used by one thread at a time, except `interrupt`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._connection: socket.socket | None = None
        self._log = None
        self._base = ""
        self._job = 0
        self._child_pid = 0

    @property
    def pid(self) -> int | None:
        """The zygote's process id, None where it isn't running."""
        return self._process.pid if self._process is not None else None

    def launch(self) -> None:
        """Start the zygote without waiting for it. Raises OSError."""
        ours, theirs = socket.socketpair()
        self._connection = ours
        try:
            self._log = tempfile.TemporaryFile(prefix="agentrl-sandbox-")
            self._base = tempfile.mkdtemp(prefix="agentrl-sandbox-")
            # -I would also ignore PYTHONHASHSEED; the environment holds nothing to protect from.
            # -s: no per-user packages. -B: no byte code written into site-packages.
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-B", _ZYGOTE, str(theirs.fileno()), self._base],
                env=_ENVIRONMENT,
                cwd=self._base,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            self.stop()
            raise
        finally:
            theirs.close()

    def wait_ready(self) -> None:
        """Wait for a launched zygote. Raises WorkerLost or WorkerStuck, with its own words."""
        report = self._next_report(time.monotonic() + _START_PATIENCE_S)
        if report.kind != wire.Kind.READY:
            raise WorkerLost(f"unexpected first report {report.kind}")

    def ensure_running(self) -> None:
        """Start the zygote if it isn't running."""
        if self._process is None:
            self.launch()
            try:
                self.wait_ready()
            except BaseException:
                self.stop()
                raise

    def call(self, request: Request, max_chars: int) -> tuple[wire.Report, Capture, Capture]:
        """Run one program. On any exception the zygote is stopped and everything of it removed.

        Raises WorkerLost, WorkerStuck, OSError.
        """
        try:
            return self._call(request, max_chars)
        except BaseException:
            self.stop()
            raise

    def interrupt(self) -> None:
        """From another thread: make a running `call` end with WorkerLost."""
        connection = self._connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self) -> None:
        """End the zygote, its program and that program's descendants, and remove its files."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()  # the zygote ends by itself, cleaning up
        if process is not None:
            try:
                process.wait(_STOP_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._kill_orphan()
        if self._base:
            try:
                scratch.remove(self._base)
            except OSError:
                shutil.rmtree(self._base, ignore_errors=True)
            self._base = ""
        if self._log is not None:
            self._log.close()
            self._log = None

    def abandon(self) -> None:
        """In a forked copy of the owner: let go of the zygote, which stays the original's."""
        if self._connection is not None:
            self._connection.close()
        if self._log is not None:
            self._log.close()
        self._connection = self._process = self._log = None
        self._base = ""

    def _call(self, request: Request, max_chars: int) -> tuple[wire.Report, Capture, Capture]:
        self._job += 1
        self._child_pid = 0
        deadline = time.monotonic() + request.timeout_s + _REPORT_PATIENCE_S
        passed: list[int] = []
        reading: list[int] = []
        try:
            passed.append(readonly_descriptor(request.code.encode("utf-8", "surrogatepass")))
            passed.append(readonly_descriptor(request.stdin.encode("utf-8", "replace")))
            for _ in range(2):
                read_end, write_end = os.pipe()
                reading.append(read_end)
                passed.append(write_end)
            self._order_run(request, passed)
            while passed:
                os.close(passed.pop())
            captures = {descriptor: Capture(max_chars) for descriptor in reading}
            report = self._watch(captures, deadline)
            for descriptor, capture in captures.items():
                _drain(descriptor, capture)
            stdout, stderr = captures.values()
            return report, stdout, stderr
        finally:
            for descriptor in passed + reading:
                os.close(descriptor)

    def _order_run(self, request: Request, descriptors: list[int]) -> None:
        order = wire.Order(
            kind=wire.Kind.RUN,
            job=self._job,
            timeout_s=request.timeout_s,
            cpu_limit_s=request.cpu_limit_s,
            memory_bytes=int(request.memory_limit_mb * 2**20),
            file_bytes=MAX_FILE_MB << 20,
            echo_last=request.echo_last,
        )
        try:
            socket.send_fds(self._connection, [wire.pack_order(order)], descriptors)
        except ConnectionError as error:
            raise WorkerLost(self._last_words()) from error

    def _watch(self, captures: dict[int, Capture], deadline: float) -> wire.Report:
        """Read output until the zygote reports the end; have the program killed at the cap."""
        connection = self._connection.fileno()
        poll = select.poll()
        for descriptor in (connection, *captures):
            poll.register(descriptor, select.POLLIN)
        while True:
            events = poll.poll(_poll_ms(deadline))
            if not events and time.monotonic() > deadline:
                raise WorkerStuck("the sandbox worker did not report in time")
            for descriptor, _ in events:
                if descriptor == connection:
                    report = self._next_report(deadline)
                    if report.kind == wire.Kind.DONE and report.job == self._job:
                        self._child_pid = 0  # from here on the number may mean another process
                        return report
                    if report.kind == wire.Kind.STARTED:
                        self._child_pid = report.pid
                    continue
                data = os.read(descriptor, _CHUNK_BYTES)
                capture = captures[descriptor]
                capture.feed(data, final=not data)
                if not data or capture.overflowed:
                    poll.unregister(descriptor)
                if capture.overflowed:
                    self._order_kill()

    def _order_kill(self) -> None:
        try:
            self._connection.sendall(wire.pack_order(wire.Order(wire.Kind.KILL, self._job)))
        except ConnectionError:
            pass  # the next report says so

    def _next_report(self, deadline: float) -> wire.Report:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while not poll.poll(_poll_ms(deadline)):
            if time.monotonic() > deadline:
                raise WorkerStuck("the sandbox worker did not report in time")
        report = wire.receive_report(self._connection)
        if report is None:
            raise WorkerLost(self._last_words())
        return report

    def _last_words(self) -> str:
        words = ""
        if self._log is not None:
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4000))
            words = self._log.read().decode("utf-8", "replace").strip()
        return "the sandbox worker ended" + (f":\n{words}" if words else "")

    def _kill_orphan(self) -> None:
        # A zygote that was killed couldn't end its program's group. The kernel has killed the
        # program itself (Linux), so the group is there only if a descendant is.
        if self._child_pid:
            try:
                os.killpg(self._child_pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            self._child_pid = 0


def _drain(descriptor: int, capture: Capture) -> None:
    """Take what is left in a pipe whose writers are dead, without waiting."""
    os.set_blocking(descriptor, False)
    while not capture.overflowed:
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            data = b""
        capture.feed(data, final=not data)
        if not data:
            return


def _poll_ms(deadline: float) -> float:
    return 1000 * min(60.0, max(0.0, deadline - time.monotonic())) + 1
