"""Where to cut a range off so that 8 bits lose the least information.

Goes in: a histogram of the magnitudes of a value. Comes out: the largest magnitude to keep. Source:
S. Migacz, "8-bit Inference with TensorRT", GTC 2017: of all thresholds t the one with the least
divergence KL(P || Q), P what was seen with all beyond t put at t, Q the part within t rounded to
the levels that a stored number has. The first bin stands for its neighbour, as NVIDIA's own code
has it: activations that cut off make zeros of half of all numbers, and a zero is exact.
"""

from __future__ import annotations

import numpy as np

SEEN = 500  # numbers of a bin, on average: a divergence of fewer is one of chance
MOST_THRESHOLDS = 128


def threshold(counts: np.ndarray, edges: np.ndarray, levels: int) -> float:
    """[counts of bins from 0 on, their edges, levels from 0 to the largest] -> the magnitude"""
    counts = counts.astype(np.float64)
    counts[0] = counts[1]
    while counts.size % 2 == 0 and counts.size > 2 * levels and counts.sum() < SEEN * counts.size:
        counts, edges = counts.reshape(-1, 2).sum(1), edges[::2]
    least = min(levels, counts.size)
    step = max(1, (counts.size - least) // MOST_THRESHOLDS)
    ends = range(counts.size, least - 1, -step)
    found = [_divergence(counts, end, levels) for end in ends]
    return float(edges[ends[int(np.argmin(found))]])


def _divergence(counts: np.ndarray, end: int, levels: int) -> float:
    """KL(P || Q) for the first `end` bins; infinite where Q is 0 and P is not."""
    inside = counts[:end]
    reference = inside.copy()
    reference[-1] += counts[end:].sum()
    level = np.arange(end) * levels // end
    taken = inside > 0
    sums = np.bincount(level, inside, levels)
    shares = sums / np.maximum(np.bincount(level, taken, levels), 1)
    rounded = np.where(taken, shares[level], 0.0)
    seen = reference > 0
    if not rounded[seen].all() or not seen.any():
        return np.inf
    p, q = reference[seen] / reference.sum(), rounded[seen] / rounded.sum()
    return float((p * np.log(p / q)).sum())
