"""Who uses which worker: hands a free one to each caller, and ends them all."""

from __future__ import annotations

import os
import threading
import weakref

from .worker import Worker


class Pool:
    """A fixed number of workers, shared by any number of threads."""

    def __init__(self, n_workers: int) -> None:
        self._changed = threading.Condition()
        self._workers = [Worker() for _ in range(n_workers)]
        self._free = list(self._workers)
        self.closed = False
        _pools.add(self)
        try:
            for worker in self._workers:
                worker.launch()
            for worker in self._workers:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def pids(self) -> list[int]:
        """Process ids of the zygotes that are running."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def take(self) -> Worker:
        """A free worker, waiting for one. Raises RuntimeError once the pool is closed."""
        with self._changed:
            while not self._free and not self.closed:
                self._changed.wait()
            if self.closed:
                raise RuntimeError("this Sandbox is closed")
            return self._free.pop()  # the one used last: its memory is in the caches

    def give(self, worker: Worker) -> None:
        """Take a worker back."""
        if self.closed:
            worker.stop()  # `close` may no longer be waiting for it
        with self._changed:
            self._free.append(worker)
            self._changed.notify_all()

    def close(self) -> None:
        """End every worker; calls under way end as INFRA. Safe to call again."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
            for worker in self._workers:
                if worker not in self._free:
                    worker.interrupt()
            self._changed.wait_for(lambda: len(self._free) == len(self._workers), timeout=30)
        for worker in self._free:
            worker.interrupt()  # all at once, so that they end side by side
        for worker in self._free:
            worker.stop()

    def abandon(self) -> None:
        """In a forked copy of the owner: hold no worker any longer."""
        self._changed = threading.Condition()  # another thread may have held the old lock
        self.closed = True
        for worker in self._workers:
            worker.abandon()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _abandon_all() -> None:
    for pool in list(_pools):
        if not pool.closed:
            pool.abandon()


# A forked copy that kept the sockets open would keep the zygotes alive after the owner's death.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
