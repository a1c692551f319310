"""Text for a child process, as a descriptor that can be read but not written."""

from __future__ import annotations

import os
import tempfile


def readonly_descriptor(data: bytes) -> int:
    """A descriptor at offset 0 of an unnamed file that holds `data`; the caller closes it."""
    if hasattr(os, "memfd_create"):
        return _sealed_memory(data)
    descriptor, path = tempfile.mkstemp(prefix="agentrl-sandbox-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.unlink(path)


def _sealed_memory(data: bytes) -> int:
    import fcntl  # not on Windows, where importing the package must still work

    descriptor = os.memfd_create("agentrl-sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(
            descriptor,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
        )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
