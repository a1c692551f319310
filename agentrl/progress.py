"""One line of progress at a time: how far, how fast, how long still."""

from __future__ import annotations

import time


class Progress:
    """Prints at most one line every `every_s` seconds, and the last one: plain lines suit notebooks and logs.

    `unit` is the singular of what is counted: Progress("rl", 40, "step").
    """

    def __init__(self, label: str, total: int, unit: str, every_s: float = 5.0):
        self.label, self.total, self.unit, self.every_s = label, total, unit, every_s
        self._started = self._printed = time.monotonic()

    def __call__(self, done: int, total: int | None = None, note: str = "") -> None:
        """Report that `done` of `total` are finished; `note` is added at the end of the line."""
        total = total or self.total
        now = time.monotonic()
        if done < total and now - self._printed < self.every_s:
            return
        self._printed, took = now, max(now - self._started, 1e-9)
        rate = done / took
        speed = (
            f"{rate:.1f} {_plural(self.unit)}/s" if rate >= 1 else f"{1 / max(rate, 1e-9):.1f} s/{self.unit}"
        )
        left = f"{(total - done) / rate:.0f} s left" if done < total and rate else f"{took:.0f} s"
        note = f"  {note}" if note else ""
        print(f"{self.label} {done}/{total} {_plural(self.unit)}  {speed}  {left}{note}", flush=True)


def _plural(unit: str) -> str:
    return unit[:-1] + "ies" if unit.endswith("y") else unit + "s"
