"""What a comparison of whole networks finds, and its table. Values and text only.

A network's figure is the fastest peer's median over ours: above 1 we are faster. Networks that
cannot be timed keep their row, and networks on which we lose keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import InputError
from tilewright.report.grid import Grid
from tilewright_lab.compare.results import (
    Contestant,
    Ratio,
    failure_notes,
    geometric_mean,
    ratio_of,
    ratio_text,
    some_of,
)

NAMES = {
    'torch': 'PyTorch', 'torch-compile': 'torch.compile', 'onnxruntime': 'ONNX Runtime',
    'openvino': 'OpenVINO', 'ncnn': 'ncnn', 'ncnn-low': 'ncnn low', 'mnn': 'MNN',
    'mnn-low': 'MNN low',
}  # fmt: skip
_PLAIN = ('name', 'batch', 'flops', 'threads', 'rounds', 'seed', 'trouble')


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """One network's comparison. `flops` counts multiplications and additions of convolutions and
    matrix products, None where they are not known; `trouble` says when clock or load moved."""

    name: str
    batch: int
    flops: int | None
    threads: int
    rounds: int
    flush: bool
    seed: int
    ours: Contestant
    peers: tuple[Contestant, ...]
    trouble: str = ''

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """Every peer that was timed, against ours."""
        if not self.ours.ok:
            return ()
        return tuple(ratio_of(self.ours, peer, self.flush) for peer in self.peers if peer.ok)

    @property
    def best(self) -> Ratio | None:
        """The fastest peer against ours: in float32, where ours is, else any."""
        reduced = {peer.name for peer in self.peers if peer.reduced and not self.ours.reduced}
        fair = [ratio for ratio in self.ratios if ratio.peer not in reduced]
        return min(fair, key=lambda ratio: ratio.value, default=None)

    def time_ms(self, contestant: Contestant) -> float | None:
        return contestant.mean_ms if self.flush else contestant.median_ms

    @property
    def gflops(self) -> float | None:
        time_ms = self.time_ms(self.ours)
        return self.flops / time_ms / 1e6 if self.flops and time_ms else None

    def to_json(self) -> dict:
        return {
            **{key: getattr(self, key) for key in _PLAIN},
            'caches': 'flushed' if self.flush else 'warm',
            'figure': 'mean' if self.flush else 'median',
            'gflops_per_s': self.gflops,
            'ours': self.ours.to_json(),
            'peers': [peer.to_json() for peer in self.peers],
            'ratios': [ratio.to_json() for ratio in self.ratios],
            'best': self.best and self.best.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkResult:
        """The inverse of `to_json`; derived figures are derived again."""
        try:
            return cls(
                **{key: data[key] for key in _PLAIN},
                flush=data['caches'] == 'flushed',
                ours=Contestant.from_json(data['ours']),
                peers=tuple(map(Contestant.from_json, data['peers'])),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f'a comparison of networks cannot be read, {error!r}; make it again with '
                f'tilewright bench'
            ) from None


def mean_ratio(results: Sequence[NetworkResult]) -> float | None:
    """Geometric mean of best peer / ours, over the networks that have it."""
    return geometric_mean([result.best.value for result in results if result.best])


def grid(
    results: Sequence[NetworkResult], peak_gflops: float | None = None, *, brief: bool = False
) -> Grid:
    """Networks as rows: our time and rate, the peers' times, best peer / ours.

    `brief` leaves out intervals and writes names in full, for a page.
    """
    peers = list(dict.fromkeys(peer.name for r in results for peer in r.peers))
    rated, share = any(r.flops for r in results), bool(peak_gflops)
    head = ['network', 'ours ms', *['GFLOP/s'] * rated, *['% peak'] * (rated and share)]
    head += [f'{NAMES.get(name, name) if brief else name} ms' for name in peers]
    rows = []
    for result in results:
        cells = [result.name, _time(result, result.ours)]
        rate = result.gflops
        cells += [f'{rate:.1f}' if rate else '-'] * rated
        if rated and peak_gflops:
            cells.append(f'{100 * rate / peak_gflops:.1f}' if rate else '-')
        timed = {peer.name: peer for peer in result.peers}
        cells += [_time(result, timed.get(name)) for name in peers]
        rows.append((*cells, ratio_text(result.best, brief)))
    return Grid((*head, 'best peer / ours'), tuple(rows))


def _time(result: NetworkResult, contestant: Contestant | None) -> str:
    if contestant is None:
        return '-'
    time_ms = result.time_ms(contestant)
    return contestant.status if time_ms is None else f'{time_ms:.2f}'


def table(results: Sequence[NetworkResult], peak_gflops: float | None = None) -> str:
    """The grid as text, then the mean, versions, settings and whatever went wrong."""
    shown = [grid(results, peak_gflops).text(), '']
    if any(result.ours.reduced for result in results):
        shown += [error_grid(results).text(), '']
    return '\n'.join([*shown, *notes(results)])


def error_grid(results: Sequence[NetworkResult]) -> Grid:
    """Networks as rows: how far each contestant is off, as a share of the largest result."""
    peers = list(dict.fromkeys(peer.name for r in results for peer in r.peers))
    rows = []
    for result in results:
        found = {c.name: c.max_rel_err for c in (result.ours, *result.peers)}
        errors = (found.get(name) for name in (result.ours.name, *peers))
        rows.append((result.name, *('-' if e is None else f'{e:.1e}' for e in errors)))
    return Grid(('off by', 'ours', *peers), tuple(rows))


def notes(results: Sequence[NetworkResult]) -> list[str]:
    """What the table does not show."""
    found = []
    mean = mean_ratio(results)
    if mean is not None:
        count = sum(result.best is not None for result in results)
        least = min(result.best.value for result in results if result.best)
        found.append(
            f'best peer / ours: geometric mean {mean:.3f} over {count} networks, least {least:.3f}'
        )
    errors = [r.ours.max_rel_err for r in results if r.ours.max_rel_err is not None]
    if errors:
        found.append(
            f'largest difference from ONNX Runtime {max(errors):.1e} of the largest output'
        )
    for name in dict.fromkeys(peer.name for r in results for peer in r.peers):
        found += _peer_notes(name, results)
    for result in results:
        if not result.ours.ok:
            found.append(f'{result.name}: ours {result.ours.status}: {result.ours.message}')
        found += [f'{result.name}: {result.trouble}'] * bool(result.trouble)
    if results:
        kind = 'less than float32' if results[0].ours.reduced else 'float32'
        caches, figure = ('flushed', 'means') if results[0].flush else ('warm', 'medians')
        found.append(
            f'{results[0].threads} threads, {kind}, batch {results[0].batch}, NCHW in, called '
            f'from Python, weights packed ahead by all, caches {caches}, each contestant alone; '
            f'ratios of {figure} with 95% intervals'
        )
    return found


def _peer_notes(name: str, results: Sequence[NetworkResult]) -> list[str]:
    """A line with a peer's version and the settings it chose, one for each kind of failure."""
    rows = [(r.name, peer) for r in results for peer in r.peers if peer.name == name]
    lines = []
    chosen: dict[str, list[str]] = {}
    for network, peer in rows:
        if peer.ok:
            settings = ', '.join(f'{key} {value}' for key, value in peer.settings)
            chosen.setdefault(settings, []).append(network)
    version = next((f' {v}' for _, p in rows for _, v in p.versions), '')
    off = [peer.max_rel_err for _, peer in rows if peer.reduced and peer.max_rel_err is not None]
    if chosen:
        said = '; '.join(
            f'{text} ({some_of(networks, "networks")})' for text, networks in chosen.items()
        )
        lines.append(f'{name}{version}: {said}')
    if off:
        counted = all(r.ours.reduced for r in results)
        lines.append(
            f'{name} is not float32{"" if counted else ", and not counted as best peer"}: off by '
            f'{max(off):.1e} of the largest output'
        )
    return lines + failure_notes(name, rows, 'networks')
