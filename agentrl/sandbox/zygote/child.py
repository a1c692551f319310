"""The forked child, from fork to exit: shut in first, then the program."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import traceback
from typing import NoReturn

import kernel
import limits
import program
from wire import Order


class Marks:
    """One shared byte in which the child notes an uncaught MemoryError, and spare memory.

    The spare lets the traceback of a MemoryError be written. Untouched, it costs no real memory.
    """

    def __init__(self) -> None:
        import mmap

        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._spare = bytearray(4 << 20)

    def clear(self) -> None:
        """In the zygote, before a fork."""
        self._page[0] = 0

    def set_memory_error(self) -> None:
        """In the child: note it and free the spare."""
        self._page[0] = 1
        self._spare = None

    def memory_error(self) -> bool:
        """In the zygote, after the child's end."""
        return self._page[0] == 1


def open_streams() -> list[io.TextIOWrapper]:
    """Text streams over descriptors 0, 1 and 2, made in the zygote since each fork then saves it.

    Streams ask once whether their descriptor can seek, so 1 and 2 are pipes for the moment.
    """
    read_end, write_end = os.pipe()
    saved = [os.dup(1), os.dup(2)]
    try:
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        # Output goes out line by line, so that what was printed before a kill is not lost.
        return [
            io.TextIOWrapper(open(0, "rb", closefd=False), "utf-8", "surrogateescape"),
            io.TextIOWrapper(open(1, "wb", closefd=False), "utf-8", "surrogateescape", line_buffering=True),
            io.TextIOWrapper(open(2, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True),
        ]
    finally:
        for target, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, target)
        for descriptor in (read_end, write_end, *saved):
            os.close(descriptor)


def run(
    order: Order,
    descriptors: list[int],
    scratch: str,
    marks: Marks,
    streams: list[io.TextIOWrapper],
    zygote: int,
) -> NoReturn:
    """Never returns. `descriptors` are code, stdin, stdout and stderr.

    A fault before the program starts is the machine's, and no exit code of the child could say so
    without the program being able to say it too. So it ends the zygote, which the owner notices.
    """
    try:
        source, echo_last = _enclose(order, descriptors, scratch, streams, zygote)
    except MemoryError:  # a limit below what the interpreter itself takes
        marks.set_memory_error()
        os._exit(1)
    except BaseException:
        traceback.print_exc()  # descriptor 2 is still the zygote's log
        sys.stderr.flush()
        os.kill(zygote, signal.SIGKILL)
        os._exit(1)
    exit_code = 1
    try:
        exit_code = program.run(source, echo_last, marks.set_memory_error)
    except BaseException as error:  # such as a MemoryError in this file's own lines
        if isinstance(error, MemoryError):
            marks.set_memory_error()
    finally:
        os._exit(exit_code)


def _enclose(
    order: Order,
    descriptors: list[int],
    scratch: str,
    streams: list[io.TextIOWrapper],
    zygote: int,
) -> tuple[str, bool]:
    os.setsid()
    kernel.die_with_parent(zygote)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code, *standard = descriptors
    source = os.read(code, os.fstat(code).st_size).decode("utf-8", "surrogatepass")
    os.chdir(scratch)
    sys.path.insert(0, "")
    limits.apply(order)
    # Nothing of the zygote's may stay open: its socket would let the program forge a report.
    # Received descriptors are above 2, so none is overwritten before it is copied.
    for target, descriptor in enumerate(standard):
        os.dup2(descriptor, target)
    most = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, min(most, 65536) if most > 0 else 65536)
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams
    kernel.set_dumpable(True)  # so that /dev/stdin opens
    gc.enable()
    return source, order.echo_last
