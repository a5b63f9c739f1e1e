"""What a comparison finds: contestants with raw samples, ratios with their spread. Values only.

The figure is a ratio of medians. Its interval comes from resampling whole turns (bootstrap, 95%),
with a fixed seed, so that the same samples always give the same interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 1000
# Ways of computing a convolution that do fewer multiplications than its definition.
_OTHER_FAMILIES = {'wino': 'winograd', 'fft': 'fft'}


@dataclass(frozen=True, slots=True)
class Contestant:
    """What one contestant did on one layer.

    status      'ok', or why there is no time: missing, failed, crashed, hung, wrong.
    algorithm   what the library says it used; `family` is direct, winograd, fft, or '' (unknown).
    samples_ms  every timed call, one tuple for each turn.
    """

    name: str
    status: str = 'ok'
    message: str = ''
    versions: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    tried: tuple[dict[str, Any], ...] = ()
    algorithm: str = ''
    call_overhead_ms: float | None = None
    max_rel_err: float | None = None
    samples_ms: tuple[tuple[float, ...], ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == 'ok' and bool(self.samples_ms)

    @property
    def family(self) -> str:
        if not self.algorithm:
            return ''
        lowered = self.algorithm.lower()
        return next((f for part, f in _OTHER_FAMILIES.items() if part in lowered), 'direct')

    @property
    def median_ms(self) -> float | None:
        return _median(self.samples_ms) if self.ok else None

    @property
    def mean_ms(self) -> float | None:
        return float(np.mean(np.concatenate(self.samples_ms))) if self.ok else None

    @property
    def mean_interval_ms(self) -> tuple[float, float] | None:
        """95% interval of the mean, by resampling calls."""
        if not self.ok:
            return None
        calls = np.concatenate(self.samples_ms)
        rng = np.random.default_rng(0)
        means = rng.choice(calls, (RESAMPLES, calls.size)).mean(1)
        return _interval(means)

    def to_json(self) -> dict:
        return {
            'name': self.name,
            'status': self.status,
            'message': self.message,
            'versions': dict(self.versions),
            'settings': dict(self.settings),
            'tried': list(self.tried),
            'algorithm': self.algorithm,
            'family': self.family,
            'call_overhead_ms': self.call_overhead_ms,
            'max_rel_err': self.max_rel_err,
            'median_ms': self.median_ms,
            'mean_ms': self.mean_ms,
            'mean_interval95_ms': self.mean_interval_ms and list(self.mean_interval_ms),
            'samples_ms': [list(turn) for turn in self.samples_ms],
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """A peer's median time over ours, with a 95% interval: above 1 we are faster."""

    peer: str
    value: float
    low: float
    high: float

    def to_json(self) -> dict:
        return {
            'peer': self.peer, 'value': self.value, 'low95': self.low, 'high95': self.high
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One layer's comparison. `trouble` says when clock or load moved during it."""

    name: str
    label: str
    digest: str
    flops: int
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
        return tuple(ratio_of(self.ours, peer) for peer in self.peers if self.ours.ok and peer.ok)

    @property
    def best(self) -> Ratio | None:
        """Against the fastest peer, whatever its algorithm."""
        return min(self.ratios, key=lambda r: r.value, default=None)

    @property
    def best_direct(self) -> Ratio | None:
        """Against the fastest peer that is known to do the same multiplications as we do.

        None when our own kernel is not direct: then no such peer is known.
        """
        if self.ours.family != 'direct':
            return None
        direct = {p.name for p in self.peers if p.family == 'direct'}
        return min(
            (r for r in self.ratios if r.peer in direct), key=lambda r: r.value, default=None
        )

    @property
    def gflops(self) -> float | None:
        """What our kernel reaches, counting the operations of the definition."""
        return None if self.ours.median_ms is None else self.flops / self.ours.median_ms / 1e6

    def to_json(self) -> dict:
        return {
            'name': self.name,
            'label': self.label,
            'digest': self.digest,
            'flops': self.flops,
            'threads': self.threads,
            'rounds': self.rounds,
            'caches': 'flushed' if self.flush else 'warm',
            'seed': self.seed,
            'gflops_per_s': self.gflops,
            'ours': self.ours.to_json(),
            'peers': [peer.to_json() for peer in self.peers],
            'ratios': [ratio.to_json() for ratio in self.ratios],
            'best': self.best and self.best.to_json(),
            'best_direct': self.best_direct and self.best_direct.to_json(),
            'trouble': self.trouble,
        }


def _median(turns: Sequence[Sequence[float]]) -> float:
    return statistics.median(sample for turn in turns for sample in turn)


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def ratio_of(ours: Contestant, peer: Contestant) -> Ratio:
    """Ratio of medians; its interval from resampling rounds, ours and the peer's alike."""
    rng = np.random.default_rng(0)
    value = _median(peer.samples_ms) / _median(ours.samples_ms)

    def resampled(turns: Sequence[Sequence[float]]) -> np.ndarray:
        """Medians of turns drawn with repetition; a turn counts by its own median."""
        medians = np.array([statistics.median(turn) for turn in turns])
        return np.median(rng.choice(medians, (RESAMPLES, len(medians))), axis=1)

    low, high = _interval(resampled(peer.samples_ms) / resampled(ours.samples_ms))
    return Ratio(peer.name, value, min(low, value), max(high, value))
