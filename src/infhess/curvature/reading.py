"""Fresh data in chunks: whole batches, one in memory at a time, or a few of them cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from infhess.curvature.batches import Batch, Stream, sliced


class FreshData:
    """At least this many points and batches from a stream.

    Attributes:
        read: data points read.
        population_factor: 1 − M/n if the points are known to be a random sample without replacement from n, or all n; else 1.

    """

    def __init__(
        self,
        stream: Stream,
        draw: Callable[[], Batch],
        points_of: Callable[[Batch], int],
        points: int,
        batches: int,
        processes: int = 1,
    ) -> None:
        self._stream, self._draw, self._points_of, self._processes = stream, draw, points_of, processes
        self._points, self._batches = points, batches
        self.read, self._drawn, self._first_pass = 0, 0, 0
        if stream.population is not None and points >= stream.population:
            stream.restart()  # a new pass: all of the data, each point once

    @property
    def population_factor(self) -> float:
        """The finite-population factor 1 − M/n."""
        n = self._stream.population
        if n is None or not self._stream.is_pass(self._first_pass) or (self._stream.ordered and self.read < n):
            return 1.0
        return max(0.0, 1 - self.read / n)

    def _next(self) -> Batch:
        batch = self._draw()
        self._first_pass = self._first_pass or self._stream.passes
        self.read, self._drawn = self.read + self._points_of(batch), self._drawn + 1
        return batch

    @property
    def _asked(self) -> bool:
        return self.read >= self._points and self._drawn >= self._batches

    @property
    def _all(self) -> bool:
        return self.read == self._stream.population

    def chunks(self, number: int, cut: bool) -> Iterator[tuple[int, Batch]]:
        """(chunk, batch) in turn. If there are fewer batches than chunks, they are joined and sliced, unless `cut` is False."""
        pool: list[Batch] = []
        enough = number * self._processes  # points: each process has to slice its own batches into that many parts
        while len(pool) < number and not (self._all or (cut and self._asked and self.read >= enough)):
            pool.append(self._next())
        if len(pool) < number:
            yield from enumerate(sliced(pool, min(number, self.read // self._processes)) if cut else pool)
            return
        yield from enumerate(pool)
        pool.clear()
        while not (self._all or (self._asked and self._drawn % number == 0)):
            yield self._drawn % number, self._next()
