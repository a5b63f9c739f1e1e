"""One layer, every contestant: interleaved rounds, each contestant alone.

Goes in: a group, the libraries of our kernels, peers. Comes out: `LayerResult`, with raw samples.

Rounds are interleaved (rounds.py). Where several kernels of ours take part (the best one, the best
direct one, the model's first choice), they take turns in the places of ours. With `flush` the
caches are evicted before every call, as MOpt measured (Sec. 10: 50 runs, mean and 95% interval).

Every answer is checked against the float64 reference before and after it is timed. A contestant
that is missing, fails, crashes, hangs or answers wrong keeps its row, which says so.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import knobs
from tilewright.errors import InputError, SpecError
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.specs import parse_conv
from tilewright.runtime import verify
from tilewright.runtime.callable import made_of
from tilewright_lab.compare.results import Contestant, LayerResult
from tilewright_lab.compare.rounds import Rounds
from tilewright_lab.peers.contestants import OURS, layer_arrays, table_of
from tilewright_lab.peers.peers import Peer, PeerError, check_names

# A contestant tries its settings for as long as this rate allows, beside the usual limit.
SLOW_FLOPS_PER_S = 1e8
# A peer that tunes shows signs of life after every batch of trials, which takes minutes.
TUNING_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of ours: its library, the schema and digest of its schedule, the roles it plays."""

    library: Path
    algorithm: str
    schedule: str = ''
    roles: tuple[str, ...] = ()


