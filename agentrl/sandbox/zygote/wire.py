"""The fixed-size records that the owner and the zygote exchange over a stream socket."""

from __future__ import annotations

import enum
import socket
import struct
from typing import NamedTuple


class Kind(enum.IntEnum):
    """What a record says."""

    RUN = 1  # owner: run a program; carries four descriptors: code, stdin, stdout, stderr
    KILL = 2  # owner: kill that program
    READY = 3  # zygote: start-up is over
    STARTED = 4  # zygote: the program's process exists
    DONE = 5  # zygote: it and its descendants are gone, and so is its scratch folder


class Stopped(enum.IntEnum):
    """Who ended the program."""

    ITSELF = 0
    DEADLINE = 1
    OWNER = 2


class Order(NamedTuple):
    """Owner to zygote. `job` numbers the calls, so that a late KILL can't hit the next one."""

    kind: int
    job: int
    timeout_s: float = 0.0
    cpu_limit_s: int = 0
    memory_bytes: int = 0
    file_bytes: int = 0
    echo_last: bool = False


class Report(NamedTuple):
    """Zygote to owner; the facts come from wait4 and clocks, never from what the program wrote."""

    kind: int
    job: int = 0
    pid: int = 0
    wait_status: int = 0
    stopped: int = 0
    memory_error: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0


_ORDER = struct.Struct("<BQdQQQ?")
_REPORT = struct.Struct("<BQqqB?ddQ")
ORDER_BYTES = _ORDER.size
N_DESCRIPTORS = 4


def pack_order(order: Order) -> bytes:
    """The order's bytes."""
    return _ORDER.pack(*order)


def unpack_order(data: bytes) -> Order:
    """The order in `data`, which has ORDER_BYTES bytes."""
    return Order(*_ORDER.unpack(data))


def send_report(connection: socket.socket, report: Report) -> None:
    """Send one report. Raises OSError where the owner is gone."""
    connection.sendall(_REPORT.pack(*report))


def receive_report(connection: socket.socket) -> Report | None:
    """The next report, or None at end of stream."""
    data = receive_exactly(connection, _REPORT.size)
    return None if data is None else Report(*_REPORT.unpack(data))


def receive_exactly(connection: socket.socket, n_bytes: int) -> bytes | None:
    """`n_bytes` bytes, or None where the stream ends first."""
    data = b""
    while len(data) < n_bytes:
        try:
            part = connection.recv(n_bytes - len(data))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return data
