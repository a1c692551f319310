"""The arguments of one call, checked before anything runs."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

MAX_FILE_MB = 64
"""The largest file that a program may write, in MiB."""


@dataclass(frozen=True)
class Request:
    """One program and its limits; `cpu_limit_s` is whole seconds, as the kernel counts them."""

    code: str
    stdin: str
    timeout_s: float
    memory_limit_mb: float
    cpu_limit_s: int
    echo_last: bool


def checked(
    code: str,
    stdin: str = "",
    timeout_s: float = 30,
    memory_limit_mb: float = 2048,
    cpu_limit_s: float | None = None,
    echo_last: bool = False,
) -> Request:
    """A `Request`, or TypeError / ValueError naming the argument that is wrong."""
    for name, value in (("code", code), ("stdin", stdin)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    timeout_s = _positive("timeout_s", timeout_s)
    memory_limit_mb = _positive("memory_limit_mb", memory_limit_mb)
    if cpu_limit_s is None:
        # The deadline acts first for one busy thread; this bounds several of them, and whatever
        # might outlive the deadline.
        cpu_limit_s = timeout_s + 1
    cpu_limit_s = math.ceil(_positive("cpu_limit_s", cpu_limit_s))
    return Request(code, stdin, timeout_s, memory_limit_mb, cpu_limit_s, bool(echo_last))


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    value = float(value)
    if not (math.isfinite(value) and 0 < value <= 1e9):
        raise ValueError(f"{name} must be above 0 and at most 1e9, not {value}")
    return value
