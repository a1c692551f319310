"""The zygote's loop: takes an order, forks a child, keeps its deadline, reports how it ended.

It never reads the program, its input or its output. It ends, and removes its scratch base, when
the owner's end of the socket closes.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import tokenize
import traceback

import child
import kernel
import processes
import scratch
import wire

# Imported before any fork, so that programs find them at no cost.
_PRELOAD = (
    "ast bisect collections copy datetime decimal fractions functools heapq inspect itertools "
    "json math operator random re statistics string textwrap time typing"
).split()
_WORK = "work"


class OwnerGone(Exception):
    """The other end of the socket is closed."""


class Zygote:
    """Runs one program at a time."""

    def __init__(self, connection: socket.socket, base: str) -> None:
        self._connection = connection
        self._scratch = os.path.join(base, _WORK)
        self._pid = os.getpid()
        self._marks = child.Marks()
        self._streams = child.open_streams()
        # Held here, or each child would spend time on closing them.
        self._own_streams = sys.stdin, sys.stdout, sys.stderr
        # SIGCHLD writes to this pipe, so that one select covers the child and the owner.
        self._wakeup, wakeup_end = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup_end, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Take orders until the owner is gone (OwnerGone)."""
        self._send(wire.Report(wire.Kind.READY))
        while True:
            order, descriptors = self._receive()
            if order.kind == wire.Kind.RUN:
                self._send(self._run(order, descriptors))

    def _run(self, order: wire.Order, descriptors: list[int]) -> wire.Report:
        self._marks.clear()
        os.mkdir(self._scratch, 0o700)
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child.run(order, descriptors, self._scratch, self._marks, self._streams, self._pid)
        for descriptor in descriptors:
            os.close(descriptor)
        self._send(wire.Report(wire.Kind.STARTED, order.job, pid))
        stopped, wait_status, usage = self._wait(order.job, pid, started + order.timeout_s)
        wall_s = time.monotonic() - started
        if not processes.sweep(pid):
            raise RuntimeError("a program's processes could not be killed")
        scratch.remove(self._scratch)
        return wire.Report(
            wire.Kind.DONE,
            order.job,
            pid,
            wait_status,
            stopped,
            self._marks.memory_error(),
            wall_s,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        )

    def _wait(self, job: int, pid: int, deadline: float):
        """(who stopped it, wait status, resource usage) once the child is reaped."""
        stopped = wire.Stopped.ITSELF
        while True:
            ended = _reap(pid)
            if ended is not None:
                return stopped, *ended
            watched, patience_s = [self._wakeup], None
            if stopped == wire.Stopped.ITSELF:
                watched.append(self._connection)
                patience_s = max(0.0, deadline - time.monotonic())
            ready = select.select(watched, [], [], patience_s)[0]
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
            if self._connection in ready and self._asks_to_kill(job):
                stopped = wire.Stopped.OWNER
            elif stopped == wire.Stopped.ITSELF and time.monotonic() >= deadline:
                stopped = wire.Stopped.DEADLINE
            if stopped != wire.Stopped.ITSELF:
                processes.kill(pid)

    def _asks_to_kill(self, job: int) -> bool:
        try:
            order, _ = self._receive()
        except OwnerGone:
            return True  # the next receive says so again
        return order.kind == wire.Kind.KILL and order.job == job

    def _receive(self) -> tuple[wire.Order, list[int]]:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, wire.ORDER_BYTES, wire.N_DESCRIPTORS)
        except ConnectionError as error:
            raise OwnerGone from error
        if 0 < len(data) < wire.ORDER_BYTES:
            data += wire.receive_exactly(self._connection, wire.ORDER_BYTES - len(data)) or b""
        if len(data) < wire.ORDER_BYTES:
            raise OwnerGone
        return wire.unpack_order(data), descriptors

    def _send(self, report: wire.Report) -> None:
        try:
            wire.send_report(self._connection, report)
        except OSError:
            pass  # the owner is gone; the next receive says so


def main() -> None:
    """Set up the process and serve."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    base = sys.argv[2]
    kernel.set_dumpable(False)
    kernel.adopt_orphans()
    for name in _PRELOAD:
        importlib.import_module(name)
    # Whatever is done here is not done in each child, where every page touched is a page copied.
    _warm_up()
    _forget_own_modules()
    os.environ["HOME"] = os.environ["TMPDIR"] = os.path.join(base, _WORK)
    zygote = Zygote(connection, base)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        zygote.serve()
    except OwnerGone:
        scratch.remove(base)


def _warm_up() -> None:
    """Compile, run and fail once, so that lazily made tables exist before the first fork."""
    source = "import ast\nprint\n[i for i in range(3)]\n1 / 0\n"
    try:
        exec(compile(ast.parse(source), "<warm-up>", "exec"), {})
    except ZeroDivisionError as error:
        "".join(traceback.TracebackException.from_exception(error).format())
    list(tokenize.generate_tokens(iter(source.splitlines(True)).__next__))


def _forget_own_modules() -> None:
    """Let a program have modules of these names itself."""
    folder = os.path.dirname(os.path.abspath(__file__))
    for name, module in list(sys.modules.items()):
        if os.path.dirname(getattr(module, "__file__", None) or "") == folder:
            del sys.modules[name]
    del sys.path[0]


def _reap(pid: int):
    """Reap all that has ended; (wait status, resource usage) of `pid` if it was among them."""
    found = None
    while True:
        try:
            ended, wait_status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == pid:
            found = wait_status, usage
        elif ended == 0:
            return found


def _ignore(number, frame) -> None:
    """A handler, since an ignored SIGCHLD would not wake the select."""
