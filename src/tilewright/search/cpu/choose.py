"""Which algorithms compete: the direct one and, within the error budget, Winograd and FFT.

Goes in: a group, a machine, an algorithm's name, an error budget. Comes out: candidates of all
algorithms that compete, best predicted first.
"""

from __future__ import annotations

from tilewright.errors import InputError
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.ops.tiles import ALGORITHMS, algorithm_title
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate, keep_best, rank

NEAR = 1.2  # times the best predicted time: what a measurement may put first


def choose(
    group: Group,
    machine: Machine,
    threads: int,
    top: int,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
) -> tuple[Candidate, ...]:
    """At most `top` candidates; with 'auto' the best of every algorithm that applies is kept, and
    the second of each that is predicted to be nearly as fast as the first of all: further ones
    often differ in little.
    """
    if algorithm not in ALGORITHMS:
        raise InputError(
            f'algorithm {algorithm!r} is not known; choose one of {", ".join(ALGORITHMS)}'
        )
    if not max_rel_err > 0:
        raise InputError(f'max_rel_err is {max_rel_err}; it must be positive, such as 1e-4')
    if algorithm != 'auto':
        found = rank(group, machine, threads, top, algorithm, max_rel_err)
        if not found:
            raise InputError(_why_not(group, algorithm, max_rel_err))
        return found
    each = [rank(group, machine, threads, top, name, max_rel_err) for name in ALGORITHMS[1:]]
    ranked = sorted((c for found in each for c in found), key=lambda c: c.prediction.seconds)
    near = NEAR * ranked[0].prediction.seconds if ranked else 0.0
    best = [found[0] for found in each if found]
    best += [c for found in each for c in found[1:2] if c.prediction.seconds <= near]
    return keep_best(ranked, best, top)


def choose_preferred(
    group: Group, machine: Machine, threads: int, top: int, algorithm: str,
    max_rel_err: float = DEFAULT_LIMIT,
) -> tuple[Candidate, ...]:  # fmt: skip
    """One algorithm alone where it applies within the error budget, else the direct one."""
    found = rank(group, machine, threads, top, algorithm, max_rel_err)
    return found or choose(group, machine, threads, top, 'direct', max_rel_err)


def _why_not(group: Group, algorithm: str, max_rel_err: float) -> str:
    name = algorithm_title(algorithm)
    reasons = [s.why_not(group) for s in SCHEMAS.values() if s.algorithm == algorithm]
    if all(reasons):
        return f'{name} cannot be used: {reasons[0]}; use --algorithm direct or auto'
    return (
        f'no {name} algorithm for {group.label} stays below an error of {max_rel_err:g}; allow '
        f'more with --max-rel-err, or use --algorithm direct'
    )
