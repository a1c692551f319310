"""Runs Python programs that a model wrote, each in a process of its own, and says how they ended.

    with Sandbox() as sandbox:
        result = sandbox.run("print(6 * 7)")     # result.status is Status.OK, result.stdout "42\\n"

What holds a program (level "L0", the only level in this version): a separate process that
shares no memory and no descriptor with the caller; resource limits on CPU time, memory, file
size and open files; a clean environment; a fresh scratch folder as working directory, removed
afterwards; an own session and process group; and a wall-clock deadline kept outside the program,
after which it and its descendants are killed.

What is not covered yet: there is no filesystem or network isolation, and no limit on the number
of processes or on the total disk space. A program can read and write whatever the user who runs
the trainer can, open sockets, and signal that user's other processes, this package's included.
Run untrusted programs at this level only on a machine or in a container that you can throw away.

How it works: each worker is a "zygote", a small pristine interpreter that is started once and
forks for each call. The caller's own process, which may hold gigabytes of weights, never forks.

Files: `local.py` the public class; `request.py` the checked arguments of a call; `result.py` how
a call ended; `pool.py` who uses which worker; `worker.py` one zygote as its owner sees it;
`capture.py` output with a cap; `handover.py` text as a read-only descriptor; `zygote/` the
program that forks.
"""

from .local import Sandbox
from .result import RunResult, Status

__all__ = ["RunResult", "Sandbox", "Status"]
