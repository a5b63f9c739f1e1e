"""What is proved of a plan, as JSON that tilewright/certificate.py checks without the solver.

Goes in: a plan. Comes out: the lower bound with what it rests on, the gap above it and what that is
made of, and, where tile sizes were solved for, the dual that proves them best (docs/report.md says
what each claim means). Counts are made here from the package's own values, there from the JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import certificate
from tilewright.errors import InputError, MissingError
from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine
from tilewright.model.gpu.bounds import compute_gflops
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.integer import is_integer_products
from tilewright.ops.stage import Access, Stage
from tilewright.report.network import predicted_parts
from tilewright.search.cpu.rank_outer import Shape, Tiling
from tilewright.search.cpu.solver import dual

if TYPE_CHECKING:
    from tilewright.targets.plan import Plan

# What multiplies float32 on a GPU, and what halves.
_SINGLE = ('fma', 'mma_tf32x3', 'wgmma_tf32x3', 'wgmma_tf32_bf16')
_HALF = ('fma', 'mma_half', 'wgmma_half')


def certificate_of(plan: Plan) -> dict[str, Any]:
    """[Plan] -> [certificate], sealed."""
    assumes = _assumptions(plan)
    group = plan.group
    needed = group.flops // max(group.main.points, 1) * _needed_points(group)
    words = _touched(group)
    work = {
        'operations': group.flops,
        'needed': needed,
        'algorithm': _operations(plan, needed),
        'words': words,
        'bytes': sum(DTYPES[group.tensor(name).dtype] * n for name, n in words.items()),
    }
    bound = _bound(plan, work, assumes)
    return certificate.seal(
        {
            'format': certificate.FORMAT,
            'kind': certificate.KIND,
            'label': group.label,
            'assumes': assumes,
            'group': group.to_json(),
            'schedule': plan.best.schedule.to_json(),
            'work': work,
            'bound': bound,
            **_gap(plan, bound),
            'movement': _movement(plan) if plan.target == 'cpu' else None,
        }
    )


def certificate_text(data: Mapping[str, Any]) -> str:
    """The certificate in words."""
    bound, time, gap = data['bound'], data['time'], data['gap']
    parts = ', '.join(f'{_us(s)} {name}' for name, s in gap['parts_s'] if abs(s) >= 5e-9)
    lines = [
        f'{data["label"]} on {data["assumes"]["machine"]["name"]}',
        f'  bound {_us(bound["seconds"])} by {bound["by"]}, {time["kind"]} {_us(time["seconds"])}: '
        f'{gap["share"]:.1%} of the time lies above the bound',
        f'  made of {parts or "nothing"}',
    ]
    move = data['movement']
    if move:
        near = move['attained_s'] / move['bound_s'] - 1
        lines.append(
            f'  tiles for its loop orders are optimal within {near:.1e}: {_us(move["attained_s"])} '
            f'of data movement under the model, none below {_us(move["bound_s"])}'
        )
    return '\n'.join([*lines, *(f'  assumes: {said}' for said in data['assumes']['says'])])


def _us(seconds: float) -> str:
    return f'{1e6 * seconds:.2f} us'


def _algorithm(plan: Plan) -> dict[str, Any]:
    best = plan.best.schedule
    if plan.target == 'cpu':
        name, options = SCHEMAS[best.schema].algorithm, dict(best.options)
    else:
        name = best.schema if best.schema in ('winograd', 'fft') else 'direct'
        options = dict(best.tiles)
    if name == 'direct':
        return {'name': name, 'tile': None}
    if name == 'strassen':
        return {'name': name, 'tile': None, 'levels': options['levels']}
    return {'name': name, 'tile': [options['m'], options.get('mw', options['m'])]}


def _assumptions(plan: Plan) -> dict[str, Any]:
    machine, algorithm = plan.machine, _algorithm(plan)
    text = json.dumps(machine.to_json(), sort_keys=True)
    dtypes = '/'.join(plan.group.tensor(a.tensor).dtype for a in plan.group.main.reads)
    made: dict[str, Any] = {
        'target': plan.target,
        'threads': plan.threads,
        'machine_digest': hashlib.sha256(text.encode()).hexdigest(),
        'algorithm': algorithm,
        'precision': dtypes,
    }
    tile = algorithm['tile'] and 'x'.join(map(str, algorithm['tile']))
    who = f'{algorithm["name"]} kernels' + (f' in {tile} tiles' if tile else '')
    says = [
        f'it holds for {who} that multiply {dtypes} and read every operand as it is stored',
        'caches may hold from the call before all that fits into them',
    ]
    if isinstance(machine, GpuMachine):
        made['machine'] = _gpu_machine(plan, machine)
    else:
        made['machine'] = _cpu_machine(plan, machine)
    measured = machine.measured if isinstance(machine, Machine) else not machine.assumed
    figures = 'measured' if measured else 'nominal, not measured'
    says.append(f'{machine.name} can do no more than its file says; its figures are {figures}')
    return made | {'says': says}


def _cpu_machine(plan: Plan, machine: Machine) -> dict[str, Any]:
    """What the bound and the tiles need; peaks are of what the group multiplies."""
    integers = is_integer_products(plan.group)
    one, every = machine.peak_one_gflops, machine.peak_all_gflops
    if integers:
        one, every = machine.dot_one_gops, max(machine.dot_one_gops, machine.dot_all_gops)
    return {
        'name': machine.name,
        'cores': machine.cores,
        'peak_one': one,
        'peak_all': every,
        'bandwidth_one_gbps': list(machine.bandwidth_one_gbps),
        'bandwidth_all_gbps': list(machine.bandwidth_all_gbps),
        'caches': [
            {
                'name': c.name, 'bytes': c.bytes, 'usable_bytes': c.usable_bytes,
                'shared_by': c.shared_by,
            }
            for c in machine.caches
        ],
    }  # fmt: skip


def _gpu_machine(plan: Plan, machine: GpuMachine) -> dict[str, Any]:
    """The GPU by the fastest units that it has for the group's precision: `lanes` products a cycle
    of a multiprocessor.
    """
    kinds = [k for k in (_HALF if plan.group.half else _SINGLE) if machine.has(k)]
    fastest = max(kinds, key=lambda kind: compute_gflops(machine, kind))
    lanes = compute_gflops(machine, fastest) / (2 * machine.multiprocessors * machine.clock_ghz)
    return {
        'name': machine.name,
        'units': fastest,
        'multiprocessors': machine.multiprocessors,
        'lanes': lanes,
        'clock_ghz': machine.clock_ghz,
        'l2_bytes': machine.l2_bytes,
        'l2_gbps': machine.l2_gbps,
        'global_gbps': machine.global_gbps,
    }


def _axes(group: Group, stage: Stage, access: Access) -> list[np.ndarray | None]:
    """For each axis of a tensor whether each of its positions is inside; None if data decides."""
    tables, looked_up = dict(access.tables), {axis for axis, _ in access.lookups}
    found: list[np.ndarray | None] = []
    for axis, (expression, extent) in enumerate(
        zip(access.index, group.tensor(access.tensor).shape, strict=True)
    ):
        shape = [1] * len(stage.dims)
        values = np.full(shape, expression.const)
        for number, dim in enumerate(stage.dims):
            step = expression.coefficient(dim.name)
            if step:
                along = [*shape[:number], dim.size, *shape[number + 1 :]]
                values = values + (step * np.arange(dim.size)).reshape(along)
        if axis in tables:
            values = np.asarray(tables[axis])[values]
        found.append(
            None if axis in looked_up else np.where((values >= 0) & (values < extent), values, -1)
        )
    return found


def _needed_points(group: Group) -> int:
    """Points of the main stage all of whose reads are inside their tensors."""
    stage = group.main
    masks = [
        axis >= 0
        for access in stage.reads
        for axis in _axes(group, stage, access)
        if axis is not None and (axis < 0).any()
    ]
    count, joined = stage.points, masks
    used = np.array([[size > 1 for size in mask.shape] for mask in masks], bool)
    if len(masks) and used.sum(axis=0).max() > 1:  # windows that share a dimension
        if (
            np.prod([max(sizes) for sizes in zip(*(m.shape for m in masks), strict=True)])
            > certificate.MOST_POINTS
        ):
            raise InputError(f'{group.label} has windows that are too large to be counted')
        joined = [np.logical_and.reduce(np.broadcast_arrays(*masks))]
    for mask in joined:
        count = count * int(mask.sum()) // mask.size
    return count


def _touched(group: Group) -> dict[str, int]:
    """Elements of every tensor outside the group that one access reads or writes."""
    found: dict[str, int] = {}
    for stage in group.stages:
        for access in stage.accesses:
            if group.tensor(access.tensor).role == 'inner':
                continue
            axes = _axes(group, stage, access)
            if sum(len(e.names) for e in access.index) > len(access.names):
                axes = axes[:1]
            counts = [len(set(np.unique(axis)) - {-1}) for axis in axes if axis is not None]
            found[access.tensor] = max(found.get(access.tensor, 0), math.prod(counts))
    return found


def _operations(plan: Plan, needed: int) -> int:
    """Operations of the products of the best candidate's algorithm."""
    algorithm = _algorithm(plan)
    if algorithm['name'] == 'direct':
        return needed
    if algorithm['name'] == 'strassen':
        return needed * 7 ** algorithm['levels'] // 8 ** algorithm['levels']
    if plan.target == 'cpu':
        return int(plan.best.prediction.flops_done)
    from tilewright.model.gpu.transactions import detour

    return int(detour(plan.group, plan.best.schedule).flops)


