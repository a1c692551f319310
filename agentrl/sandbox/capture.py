"""One output stream, decoded as it comes and kept up to an exact number of characters."""

from __future__ import annotations

import codecs


class Capture:
    """Keeps the first `max_chars` characters of a UTF-8 stream and notices any beyond them."""

    def __init__(self, max_chars: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._room = max_chars
        self._parts: list[str] = []
        self.overflowed = False

    def feed(self, data: bytes, final: bool = False) -> None:
        """Take the next bytes; `final` also flushes an unfinished character."""
        if self.overflowed:
            return
        text = self._decoder.decode(data, final)
        if len(text) > self._room:
            self.overflowed = True
            text = text[: self._room]
        self._room -= len(text)
        if text:
            self._parts.append(text)

    def text(self) -> str:
        """All that was kept."""
        return "".join(self._parts)
