"""The few Linux calls that the standard library lacks; elsewhere they do nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_ADDR_NO_RANDOMIZE = 0x0040000
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


def fix_addresses() -> None:
    """Start this interpreter again without address randomisation, so that printed ids repeat.

    Some containers refuse the call; then addresses vary, and nothing else changes.
    """
    if not _LINUX:
        return
    current = _libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    if current == -1 or current & _ADDR_NO_RANDOMIZE:
        return
    if _libc.personality(ctypes.c_ulong(current | _ADDR_NO_RANDOMIZE)) != -1:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the call above
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they can be found."""
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may trace this one and read its memory."""
    if _LINUX:
        _prctl(_PR_SET_DUMPABLE, int(dumpable))


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
