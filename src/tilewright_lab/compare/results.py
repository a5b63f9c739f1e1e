"""What a comparison finds: contestants with raw samples, ratios with their spread. Values only.

With warm caches the figure is a ratio of medians; its interval comes from resampling whole turns
(bootstrap, 95%), with a fixed seed, so that the same samples always give the same interval. With
flushed caches it is a ratio of means, resampled by calls, as MOpt reports means (Sec. 10).

Everything here can be written to JSON and read back, so that tables are made from committed files.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.ops.specs import read_layer
from tilewright_lab.compare.kinds import kind_of

Turns = tuple[tuple[float, ...], ...]

RESAMPLES = 1000
# Ways of computing a convolution that do fewer multiplications than its definition.
_OTHER_FAMILIES = {'wino': 'winograd', 'fft': 'fft'}
# Our further kernels: the best direct one, and what the model puts first without any measuring,
# of all algorithms that compete and of the direct one (MOpt-1 of MOpt, Sec. 10).
ROLES = ('direct', 'first', 'direct_first')
_PLAIN = ('name', 'label', 'digest', 'flops', 'threads', 'rounds', 'seed')


def family_of(algorithm: str) -> str:
    """'direct', or what needs fewer multiplications: 'winograd', 'fft'; '' when it is not known."""
    if not algorithm:
        return ''
    lowered = algorithm.lower()
    return next((f for part, f in _OTHER_FAMILIES.items() if part in lowered), 'direct')


@dataclass(frozen=True, slots=True)
class Contestant:
    """What one contestant did on one layer.

    status      'ok', or why there is no time: missing, failed, crashed, hung, wrong.
    algorithm   what the library says it used; `family` is direct, winograd, fft, or '' (unknown).
    tuning_s    seconds of a search by measuring that was needed first, now or in an earlier run.
    samples_ms  every timed call, one tuple for each turn.
    reduced     it computed in less than float32.
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
    tuning_s: float | None = None
    samples_ms: tuple[tuple[float, ...], ...] = ()
    reduced: bool = False

    @property
    def ok(self) -> bool:
        return self.status == 'ok' and bool(self.samples_ms)

    @property
    def family(self) -> str:
        return family_of(self.algorithm)

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
        return _interval(_resampled_means(self.samples_ms, np.random.default_rng(0)))

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
            'tuning_s': self.tuning_s,
            'median_ms': self.median_ms,
            'mean_ms': self.mean_ms,
            'mean_interval95_ms': self.mean_interval_ms and list(self.mean_interval_ms),
            'samples_ms': [list(turn) for turn in self.samples_ms],
            'reduced': self.reduced,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Contestant:
        return cls(
            data['name'],
            data['status'],
            data['message'],
            tuple(data['versions'].items()),
            tuple(data['settings'].items()),
            tuple(data['tried']),
            data['algorithm'],
            data['call_overhead_ms'],
            data['max_rel_err'],
            data.get('tuning_s'),
            tuple(tuple(turn) for turn in data['samples_ms']),
            data.get('reduced', False),
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """A peer's time over ours, with a 95% interval: above 1 we are faster."""

    peer: str
    value: float
    low: float
    high: float

    def to_json(self) -> dict:
        return {
            'peer': self.peer, 'value': self.value, 'low95': self.low, 'high95': self.high
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounds:
    """No kernel can be faster: of the algorithm of our best one, and of the direct algorithm."""

    algorithm_ms: float
    direct_ms: float


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One layer's comparison. `trouble` says when clock or load moved during it.

    `ours` is our best kernel; `others` are further ones of ours that were timed in the same rounds,
    and `roles` says which of `ours` and `others`, by name, is the one of each of `ROLES`. `top` is
    the number of the model's candidates that were measured to choose (MOpt-5: five).
    """

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
    others: tuple[Contestant, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    top: int | None = None
    bounds: Bounds | None = None

    @property
    def kind(self) -> str:
        return kind_of(read_layer(self.label).conv)

    def kernel(self, role: str) -> Contestant | None:
        """Our kernel of a role; None if none was timed. A direct best one is also `direct`."""
        if role == 'direct' and self.ours.family == 'direct':
            return self.ours
        wanted = self.roles.get(role)
        return next((c for c in (self.ours, *self.others) if c.name == wanted), None)

    def time_ms(self, contestant: Contestant | None) -> float | None:
        """The figure of a contestant: its median, or with flushed caches its mean."""
        if contestant is None:
            return None
        return contestant.mean_ms if self.flush else contestant.median_ms

    def gflops_of(self, contestant: Contestant | None) -> float | None:
        """What a contestant reaches, counting the operations of the definition."""
        time_ms = self.time_ms(contestant)
        return None if time_ms is None else self.flops / time_ms / 1e6

    @property
    def gflops(self) -> float | None:
        return self.gflops_of(self.ours)

    def ratios_to(self, ours: Contestant | None) -> tuple[Ratio, ...]:
        """Every peer that was timed, against one of our kernels."""
        if ours is None or not ours.ok:
            return ()
        return tuple(ratio_of(ours, peer, self.flush) for peer in self.peers if peer.ok)

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """Every peer that was timed, against our best kernel."""
        return self.ratios_to(self.ours)

    @property
    def best(self) -> Ratio | None:
        """The fastest peer, whatever its algorithm, against our best kernel."""
        return _least(self.ratios)

    @property
    def best_over_direct(self) -> Ratio | None:
        """The fastest peer, whatever its algorithm, against our best direct kernel."""
        return _least(self.ratios_to(self.kernel('direct')))

    @property
    def best_direct(self) -> Ratio | None:
        """The fastest peer that is known to compute directly, against our best direct kernel."""
        direct = {p.name for p in self.peers if p.family == 'direct'}
        return _least([r for r in self.ratios_to(self.kernel('direct')) if r.peer in direct])

    def to_json(self) -> dict:
        mopt = {
            'top': self.top,
            'mopt1_ms': self.time_ms(self.kernel('direct_first')),
            'mopt_top_ms': self.time_ms(self.kernel('direct')),
            'first_ms': self.time_ms(self.kernel('first')),
            'best_ms': self.time_ms(self.ours),
        }
        return {
            'name': self.name,
            'label': self.label,
            'digest': self.digest,
            'kind': self.kind,
            'flops': self.flops,
            'threads': self.threads,
            'rounds': self.rounds,
            'caches': 'flushed' if self.flush else 'warm',
            'figure': 'mean' if self.flush else 'median',
            'seed': self.seed,
            'gflops_per_s': self.gflops,
            'ours': self.ours.to_json(),
            'others': [kernel.to_json() for kernel in self.others],
            'roles': dict(self.roles),
            'mopt': mopt,
            'bound_ms': self.bounds and self.bounds.direct_ms,
            'algorithm_bound_ms': self.bounds and self.bounds.algorithm_ms,
            'peers': [peer.to_json() for peer in self.peers],
            'ratios': [ratio.to_json() for ratio in self.ratios],
            'best': self.best and self.best.to_json(),
            'best_over_direct': self.best_over_direct and self.best_over_direct.to_json(),
            'best_direct': self.best_direct and self.best_direct.to_json(),
            'trouble': self.trouble,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LayerResult:
        """The inverse of `to_json`; derived figures are derived again."""
        try:
            plain = {key: data[key] for key in _PLAIN}
            bounds = [data.get(key) for key in ('algorithm_bound_ms', 'bound_ms')]
            return cls(
                **plain,
                flush=data['caches'] == 'flushed',
                ours=Contestant.from_json(data['ours']),
                peers=tuple(map(Contestant.from_json, data['peers'])),
                trouble=data['trouble'],
                others=tuple(map(Contestant.from_json, data.get('others', ()))),
                roles=dict(data.get('roles', {})),
                top=data.get('mopt', {}).get('top'),
                bounds=Bounds(*(float(b) for b in bounds if b)) if all(bounds) else None,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f'a comparison cannot be read, {error!r}; make it again with tilewright bench'
            ) from None


def _least(ratios: Sequence[Ratio]) -> Ratio | None:
    return min(ratios, key=lambda r: r.value, default=None)


def geometric_mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def means(results: Sequence[LayerResult]) -> dict[str, float | None]:
    """Geometric means of the three ratios, over the layers that have them."""

    def mean(ratios: Sequence[Ratio | None]) -> float | None:
        return geometric_mean([ratio.value for ratio in ratios if ratio])

    return {
        'best_peer_over_ours': mean([r.best for r in results]),
        'best_peer_over_ours_direct': mean([r.best_over_direct for r in results]),
        'best_direct_peer_over_ours': mean([r.best_direct for r in results]),
    }


def _median(turns: Sequence[Sequence[float]]) -> float:
    return statistics.median(chain.from_iterable(turns))


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _resampled_means(turns: Sequence[Sequence[float]], rng: np.random.Generator) -> np.ndarray:
    """Means of calls drawn with repetition."""
    calls = np.concatenate([np.asarray(turn) for turn in turns])
    return rng.choice(calls, (RESAMPLES, calls.size)).mean(1)


def _resampled_medians(turns: Sequence[Sequence[float]], rng: np.random.Generator) -> np.ndarray:
    """Medians of turns drawn with repetition; a turn counts by its own median."""
    medians = np.array([statistics.median(turn) for turn in turns])
    return np.median(rng.choice(medians, (RESAMPLES, len(medians))), axis=1)


def ratio_text(ratio: Ratio | None, brief: bool) -> str:
    """A cell of a table: the ratio and, unless it is brief, its interval and the peer."""
    if ratio is None:
        return '-'
    if brief:
        return f'{ratio.value:.2f}'
    return f'{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] {ratio.peer}'


def some_of(names: Sequence[str], what: str) -> str:
    """A few names, or how many of `what` they are."""
    return f'{len(names)} {what}' if len(names) > 4 else ', '.join(names)


def failure_notes(name: str, rows: Sequence[tuple[str, Contestant]], what: str) -> list[str]:
    """A line for each kind of failure of a peer, with the layers or networks that it failed on."""
    failed: dict[tuple[str, str], list[str]] = {}
    for where, peer in rows:
        if not peer.ok:
            failed.setdefault((peer.status, peer.message), []).append(where)
    return [
        f'{name} {status} on {some_of(places, what)}: {message}'
        for (status, message), places in failed.items()
    ]


def ratio_of(ours: Contestant, peer: Contestant, flush: bool = False) -> Ratio:
    """Ratio of medians, or of means with flushed caches, and its interval; both must be ok."""
    value, low, high = _ratio(ours.samples_ms, peer.samples_ms, flush)
    return Ratio(peer.name, value, min(low, value), max(high, value))


# A table asks for the same ratio half a dozen times, and each takes a thousand resamplings.
@lru_cache(maxsize=4096)
def _ratio(ours: Turns, peer: Turns, flush: bool) -> tuple[float, float, float]:
    """(peer over ours, and the ends of its interval)"""
    rng = np.random.default_rng(0)
    if flush:
        resampled = _resampled_means
        value = float(np.mean(np.concatenate(peer))) / float(np.mean(np.concatenate(ours)))
    else:
        resampled = _resampled_medians
        value = _median(peer) / _median(ours)
    return value, *_interval(resampled(peer, rng) / resampled(ours, rng))
