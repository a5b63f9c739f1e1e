"""Which algorithms compete: the direct one and, where it applies within the error budget, Winograd.

Goes in: a group, a machine, an algorithm's name, an error budget. Comes out: candidates of all
algorithms that compete, best predicted first.
"""

from __future__ import annotations

from tilewright.errors import InputError
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.winograd import ALGORITHMS, applies
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate, rank, rank_general
from tilewright.search.cpu.rank_stencil import rank_stencil
from tilewright.search.cpu.rank_winograd import SIZES, rank_winograd


def choose(
    group: Group,
    machine: Machine,
    threads: int,
    top: int,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
) -> tuple[Candidate, ...]:
    """At most `top` candidates; with 'auto' the best of every algorithm that applies is kept."""
    if algorithm not in ALGORITHMS:
        raise InputError(
            f'algorithm {algorithm!r} is not known; choose one of {", ".join(ALGORITHMS)}'
        )
    if not max_rel_err > 0:
        raise InputError(f'max_rel_err is {max_rel_err}; it must be positive, such as 1e-4')
    if not _has_products(group):
        if algorithm == 'winograd':
            raise InputError(_why_not(group, max_rel_err))
        return rank_general(group, machine, threads)
    if algorithm == 'direct':
        return rank_direct(group, machine, threads, top)
    fast = rank_winograd(group, machine, threads, top, max_rel_err)
    if algorithm == 'winograd':
        if not fast:
            raise InputError(_why_not(group, max_rel_err))
        return fast
    direct = rank_direct(group, machine, threads, top)
    # Each is in order, and knows better than a digest what comes first where times are equal.
    both = sorted((*direct, *fast), key=lambda c: c.prediction.seconds)
    kept = both[:top]
    for best in (direct[:1], fast[:1]):
        if top > 1 and best and best[0] not in kept:
            kept[-1] = best[0]
    return tuple(kept)


def choose_preferred(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """Winograd alone where it applies within the error budget, else the direct algorithm."""
    if _has_products(group):
        found = rank_winograd(group, machine, threads, top, max_rel_err)
        if found:
            return found
    return choose(group, machine, threads, top, 'direct', max_rel_err)


def _has_products(group: Group) -> bool:
    """Whether it is a sum of products with an epilogue: what other schemas are for."""
    return group.is_plain and group.main.is_product_sum and parts(group) == (group,)


def rank_direct(group: Group, machine: Machine, threads: int, top: int) -> tuple[Candidate, ...]:
    """At most `top` candidates of the direct algorithm, whatever their schema.

    The general schema leaves everything to the compiler, which no model foresees: it serves where
    no other schema applies.
    """
    plain, sliding = rank(group, machine, threads, top), rank_stencil(group, machine, threads, top)
    if sliding:
        plain = tuple(c for c in plain if c.schedule.schema != 'general')
    return tuple(sorted((*plain, *sliding), key=lambda c: c.prediction.seconds)[:top])


def _why_not(group: Group, max_rel_err: float) -> str:
    reasons = {applies(group, m) for m in SIZES} - {''}
    if reasons:
        return f'Winograd cannot be used: {sorted(reasons)[0]}; use --algorithm direct or auto'
    return (
        f'no Winograd algorithm for {group.label} stays below an error of {max_rel_err:g}; allow '
        f'more with --max-rel-err, or use --algorithm direct'
    )
