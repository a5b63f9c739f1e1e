"""One layer, every contestant: interleaved rounds, each contestant alone; and the table of results.

Goes in: a group, the library of our kernel, peers. Comes out: `LayerResult`, with raw samples.

A round is ours, peer 1, ours, peer 2, ...: each alone, the others stopped (peers.py), so that a
change of clock or load meets all alike. With `flush` the caches are evicted before every call, as
MOpt measured (Sec. 10: 50 runs, mean and 95% interval).

Every answer is checked against the float64 reference before and after it is timed. A contestant
that is missing, fails, crashes, hangs or answers wrong keeps its row, which says so.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright import knobs
from tilewright.bench.peers import OURS, Peer, PeerError, check_names
from tilewright.bench.results import Contestant, LayerResult, Ratio
from tilewright.errors import InputError, SpecError
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.specs import parse_conv
from tilewright.runtime import verify
from tilewright.runtime.measure import conditions, moved

FLUSHED_RUNS = 50
LEAST_CALLS, MOST_CALLS = 3, 500
WARM_MS = 10.0
# A contestant tries its settings for as long as this rate allows, beside the usual limit.
SLOW_FLOPS_PER_S = 1e8


class Arena:
    """The contestants' processes, kept from layer to layer; use it in a `with` statement."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        if threads < 1:
            raise InputError(f'threads is {threads}; at least 1 is needed')
        self.threads = threads
        self.peers = tuple(Peer(name, threads) for name in check_names(names))
        self.ours = Peer(OURS, threads)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in (self.ours, *self.peers):
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
    """Time our kernel and its peers on one layer.

    `algorithm` is the schema of our kernel's schedule: 'outer', 'winograd', ... `peers` are names,
    or an `Arena` whose processes are used again for the next layer. A turn calls
    a contestant for about `turn_ms` (flushed: 50 calls over all rounds). `progress` is told the
    contestant, the turns done and all turns.
    """
    if rounds < 1:
        raise InputError(f'rounds is {rounds}; at least 1 is needed')
    if not isinstance(peers, Arena):
        with Arena(peers, threads or 1) as arena:
            return compare(
                group, ours_library, arena, algorithm=algorithm, rounds=rounds, flush=flush,
                name=name, seed=seed, turn_ms=turn_ms, progress=progress,
            )  # fmt: skip
    if threads not in (None, peers.threads):
        raise InputError(f'threads is {threads}, but the arena was made for {peers.threads}')
    run = _Run(group, ours_library, algorithm, peers, rounds, flush, seed, turn_ms)
    seen = [conditions()]
    order = [p for rival in peers.peers for p in (peers.ours, rival)] or [peers.ours]
    for number in range(rounds):
        for turn, peer in enumerate(order):
            run.turn(peer)
            if progress is not None:
                progress(peer.name, number * len(order) + turn + 1, rounds * len(order))
        seen.append(conditions())
    ours, rivals = run.finish()
    return LayerResult(
        name or group.label, group.label, group.digest, group.flops, peers.threads, rounds, flush,
        seed, ours, rivals, moved(seen, peers.threads),
    )  # fmt: skip


def _is_convolution(group: Group) -> bool:
    with contextlib.suppress(SpecError):
        return parse_conv(group.label).digest == group.digest
    return False


