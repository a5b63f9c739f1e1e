"""How well predicted times order measured ones: loss of performance, rank correlation, noise.

Goes in: the data of a layer, a predicted time for every sample. Comes out: `Evaluation`.

    loss at top-k   t(best of the k best predicted) / t(best measured) - 1      MOpt Sec. 9, Fig. 5
    rank            Spearman's coefficient between predicted and measured times
    spread, noise   interquartile range over median: of all samples' times; of repeats of a sample,
                    the median over samples. Ranks say something where spread > 3 noise.

Losses come from final rounds, in which all that matter took turns. Where a sample was in none (the
model has changed since the data were taken) its own median stands for it, brought to the level of
the final rounds by the median ratio of those samples that were in them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright_lab.figures.collect import covering
from tilewright_lab.figures.dataset import LayerData

TOPS = (1, 2, 5)
RETIMED = 5  # of the best predicted and of the best measured
NOISE_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one layer.

    losses      by k of `TOPS`
    rank        None with fewer than three samples or without any spread
    decided_ms  the times that losses come from, by key
    retimed     whether all of them are from common final rounds
    """

    losses: dict[int, float]
    rank: float | None
    spread: float
    noise: float
    best: str
    best_ms: float
    decided_ms: dict[str, float]
    retimed: bool

    @property
    def tells(self) -> bool:
        """Whether the measured times differ by enough to be ranked."""
        return self.rank is not None and self.spread > NOISE_FACTOR * self.noise


def deciding(layer: LayerData, predicted_s: Mapping[str, float]) -> list[str]:
    """The best predicted and the best measured samples: those that losses depend on."""
    times = layer.times_ms()
    fast = sorted(times, key=lambda key: (times[key], key))[:RETIMED]
    return list(dict.fromkeys([*best_predicted(times, predicted_s)[:RETIMED], *fast]))


def best_predicted(times: Mapping[str, float], predicted_s: Mapping[str, float]) -> list[str]:
    """Samples that have a time, best predicted first."""
    return sorted(times, key=lambda key: (predicted_s[key], key))


def evaluate(layer: LayerData, predicted_s: Mapping[str, float]) -> Evaluation | None:
    """Figures of a layer under predictions, None where no sample was timed."""
    times = layer.times_ms()
    if not times:
        return None
    decided, retimed = decided_times(layer, deciding(layer, predicted_s))
    best = min(decided, key=lambda key: (decided[key], key))
    order = best_predicted(times, predicted_s)
    losses = {k: min(decided[key] for key in order[:k]) / decided[best] - 1 for k in TOPS}
    measured = [times[key] for key in order]
    noises = [n for s in layer.turned.values() if (n := s.noise) is not None]
    return Evaluation(
        losses,
        spearman([predicted_s[key] for key in order], measured),
        relative_spread(measured),
        statistics.median(noises) if noises else 0.0,
        best,
        decided[best],
        decided,
        retimed,
    )


def decided_times(layer: LayerData, keys: Sequence[str]) -> tuple[dict[str, float], bool]:
    """(milliseconds by key, whether all are from common final rounds)."""
    times = layer.times_ms()
    rounds = covering(layer.finals, keys)
    if rounds:
        return {key: _median(rounds, key) for key in keys}, True
    final = {key: _median(layer.finals, key) for key in keys if covering(layer.finals, [key])}
    scale = statistics.median(final[key] / times[key] for key in final) if final else 1.0
    return {key: final.get(key, times[key] * scale) for key in keys}, False


def _median(rounds: Sequence[Mapping[str, tuple[float, ...]]], key: str) -> float:
    return statistics.median(statistics.median(calls[key]) for calls in rounds if key in calls)


def relative_spread(values: Sequence[float]) -> float:
    """Interquartile range over median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method='inclusive')
    return (high - low) / middle


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation; ties share their mean rank. None where it is not defined."""
    first, second = _ranks(a), _ranks(b)
    if len(a) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[places]