def _bound(plan: Plan, work: Mapping[str, Any], assumes: Mapping[str, Any]) -> dict[str, Any]:
    machine, threads, moved = plan.machine, plan.threads, work['bytes']
    held: dict[str, int] = {}
    times: dict[str, float] = {}
    if isinstance(machine, GpuMachine):
        peak = 1e9 * compute_gflops(machine, assumes['machine']['units'])
        held = {'L2': 0, 'DRAM': machine.l2_bytes}
        rates = {'L2': machine.l2_gbps, 'DRAM': machine.global_gbps}
    else:
        given = assumes['machine']
        share = min(threads, machine.cores) / machine.cores
        peak = 1e9 * (given['peak_one'] if threads <= 1 else given['peak_all'] * share)
        rates = {}
        for number, cache in enumerate(machine.caches):
            held[cache.name] = -(-threads // cache.shared_by) * cache.bytes
            rates[cache.name] = machine.bandwidth_gbps(number + 1, threads)
    if peak:
        times['compute'] = work['algorithm'] / peak
    times |= {name: max(moved - held[name], 0) / (1e9 * rate) for name, rate in rates.items()}
    by = max(times, key=lambda name: times[name])
    direct = max((times | ({'compute': work['needed'] / peak} if peak else {})).values())
    return {
        'seconds': times[by], 'by': by, 'direct_s': direct, 'times_s': times, 'held_bytes': held
    }  # fmt: skip


def _gap(plan: Plan, bound: Mapping[str, Any]) -> dict[str, Any]:
    """The time, its parts, and those parts less the bound."""
    best = plan.best
    predicted = best.prediction.seconds
    if plan.target == 'cpu':
        parts = [(name, ms / 1e3) for name, ms in predicted_parts(plan)]
    else:
        launch = getattr(best.prediction, 'launch_s', 0.0)  # not apart where there is no model
        parts = [('kernel', predicted - launch), ('launch', launch)]
    first, *rest = parts
    least = bound['seconds']
    if bound['by'] != 'compute':
        hidden = next((s for name, s in rest if name.startswith('traffic')), 0.0)
        rest = [(name, s) for name, s in rest if not name.startswith('traffic')]
        above = [('arithmetic and traffic beside what must be moved', first[1] + hidden - least)]
    elif first[0] == 'arithmetic at peak':
        above = [('products with padding', first[1] - least)]
    else:
        above = [(f'{first[0]} above the peak', first[1] - least)]
    timed = best.measurement if best.time_ms is not None else None
    samples = list(timed.samples_ms) if timed else []
    seconds = predicted if best.time_ms is None else best.time_ms / 1e3
    gap = [*above, *rest, *([('measured above predicted', seconds - predicted)] if samples else [])]
    kind = 'measured' if samples else 'predicted'
    return {
        'time': {
            'kind': kind, 'seconds': seconds, 'samples_ms': samples, 'predicted_s': predicted,
            'parts_s': [list(part) for part in parts],
        },
        'gap': {
            'seconds': seconds - least, 'share': 1 - least / seconds,
            'parts_s': [list(part) for part in gap],
        },
    }  # fmt: skip


def _movement(plan: Plan) -> dict[str, Any] | None:
    """The tile problem of the best schedule's register tile, cut and loop orders, with its dual."""
    best, machine = plan.best.schedule, plan.machine
    if best.schema != 'outer' or len(best.levels) != len(machine.caches) + 1:
        return None
    group = tiled_form(plan.group, best.reg.tile)
    shape = Shape(dict(best.reg.tile), best.parallel, 0.0)
    tiling = Tiling.of(group, contract(group, best.vector), machine, shape)
    problem = tiling.problem(tuple(level.order for level in best.levels[1:]))
    try:
        found = dual(problem)
    except (MissingError, InputError):  # no CasADi, or no geometric program
        return None
    if found is None:
        return None
    stage = group.to_json()['stages'][group.stages.index(group.main)]
    return {
        'stage': {key: stage[key] for key in ('dims', 'write', 'reads', 'combiner')},
        'part': dict(problem.sizes),
        'whole': list(problem.whole),
        'register_order': list(problem.order(0)),
        'tiles': list(found.tiles),
        'times_s': list(found.seconds),
        'fills': list(found.filled),
        'weights': {
            'times': list(found.times),
            'fills': list(found.fills),
            'nest': [list(row) for row in found.nest],
        },
        'attained_s': found.attained,
        'bound_s': found.bound,
    }
