"""The stages of work, in order. Nobody else imports every part.

[spec]                -> tw.parse, tw.conv2d              ops, bench.suites
[Group]               -> choose    -> [Candidate]         search.choose (model, schedule)
[Candidate]           -> generate  -> [C source]          codegen
[C source]            -> build     -> [library]           runtime.build
[library]             -> check, time -> [Measurement]     runtime.measure, in a worker
[Measurement]         -> put       -> [Record]            store
[Candidate, measured] -> finals    -> [Plan]              plan
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import TypeGuard

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schema import is_shipped
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.ops.group import Group
from tilewright.ops.winograd import ALGORITHMS
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.plan import Candidate, Plan
from tilewright.runtime.measure import Measurement, Progress, finalists, measure_all
from tilewright.runtime.verify import TOLERANCE
from tilewright.runtime.worker import Worker
from tilewright.search.cpu.choose import choose
from tilewright.store.records import Record, Store, Validators, open_store

ROUNDS = 5


def optimize(
    group: Group,
    machine: Machine | str | os.PathLike[str] | None = None,
    top: int = 5,
    measure: bool = True,
    threads: int | None = None,
    *,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
    store: Store | None = None,
    seed: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Plan:
    """Find the best schedule of a group: model first, then measure the few best predicted.

    machine   None: this host; a name or a file: plan for a machine that one does not have.
    measure   False never times anything; the plan is then deterministic.
    algorithm 'direct', 'winograd', or 'auto': whatever is fastest within the error budget.
    max_rel_err  largest error, as a share of the largest output, that an algorithm may have.
    store     where records go; None: the user's own store.
    """
    if not isinstance(group, Group):
        raise InputError(
            f"group is {group!r}; give what conv2d, matmul or parse('mopt/R2') returns"
        )
    if not isinstance(machine, Machine | str | os.PathLike | None):
        raise InputError(
            f'machine is {machine!r}; give a Machine, the name of one, the path of a .json file, '
            f'or None for this host'
        )
    check_options(top, threads, algorithm, max_rel_err, seed)
    target, warning = _machine(machine, measure)
    count = thread_count(threads, target)
    begin = time.perf_counter()
    # [Group] -> [Candidate]
    ranked = choose(group, target, count, top, algorithm, max_rel_err)
    debug(1, f'{group.label}: ranked {len(ranked)} in {time.perf_counter() - begin:.2f} s')
    candidates = tuple(Candidate(c.schedule, c.prediction) for c in ranked)
    bound = min((c.solver_bound_s for c in ranked if c.solver_bound_s), default=0.0)
    warnings = [warning] if warning else []
    if measure:
        candidates, trouble = _measured(
            group, target, count, candidates, max_rel_err, store, seed, progress
        )
        warnings += trouble
    for candidate in candidates:
        debug(2, _line(candidate))
    debug(3, f'{group.label}: {candidates[0].schedule.to_json()}')
    return Plan(group, target, count, candidates, bound, tuple(warnings), float(max_rel_err))


def check_options(
    top: object = 1,
    threads: object = None,
    algorithm: object = 'auto',
    max_rel_err: object = DEFAULT_LIMIT,
    seed: object = None,
) -> None:
    """Refuse what cannot be meant on any machine, before any work is done."""
    if not _is_whole(top) or top < 1:
        raise InputError(f'top={top!r}; ask for a whole number of candidates, at least 1')
    if threads is not None and (not _is_whole(threads) or threads < 1):
        raise InputError(f'threads is {threads!r}; ask for a whole number, at least 1')
    if algorithm not in ALGORITHMS:
        raise InputError(
            f'algorithm {algorithm!r} is not known; choose one of {", ".join(ALGORITHMS)}'
        )
    # Kernels that differ by more than the verifier allows are wrong, whatever the budget.
    most = TOLERANCE['f32']
    if isinstance(max_rel_err, bool) or not isinstance(max_rel_err, Real):
        raise InputError(f'max_rel_err is {max_rel_err!r}; give a number, such as {DEFAULT_LIMIT}')
    if not 0 < float(max_rel_err) <= most:
        raise InputError(
            f'max_rel_err is {max_rel_err}; it must be positive and at most {most:g}, the '
            f'tolerance that every kernel is verified to, such as {DEFAULT_LIMIT}'
        )
    if seed is not None and (not _is_whole(seed) or seed < 0):
        raise InputError(f'seed is {seed!r}; give a whole number, at least 0')


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _machine(
    machine: Machine | str | os.PathLike[str] | None, measure: bool
) -> tuple[Machine, str | None]:
    target, warning = (
        (machine, None) if isinstance(machine, Machine) else load_machine(machine, measure=measure)
    )
    if measure and target.isa not in host_isas():
        raise InputError(
            f'machine {target.name} has {target.isa}, which this host cannot run; plan for it with '
            f'measure=False (--no-measure)'
        )
    return target, warning


def thread_count(threads: int | None, machine: Machine) -> int:
    """The threads that are asked for, here or in the environment, or all there are."""
    count = threads if threads is not None else knobs.get('threads') or machine.cores
    if not 1 <= count <= machine.cores:
        raise InputError(
            f'threads is {count}; {machine.name} has {machine.cores} usable cores: '
            f'ask for 1 to {machine.cores}'
        )
    return count


def _builder(group: Group, candidate: Candidate) -> Callable[[], Path]:
    def make() -> Path:
        source = generate(group, candidate.schedule)  # [Schedule] -> [C source]
        debug(4, source)
        return build(source, compiler_flags(candidate.schedule))  # [C source] -> [library]

    return make


def _measured(
    group: Group,
    machine: Machine,
    threads: int,
    candidates: tuple[Candidate, ...],
    max_rel_err: float,
    store: Store | None,
    seed: int | None,
    progress: Callable[[Progress], object] | None,
) -> tuple[tuple[Candidate, ...], list[str]]:
    """Build, check, time and remember every candidate; the winner of the finals comes first."""
    by_key = {c.schedule.digest: c for c in candidates}
    builders = {key: _builder(group, c) for key, c in by_key.items()}
    validators = Validators.current(machine.fingerprint or machine.name)
    own = store is None
    records = open_store() if store is None else store

    def remember(measurement: Measurement) -> None:  # [Measurement] -> [Record]
        chosen = by_key[measurement.key]
        records.put(
            Record(
                group.digest, group.label, chosen.schedule.to_json(), measurement.key, threads,
                validators, measurement, chosen.prediction.to_json(),
            )
        )  # fmt: skip

    try:
        kept = records.known(group.digest, threads, validators)
        # What was registered may have been something else when it was measured.
        known = {k: m for k, m in kept.items() if k not in by_key or is_shipped(by_key[k].schedule)}
        with Worker(seed=seed) as worker:
            results = measure_all(
                group, list(builders.items()), worker=worker, rounds=ROUNDS, threads=threads,
                known=known, record=remember, progress=progress,
            )  # fmt: skip
            results = [_within(m, max_rel_err) for m in results]
            final = finalists(
                group, results, builders, worker=worker, threads=threads, record=remember
            )
    finally:
        if own:
            records.close()
    failures = {m.key: m for m in final.failures}
    measured = [
        Candidate(c.schedule, c.prediction, failures.get(m.key, m))
        for c, m in zip(candidates, results, strict=True)
    ]

    def place(candidate: Candidate) -> tuple[bool, float]:
        first = candidate.schedule.digest == final.best
        return not first, candidate.time_ms if candidate.time_ms is not None else float('inf')

    return tuple(sorted(measured, key=place)), [final.trouble] if final.trouble else []


def _within(measurement: Measurement, max_rel_err: float) -> Measurement:
    """A measurement whose error exceeds the budget counts as wrong, for this run."""
    error = measurement.max_rel_err
    if not measurement.ok or error is None or error <= max_rel_err:
        return measurement
    return replace(
        measurement,
        status='wrong',
        message=f'its error of {error:.1e} exceeds the budget of {max_rel_err:g}',
    )


def _line(candidate: Candidate) -> str:
    measured = f'{candidate.time_ms:.3f} ms' if candidate.time_ms is not None else 'not measured'
    predicted = 1e3 * candidate.prediction.seconds
    return f'{candidate.schedule.digest}: predicted {predicted:.3f} ms, {measured}'


def debug(level: int, text: str) -> None:
    """Print to standard error when TILEWRIGHT_DEBUG asks for this level."""
    if knobs.get('debug') >= level:
        print(f'tilewright: {text}', file=sys.stderr)