class _Run:
    """The state of one comparison: who still takes part, and the samples so far."""

    def __init__(
        self, group: Group, library: Path, algorithm: str, arena: Arena, rounds: int, flush: bool,
        seed: int, turn_ms: float,
    ) -> None:  # fmt: skip
        if not _is_convolution(group):
            raise InputError(
                f'{group.label} is no convolution in benchdnn notation, which is what the peers '
                f'are given; make the group with conv2d or parse'
            )
        self.group, self.flush, self.turn_ms = group, flush, turn_ms
        arrays = verify.random_arrays(group, seed)
        self.want = reference(group, arrays)
        self.arena = arena
        self.limit_s = knobs.get('time_limit') + group.flops / SLOW_FLOPS_PER_S
        self.flushed_calls = math.ceil(FLUSHED_RUNS / rounds)
        self.estimate_ms: dict[str, float] = {}
        kernel = {'library': str(library), 'algorithm': algorithm}
        self.rows = {arena.ours.name: self._prepare(arena.ours, seed, kernel)} | {
            peer.name: self._prepare(peer, seed, {}) for peer in arena.peers
        }

    def _prepare(self, peer: Peer, seed: int, kernel: dict[str, str]) -> Contestant:
        """Have a contestant choose its settings, and check its answer."""
        request = {
            'do': 'prepare', 'label': self.group.label, 'digest': self.group.digest, 'seed': seed,
            'threads': self.arena.threads, **kernel,
        }  # fmt: skip
        try:
            reply = peer.ask(request, self.limit_s)
        except PeerError as error:
            return Contestant(peer.name, error.status, error.message)
        self.estimate_ms[peer.name] = reply['estimate_ms']
        row = Contestant(
            peer.name,
            versions=tuple(sorted(peer.versions.items())),
            settings=tuple(reply['settings'].items()),
            tried=tuple(reply['tried']),
            algorithm=reply['algorithm'],
            call_overhead_ms=reply['call_overhead_ms'],
        )
        return self._check(peer, row)

    def _check(self, peer: Peer, row: Contestant) -> Contestant:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'answer.npy'
            try:
                peer.ask({'do': 'answer', 'path': str(path)}, self.limit_s)
            except PeerError as error:
                return replace(row, status=error.status, message=error.message)
            verdict = verify.compare(self.group, np.load(path, allow_pickle=False), self.want)
        if not verdict.ok:
            return replace(row, status='wrong', message=verdict.message)
        return replace(row, max_rel_err=max(verdict.max_rel_err, row.max_rel_err or 0.0))

    def turn(self, peer: Peer) -> None:
        """Let one contestant run for one turn; the others are stopped."""
        row = self.rows[peer.name]
        if row.status != 'ok':
            return
        each = max(self.estimate_ms[peer.name], 1e-3)
        calls = min(max(math.ceil(self.turn_ms / each), LEAST_CALLS), MOST_CALLS)
        request = {
            'do': 'time',
            'repeats': self.flushed_calls if self.flush else calls,
            'warm': max(1, math.ceil(min(WARM_MS, self.turn_ms) / each)),
            'flush': self.flush,
        }
        try:
            samples = peer.ask(request, self.limit_s)['samples_ms']
        except PeerError as error:
            self.rows[peer.name] = replace(row, status=error.status, message=error.message)
            return
        self.rows[peer.name] = replace(row, samples_ms=(*row.samples_ms, tuple(samples)))

    def finish(self) -> tuple[Contestant, tuple[Contestant, ...]]:
        """Check every answer once more: threads that race are wrong only sometimes."""
        for peer in (self.arena.ours, *self.arena.peers):
            if self.rows[peer.name].status == 'ok':
                self.rows[peer.name] = self._check(peer, self.rows[peer.name])
        return self.rows[OURS], tuple(self.rows[peer.name] for peer in self.arena.peers)


