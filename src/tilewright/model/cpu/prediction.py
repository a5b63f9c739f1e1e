"""A predicted time and what it is made of, for any schema; and bounds that nothing can beat.

Goes in: operations, bytes and a machine. Comes out: `Prediction`, which the models of the schemas
fill in (predict.py asks the right one), and seconds of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.machine.machine import Machine
from tilewright.ops.group import Group

MARGIN = 0.9  # share of a cache that tiles may fill


@dataclass(frozen=True, slots=True)
class Boundary:
    """What crosses one boundary of the memory hierarchy, for all threads together."""

    name: str
    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one call, and of everything that it is made of.

    flops_done  operations of the micro-kernels, all threads: those of the algorithm, which may be
                fewer than the definition has
    moved       bytes that this algorithm must move: inputs, constants as it reads them, outputs
    bound_s     no schedule of this algorithm with as many threads is faster (`bound_times`)
    bound_by    the boundary whose compulsory traffic decides, where the parts sum up to less
    labels      what `pack_s` and `store_s` are spent on

    Parts add up; the seconds of a boundary are those that nothing hides.
    """

    seconds: float
    compute_s: float
    pack_s: float
    store_s: float
    fork_s: float
    boundaries: tuple[Boundary, ...]
    bound_s: float
    flops_done: float
    moved: float
    bound_by: str = ''
    labels: tuple[str, str] = ('copying inputs', 'storing results')

    def __post_init__(self) -> None:
        assert self.seconds >= self.bound_s * (1 - 1e-9), (
            f'predicted {self.seconds} s, below the bound of {self.bound_s} s'
        )

    @property
    def limit(self) -> str:
        """The resource that takes longest, or whose compulsory traffic decides."""
        if self.bound_by:
            return self.bound_by
        parts = {'compute': self.compute_s} | {b.name: b.seconds for b in self.boundaries[1:]}
        parts |= dict(zip(self.labels, (self.pack_s, self.store_s), strict=True))
        return max(parts, key=lambda name: parts[name])

    def to_json(self) -> dict:
        return {
            'time_ms': 1e3 * self.seconds,
            'compute_ms': 1e3 * self.compute_s,
            'pack_ms': 1e3 * self.pack_s,
            'store_ms': 1e3 * self.store_s,
            'fork_ms': 1e3 * self.fork_s,
            'bound_ms': 1e3 * self.bound_s,
            'flops_done': self.flops_done,
            'limit': self.limit,
            'boundaries': [
                {'name': b.name, 'bytes': b.bytes, 'time_ms': 1e3 * b.seconds}
                for b in self.boundaries
            ],
        }


def bound_times(flops: float, moved: float, machine: Machine, threads: int) -> dict[str, float]:
    """Seconds that nothing can beat: `flops` at peak ('compute'), `moved` bytes by boundary.

    What is moved crosses every boundary at least once, less what the caches inside it may hold from
    the call before; a boundary inside which everything fits is left out.
    """
    times = {'compute': flops / (1e9 * machine.peak_gflops(threads))}
    for number, cache in enumerate(machine.caches):
        copies = -(-threads // cache.shared_by)
        outside = moved - copies * cache.bytes
        if outside > 0:
            rate = 1e9 * machine.bandwidth_gbps(number + 1, threads)
            times[machine.boundaries[number + 1]] = outside / rate
    return times


def direct_prediction(
    group: Group, machine: Machine, threads: int, inside: tuple[float, float, float],
    boundaries: tuple[Boundary, ...], wasted: float = 0.0,
) -> Prediction:  # fmt: skip
    """What a kernel that computes every product takes: seconds `inside` the cores (micro-kernels,
    copies, stores), those of all boundaries but the first, which is part of them, and the fork.

    wasted   bytes that come from memory beside those that every kernel moves
    """
    compute, pack, store = inside
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    total = (compute + store + pack) + sum(b.seconds for b in boundaries[1:]) + fork
    bounds = bound_times(group.flops, group.compulsory_bytes, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    least = bounds[largest]
    if wasted:
        moved = bound_times(0, group.compulsory_bytes + wasted, machine, threads)
        least = max(least, *moved.values())
    return Prediction(
        max(total, least), compute, pack, store, fork, boundaries, bounds[largest],
        group.flops, group.compulsory_bytes, largest if total < bounds[largest] else '',
    )  # fmt: skip


def lower_bound(group: Group, machine: Machine, threads: int) -> float:
    """Seconds that no direct kernel of this group can beat: every product is computed."""
    seen = machine.multiplying(group.half)
    return max(bound_times(group.flops, group.compulsory_bytes, seen, threads).values())
