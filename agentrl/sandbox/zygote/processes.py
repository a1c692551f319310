"""Ends whatever a program left running: its process group, and descendants that left the group."""

from __future__ import annotations

import errno
import os
import signal
import time

_GIVE_UP_AFTER_S = 5.0


def kill(pid: int) -> None:
    """Kill a program and its process group (the pid alone is for the moment before setsid)."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def sweep(group: int) -> bool:
    """Kill and reap all that is left once the program itself is reaped; False where it can't.

    On Linux orphans become this process's children, so "no children" means that all are gone.
    Elsewhere a descendant that made a session of its own is out of reach.
    """
    give_up_at = time.monotonic() + _GIVE_UP_AFTER_S
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.0005)


def _children() -> list[int]:
    own_pid = os.getpid()
    try:
        with open(f"/proc/self/task/{own_pid}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return _children_by_scan(own_pid)


def _children_by_scan(own_pid: int) -> list[int]:
    # For kernels built without the "children" file.
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EACCES):
                    raise
                continue
            if parent == own_pid:
                found.append(int(name))
    return found
