"""Resource limits of one program. Soft = hard, so that it can't raise them again."""

from __future__ import annotations

import resource
import sys

from wire import Order

_MAX_OPEN_FILES = 256


def apply(order: Order) -> None:
    """Limit the calling process. Raises OSError or ValueError where the system refuses."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, order.file_bytes)
    _limit(resource.RLIMIT_CPU, order.cpu_limit_s)
    try:
        _limit(resource.RLIMIT_AS, order.memory_bytes)
    except (OSError, ValueError):
        if sys.platform == "linux":
            raise
        # macOS knows the limit but doesn't keep it: memory isn't bounded there.


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))