class Arena:
    """The contestants' processes, kept from layer to layer; use it in a `with` statement.

    `options` has, by peer, what its process is told with every layer: TVM's trials, say.
    """

    def __init__(
        self,
        names: Sequence[str],
        threads: int,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if threads < 1:
            raise InputError(f'threads is {threads}; at least 1 is needed')
        self.threads = threads
        self.options = dict(options or {})
        self.peers = tuple(Peer(name, threads) for name in check_names(names))
        self.ours = Peer(OURS, threads)
        self.others: list[Peer] = []

    def other(self, number: int) -> Peer:
        """The process of a further kernel of ours."""
        while len(self.others) <= number:
            self.others.append(Peer(OURS, self.threads))
        return self.others[number]

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in (self.ours, *self.others, *self.peers):
            peer.close()


def compare(
    group: Group,
    ours_library: Path,
    peers: Sequence[str] | Arena,
    *,
    algorithm: str,
    threads: int | None = None,
    rounds: int = 7,
    flush: bool = False,
    name: str = '',
    seed: int = 0,
    turn_ms: float = 100.0,
    progress: Callable[[str, int, int], object] | None = None,
) -> LayerResult:
    """Time one kernel of ours and its peers on one layer.

    `algorithm` is the schema of our kernel's schedule: 'outer', 'winograd', ... `peers` are names,
    or an `Arena` whose processes are used again for the next layer.
    """
    if not isinstance(peers, Arena):
        with Arena(peers, threads or 1) as arena:
            return compare(
                group, ours_library, arena, algorithm=algorithm, rounds=rounds, flush=flush,
                name=name, seed=seed, turn_ms=turn_ms, progress=progress,
            )  # fmt: skip
    if threads not in (None, peers.threads):
        raise InputError(f'threads is {threads}, but the arena was made for {peers.threads}')
    (result,) = compare_kernels(
        group, (Entry(ours_library, algorithm),), peers, caches=('flushed' if flush else 'warm',),
        rounds=rounds, name=name, seed=seed, turn_ms=turn_ms, progress=progress,
    )  # fmt: skip
    return result


def compare_kernels(
    group: Group,
    entries: Sequence[Entry],
    arena: Arena,
    *,
    caches: Sequence[str] = ('warm',),
    rounds: int = 7,
    name: str = '',
    seed: int = 0,
    turn_ms: float = 100.0,
    progress: Callable[[str, int, int], object] | None = None,
) -> tuple[LayerResult, ...]:
    """Time kernels of ours, the best one first, and the arena's peers on one layer.

    Comes out: a result for each of `caches` ('warm', 'flushed'), from contestants that are prepared
    once. A turn calls a contestant for about `turn_ms` (flushed: 50 calls over all rounds).
    `progress` is told what is done, the steps done and all steps.
    """
    if rounds < 1:
        raise InputError(f'rounds is {rounds}; at least 1 is needed')
    run = _Run(group, entries, arena, rounds, seed, turn_ms, progress)
    return tuple(run.result(mode == 'flushed', name or group.label) for mode in caches)


def _is_convolution(group: Group) -> bool:
    with contextlib.suppress(SpecError):
        return parse_conv(group.label).digest == group.digest
    return False


class _Run:
    """The state of one layer: who takes part, prepared and checked, and the samples so far."""

    def __init__(
        self, group: Group, entries: Sequence[Entry], arena: Arena, rounds: int, seed: int,
        turn_ms: float, progress: Callable[[str, int, int], object] | None,
    ) -> None:  # fmt: skip
        if not _is_convolution(group):
            raise InputError(
                f'{group.label} is not a convolution in benchdnn notation, which is what the peers '
                f'are given; make the group with conv1d, conv2d, conv3d or parse'
            )
        self.group, self.arena, self.seed, self.progress = group, arena, seed, progress
        self.want = reference(group, made_of(group, layer_arrays(group, seed)))
        self.limit_s = knobs.get('time_limit') + group.flops / SLOW_FLOPS_PER_S
        self.estimate_ms: dict[str, float] = {}
        best, *others = entries
        self.kernels = {OURS: best} | {f'{OURS}:{e.roles[0]}': e for e in others}
        self.seats: dict[str, Peer] = {OURS: arena.ours}
        self.seats |= {n: arena.other(i) for i, n in enumerate(list(self.kernels)[1:])}
        self.seats |= {peer.name: peer for peer in arena.peers}
        self.rounds = Rounds(
            list(self.kernels), [peer.name for peer in arena.peers], self.seats,
            prepared={name: self._prepare(name) for name in self.seats},
            estimate_ms=self.estimate_ms, check=self._check, rounds=rounds, turn_ms=turn_ms,
            limit_s=self.limit_s, progress=progress,
        )  # fmt: skip

    def _prepare(self, name: str) -> Contestant:
        """Have a contestant choose its settings, and check its answer."""
        request: dict[str, Any] = {
            'do': 'prepare', 'label': self.group.label, 'digest': self.group.digest,
            'seed': self.seed, 'threads': self.arena.threads,
        }  # fmt: skip
        entry, peer = self.kernels.get(name), self.seats[name]
        if entry is not None:
            request |= {'library': str(entry.library), 'algorithm': entry.algorithm}
        if name in self.arena.options:
            request['options'] = dict(self.arena.options[name])
        row = table_of().get(name)
        limit_s = TUNING_LIMIT_S if row is not None and row.tuned else self.limit_s
        try:
            reply = peer.ask(request, limit_s, self.progress)
        except PeerError as error:
            return Contestant(name, error.status, error.message)
        self.estimate_ms[name] = reply['estimate_ms']
        settings = reply['settings'] | peer.limits
        if entry is not None and entry.schedule:
            settings |= {'schedule': entry.schedule}
        row = Contestant(
            name,
            versions=tuple(sorted(peer.versions.items())),
            settings=tuple(settings.items()),
            tried=tuple(reply['tried']),
            algorithm=reply['algorithm'],
            call_overhead_ms=reply['call_overhead_ms'],
            tuning_s=reply.get('tuning_s'),
        )
        return self._check(row)

    def _check(self, row: Contestant) -> Contestant:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'answer.npy'
            try:
                self.seats[row.name].ask({'do': 'answer', 'path': str(path)}, self.limit_s)
            except PeerError as error:
                return replace(row, status=error.status, message=error.message)
            verdict = verify.compare(self.group, np.load(path, allow_pickle=False), self.want)
        if not verdict.ok:
            return replace(row, status='wrong', message=verdict.message)
        return replace(row, max_rel_err=max(verdict.max_rel_err, row.max_rel_err or 0.0))

    def result(self, flush: bool, name: str) -> LayerResult:
        """All rounds with warm or with flushed caches."""
        trouble = self.rounds.play(flush, self.arena.threads)
        rows = self.rounds.rows
        roles = {role: n for n, entry in self.kernels.items() for role in entry.roles}
        others = [rows[n] for n in self.kernels if n != OURS]
        rivals = [rows[peer.name] for peer in self.arena.peers]
        return LayerResult(
            name, self.group.label, self.group.digest, self.group.flops, self.arena.threads,
            self.rounds.rounds, flush, self.seed, rows[OURS], tuple(rivals), trouble,
            tuple(others), roles,
        )  # fmt: skip
