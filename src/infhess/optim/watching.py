"""One `watch()` at a time: what would count its training pass twice, or leave it out, is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Watching:
    """Whether a `watch()` is open."""

    _watching = False

    @contextmanager
    def _open_watch(self) -> Iterator[None]:
        self._outside_watch("watch")
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    def _outside_watch(self, name: str) -> None:
        if self._watching:
            raise RuntimeError(
                f"{type(self).__name__}.{name}: a watch() is open; end its `with` block after backward, and call {name} below "
                "it. step(closure) needs no watch()"
            )
