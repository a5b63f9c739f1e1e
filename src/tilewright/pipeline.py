"""`optimize`: a group and a target in, a plan out. Each target's stages are in targets/.

[spec]                -> tw.parse, tw.conv2d              ops
[Group]               -> optimize  -> [Plan]              targets.cpu.target, targets.gpu.target
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, TypeGuard

from tilewright import targets
from tilewright.errors import InputError
from tilewright.graph.half import half_group
from tilewright.knobs import debug
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine
from tilewright.ops.dtypes import HALVES
from tilewright.ops.group import Group
from tilewright.ops.tiles import ALGORITHMS
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.verify import TOLERANCE
from tilewright.store.records import Store
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.target import Report, Wanted


def optimize(
    group: Group,
    machine: Machine | GpuMachine | str | os.PathLike[str] | None = None,
    top: int = 5,
    measure: bool = True,
    threads: int | None = None,
    *,
    target: str = 'cpu',
    device: str = '',
    trials: int | None = None,
    model: str | None = None,
    prune: str | None = None,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
    dtype: str = 'f32',
    store: Store | None = None,
    seed: int | None = None,
    progress: Report | None = None,
) -> Plan:
    """Find the best schedule of a group: model first, then measure the best predicted.

    target    'cpu'; 'cuda' or 'opencl': a GPU; 'host': GPU kernels on the CPU, slowly, as a
              definition of what they compute.
    machine   None: this host, or the device; a name or a file: plan for a machine that one does not
              have, which takes measure=False.
    device    a GPU by a part of its name; '': the first one.
    top       candidates in the plan, at most.
    measure   False never times anything; the plan is then deterministic.
    trials    candidates that are timed: on a CPU the best predicted ones [top], on a GPU as many as
              a search proposes [32].
    model     what ranks candidates on a GPU: 'analytical', 'auto' (a learned model for the kernels
              that it was seen to order better), 'forest', 'gat' or a file [auto where they are
              timed, else analytical].
    prune     on a GPU, what orders and cuts candidates before any is measured: 'time' [default],
              'bound' or 'pul' (docs/deepcuts.md); the same as model='pul' and 'bound'.
    algorithm 'direct', 'winograd', 'fft', 'strassen', or 'auto': the fastest within the error
              budget.
    max_rel_err  largest error, as a share of the largest output, that an algorithm may have.
    dtype     what inputs, weights and the result are stored as: 'f32'; on a GPU also 'f16' or
              'bf16', with sums in float32 and images that have their channels last: the plan's
              group says how (docs/gpu_half.md).
    store     where records go; None: the user's own store.
    """
    ranking = model or ('auto' if measure or prune else 'analytical')
    wanted = Wanted(
        machine, device, top, trials, measure, threads, ranking, algorithm, max_rel_err, store,
        seed, progress,
    )  # fmt: skip
    group, wanted = asked_of(group, wanted, target, prune, dtype)
    plan = targets.target_of(target).plan(group, wanted)
    for candidate in plan.candidates:
        debug(2, _line(candidate))
    debug(3, f'{group.label}: {plan.best.schedule.to_json()}')
    return plan


def asked_of(
    group: Group, wanted: Wanted, target: str = 'cpu', prune: str | None = None, dtype: str = 'f32'
) -> tuple[Group, Wanted]:
    """The words of `optimize`, checked, as targets take them."""
    if not isinstance(group, Group):
        raise InputError(
            f"group is {group!r}; give what conv2d, matmul or parse('mopt/R2') returns"
        )
    trials, limit = wanted.trials, wanted.max_rel_err
    check_options(wanted.top, wanted.threads, wanted.algorithm, limit, wanted.seed)
    if trials is not None and (not _is_whole(trials) or trials < 1):
        raise InputError(f'trials is {trials!r}; ask for a whole number of candidates, at least 1')
    if prune is not None and target == 'cpu':
        raise InputError(f'prune={prune!r} is for GPU kernels; leave it out')
    group = _stored_as(group, dtype, target)
    ranking = wanted.model if target == 'cpu' else _ranking(group, prune, wanted.model)
    return group, replace(wanted, model=ranking, max_rel_err=float(limit))


def tune_ahead(
    fleet: str,
    groups: Mapping[str, Group],
    machine: Machine,
    store: Store | None = None,
    progress: Report | None = None,
    **words: Any,
) -> None:
    """Measure groups on workers of this host's kind, so that `optimize` finds them in the store."""
    from tilewright.targets.fleet import fleet_at, own_kind, plans

    opened = fleet_at(fleet, 'cpu')
    wanted = Wanted(machine, **words)
    pieces = {name: asked_of(group, wanted) for name, group in groups.items()}
    for _ in plans(opened, own_kind(opened), pieces, store, progress):
        pass


def fleet_kinds(fleet: str, target: str) -> tuple[str, ...]:
    """The kinds of devices that the workers of a fleet have for a target."""
    from tilewright.targets.fleet import fleet_at

    return tuple(fleet_at(fleet, target).kinds())


def optimize_on_fleet(
    fleet: str,
    groups: Mapping[str, Group],
    kinds: Sequence[str],
    *,
    target: str = 'cpu',
    prune: str | None = None,
    dtype: str = 'f32',
    store: Store | None = None,
    progress: Report | None = None,
    **words: Any,
) -> Iterator[tuple[str, Plan]]:
    """`optimize` for many groups on the workers of a fleet, for each of these kinds of devices.

    Comes out: (name, plan), by kinds and in the order of the groups, each as soon as it and those
    before it are there. `words` are those of `optimize`.
    """
    from tilewright.targets.fleet import fleet_at, machine_for, plans

    opened = fleet_at(fleet, target)
    for kind in kinds:
        wanted = Wanted(machine_for(opened, kind), **words)
        pieces = {
            name: asked_of(group, wanted, target, prune, dtype) for name, group in groups.items()
        }
        left, found = list(groups), {}
        for name, plan in plans(opened, kind, pieces, store, progress):
            found[name] = plan
            while left and left[0] in found:
                yield left[0], found[left.pop(0)]


def _stored_as(group: Group, dtype: str, target: str) -> Group:
    """The group whose tensors are of a dtype; refuses one that the target has no kernels for."""
    if dtype == 'f32':
        return group
    if dtype not in HALVES:
        raise InputError(f'dtype is {dtype!r}; choose one of f32, {", ".join(HALVES)}')
    if target == 'cpu' and dtype != 'f16':
        raise InputError(f'dtype={dtype!r} on target cpu; choose a GPU, f16, or f32')
    if not group.is_plain:
        raise InputError(f'{group.label} is not all of float32, so that it cannot be made {dtype}')
    return half_group(group, dtype)


def _ranking(group: Group, prune: str | None, model: str) -> str:
    """What ranks the kernels of a GPU. Learned models know those of float32 alone."""
    from tilewright.model.gpu.estimates import ESTIMATES
    from tilewright.targets.gpu.tuning import model_for

    model = model_for(prune, model)
    if not group.half:
        return model
    if model not in ('analytical', 'auto', *ESTIMATES):
        raise InputError(f'model={model!r} ranks kernels of float32; choose analytical or auto')
    return 'analytical' if model == 'auto' else model


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


def _line(candidate: Candidate) -> str:
    measured = f'{candidate.time_ms:.3f} ms' if candidate.time_ms is not None else 'not measured'
    predicted = 1e3 * candidate.prediction.seconds
    return f'{candidate.schedule.digest}: predicted {predicted:.3f} ms, {measured}'