def geometric_mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def table(results: Sequence[LayerResult], peak_gflops: float | None = None) -> str:
    """Layers as rows: times, our rate, the ratios; then means, algorithms and whatever went wrong.

    `peak_gflops` is the machine's FMA peak at this thread count; with it, our share of it is shown.
    """
    names = list(dict.fromkeys(p.name for r in results for p in r.peers))
    head = ['layer', 'ours ms', 'GFLOP/s', *(['% peak'] if peak_gflops else [])]
    head += [f'{name} ms' for name in names] + ['best peer / ours', 'best direct / ours']
    rows = [head, *(_row(result, names, peak_gflops) for result in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        '  '.join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return '\n'.join([*lines, '', *_notes(results, names)])


def _row(result: LayerResult, names: Sequence[str], peak_gflops: float | None) -> list[str]:
    cells = [result.name, _time(result.ours), f'{result.gflops:.1f}' if result.gflops else '-']
    if peak_gflops:
        cells.append(f'{100 * result.gflops / peak_gflops:.1f}' if result.gflops else '-')
    peers = {peer.name: peer for peer in result.peers}
    cells += [_time(peers[name]) if name in peers else '-' for name in names]
    return [*cells, _ratio(result.best), _ratio(result.best_direct)]


def _time(contestant: Contestant) -> str:
    """Median, with a letter for another family of algorithm; or why there is none."""
    if contestant.median_ms is None:
        return contestant.status
    mark = {'winograd': ' W', 'fft': ' F', '': ' ?'}.get(contestant.family, '')
    return f'{contestant.median_ms:.3f}{mark}'


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return '-'
    return f'{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] {ratio.peer}'


def _notes(results: Sequence[LayerResult], names: Sequence[str]) -> list[str]:
    notes = []
    for title, chosen in (
        ('best peer / ours', [r.best for r in results]),
        ('best direct peer / ours', [r.best_direct for r in results]),
    ):
        values = [ratio.value for ratio in chosen if ratio is not None]
        mean = geometric_mean(values)
        if mean is not None:
            notes.append(
                f'{title}: geometric mean {mean:.3f}, least {min(values):.3f}, over {len(values)} '
                f'of {len(results)} layers'
            )
    notes += _used_notes('ours', '', [(r.name, r.ours) for r in results])
    for name in names:
        notes += _peer_notes(name, results)
    for result in results:
        notes += [f'{result.name}: ours {result.ours.status}: {result.ours.message}'] * (
            not result.ours.ok
        )
        notes += [f'{result.name}: {result.trouble}'] * bool(result.trouble)
    everyone = [c for r in results for c in (r.ours, *r.peers)]
    marks = {c.family for c in everyone if c.ok} & {'winograd', 'fft', ''}
    if marks:
        notes.append('W: Winograd, F: FFT, fewer multiplications than the definition; ?: not known')
    if results:
        caches = 'flushed before every call' if results[0].flush else 'warm'
        notes.append(
            f'{results[0].threads} threads, float32, NCHW in and out, called from Python, weights '
            f'packed ahead by all, caches {caches}, each contestant alone; ratios of medians with '
            f'95% intervals'
        )
    return notes


def _peer_notes(name: str, results: Sequence[LayerResult]) -> list[str]:
    """One line with a peer's version and algorithms, one for each layer on which it failed."""
    rows = [(r.name, p) for r in results for p in r.peers if p.name == name]
    version = next((dict(p.versions).get(name, '') for _, p in rows if p.versions), '')
    lines = _used_notes(name, version, rows)
    failed: dict[tuple[str, str], list[str]] = {}
    for layer, peer in rows:
        if not peer.ok:
            failed.setdefault((peer.status, peer.message), []).append(layer)
    for (status, message), layers in failed.items():
        lines.append(f'{name} {status} on {_some(layers)}: {message}')
    return lines


def _used_notes(name: str, version: str, rows: Sequence[tuple[str, Contestant]]) -> list[str]:
    """A line with the algorithms that a contestant used, if it was timed at all."""
    used: dict[str, list[str]] = {}
    for layer, contestant in rows:
        if contestant.ok:
            used.setdefault(contestant.algorithm or 'unknown', []).append(layer)
    said = '; '.join(f'{algorithm} ({_some(layers)})' for algorithm, layers in used.items())
    return [f'{name} {version}'.rstrip() + f': {said}'] if used else []


def _some(layers: Sequence[str]) -> str:
    return f'{len(layers)} layers' if len(layers) > 4 else ', '.join(layers)
