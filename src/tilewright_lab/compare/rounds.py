"""Interleaved rounds of contestants, each alone: what a comparison of layers or networks stands on.

Goes in: contestants' processes by name, prepared and checked. Comes out: their rows, with samples.

A round is ours, peer 1, ours, peer 2, ...: each alone, the others stopped (peers.py), so that a
change of clock or load meets all alike. Where several contestants of ours take part, they take
turns in the places of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.runtime.measure import conditions, moved
from tilewright_lab.compare.results import Contestant
from tilewright_lab.peers.peers import Peer, PeerError

FLUSHED_RUNS = 50
LEAST_CALLS, MOST_CALLS = 3, 500
WARM_MS = 10.0
Tell = Callable[[str, int, int], object]


class Rounds:
    """Who takes part, and the samples so far. `check` says whether a row's answer is right.

    ours, rivals  names of `seats`, in the order of their turns
    prepared      rows of contestants that are ready, or that say why they are not
    estimate_ms   how long a call takes, of those that are ready
    """

    def __init__(
        self, ours: Sequence[str], rivals: Sequence[str], seats: Mapping[str, Peer], *,
        prepared: Mapping[str, Contestant], estimate_ms: Mapping[str, float],
        check: Callable[[Contestant], Contestant], rounds: int, turn_ms: float, limit_s: float,
        progress: Tell | None,
    ) -> None:  # fmt: skip
        self.ours, self.rivals, self.seats = list(ours), list(rivals), dict(seats)
        self.prepared, self.rows = dict(prepared), dict(prepared)
        self.estimate_ms, self.check = dict(estimate_ms), check
        self.rounds, self.turn_ms, self.limit_s = rounds, turn_ms, limit_s
        self.progress = progress

    def order(self) -> list[str]:
        """The turns of a round: those of ours, in rotation, with a peer behind each."""
        turns = []
        for number in range(max(len(self.ours), len(self.rivals))):
            turns += [self.ours[number % len(self.ours)], *self.rivals[number : number + 1]]
        return turns

    def play(self, flush: bool, threads: int) -> str:
        """All rounds with warm or flushed caches; comes out: what moved meanwhile, or ''."""
        self.rows = dict(self.prepared)
        order, seen = self.order(), [conditions()]
        for number in range(self.rounds):
            for turn, contestant in enumerate(order):
                self._turn(contestant, order.count(contestant), flush)
                if self.progress is not None:
                    done = number * len(order) + turn + 1
                    self.progress(f'timing {contestant}', done, self.rounds * len(order))
            seen.append(conditions())
        # Once more: threads that race are wrong only sometimes.
        for row in self.rows.values():
            if row.status == 'ok':
                self.rows[row.name] = self.check(row)
        return moved(seen, threads)

    def _turn(self, name: str, turns: int, flush: bool) -> None:
        """Let one contestant, who has `turns` in every round, run for one; the others stand."""
        row = self.rows[name]
        if row.status != 'ok':
            return
        each = max(self.estimate_ms[name], 1e-3)
        calls = min(max(math.ceil(self.turn_ms / each), LEAST_CALLS), MOST_CALLS)
        request = {
            'do': 'time',
            'repeats': math.ceil(FLUSHED_RUNS / (self.rounds * turns)) if flush else calls,
            'warm': max(1, math.ceil(min(WARM_MS, self.turn_ms) / each)),
            'flush': flush,
        }
        try:
            samples = self.seats[name].ask(request, self.limit_s)['samples_ms']
        except PeerError as error:
            # Its process is gone: whoever comes next would find it unprepared.
            self.rows[name] = replace(row, status=error.status, message=error.message)
            self.prepared[name] = self.rows[name]
            return
        self.rows[name] = replace(row, samples_ms=(*row.samples_ms, tuple(samples)))
