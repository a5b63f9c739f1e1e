"""What if the machine, the batch or the precision were another? Answered ahead of time, on a grid.

Goes in: the plans of all groups and their machine. Comes out: for every combination of the axes the
predicted milliseconds of a whole call, and of these what is compute. No search and no solver runs:
schedules keep their tiles and loop orders, and each is priced again by the model.

    cores      the cut between threads is chosen again; peak and caches of a core grow with their
               number, the bandwidth of memory does not
    caches     all of them times a factor
    bandwidth  of memory, the outermost boundary, times a factor
    batch      images one after the other: b * (time - fork) + fork
    precision  narrower words: bandwidths and caches hold more of them, and where a machine has
               instructions for them it does more of them in a cycle; no copies to and fro
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.space import thread_cuts
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.group import Group
from tilewright.report.network import Kind
from tilewright.report.words import scheduled_stage
from tilewright.schedule.schedule import Schedule

FACTORS = (0.5, 1.0, 2.0)
BATCHES = (1, 2, 4, 8, 16)
CUTS = 12  # between threads that are priced for one group
FIXED = (
    'Held fixed: tiles, loop orders and algorithms of every kernel, the graph, the clock; nothing '
    'is searched again, so that another schedule may do better.'
)


def cpu_grid(kinds: Sequence[Kind], machine: Machine, threads: int) -> dict[str, Any]:
    """The grid of a CPU; values in the order of the axes, the last running fastest."""
    cores = sorted({1, max(1, threads // 2), threads, 2 * threads, 4 * threads})
    dot = machine.dot
    precisions = {'f32': (1.0, 1.0), 'bf16, stored': (2.0, 1.0)}
    if dot is not None:
        precisions['i8'] = (4.0, float(dot.products))
    rows: list[tuple[float, float, float]] = []
    for count, caches, bandwidth, (words, peak) in product(
        cores, FACTORS, FACTORS, precisions.values()
    ):
        other = _cpu_machine(machine, count, caches * words, bandwidth * words, words, peak)
        total = compute = fork = 0.0
        for kind in kinds:
            group, schedule = kind.plan.group, kind.plan.best.schedule
            cut = schedule if count == threads else _cut(group, schedule, machine, count)
            said = predict(group, cut, other)
            total += len(kind.tasks) * said.seconds
            compute += len(kind.tasks) * said.compute_s
            fork += len(kind.tasks) * said.fork_s
        rows.append((total, compute, fork))
    axes = _axes(cores, threads, 'cores', precisions)
    return _grid(axes, rows, len(precisions))


def gpu_grid(kinds: Sequence[Kind], machine: GpuMachine) -> dict[str, Any]:
    """The grid of a GPU: multiprocessors, L2, memory; kernels without a model stay as they are."""
    counts = [max(1, round(machine.multiprocessors * f)) for f in FACTORS]
    precisions = {'f32': (1.0, 1.0), 'f16': (2.0, 2.0)}
    rows = []
    for count, caches, bandwidth, (words, peak) in product(
        counts, FACTORS, FACTORS, precisions.values()
    ):
        other = replace(
            machine,
            multiprocessors=count,
            l2_bytes=int(machine.l2_bytes * caches * words),
            global_gbps=machine.global_gbps * bandwidth * words,
            l2_gbps=machine.l2_gbps * words * count / machine.multiprocessors,
            fp32_lanes=int(machine.fp32_lanes * peak),
        )
        rows.append(_gpu_row(kinds, other))
    return _grid(_axes(counts, machine.multiprocessors, 'multiprocessors', precisions), rows, 2)


def _gpu_row(kinds: Sequence[Kind], machine: GpuMachine) -> tuple[float, float, float]:
    total = compute = launch = 0.0
    for kind in kinds:
        try:
            said = predict_gpu(kind.plan.group, kind.plan.best.schedule, machine)
            parts = said.seconds, min(said.throughput_s, said.seconds), said.launch_s
        except ScheduleError:
            parts = kind.plan.best.prediction.seconds, 0.0, 0.0
        total, compute, launch = (
            sum_ + len(kind.tasks) * part
            for sum_, part in zip((total, compute, launch), parts, strict=True)
        )
    return total, compute, launch


def _axes(
    cores: Sequence[int], now: int, what: str, precisions: dict[str, tuple[float, float]]
) -> list[dict[str, Any]]:
    factors = [f'x {factor:g}' for factor in FACTORS]
    return [
        {'name': what, 'values': [str(c) for c in cores], 'now': list(cores).index(now)},
        {'name': 'caches', 'values': factors, 'now': FACTORS.index(1.0)},
        {'name': 'memory bandwidth', 'values': factors, 'now': FACTORS.index(1.0)},
        {'name': 'batch', 'values': [str(b) for b in BATCHES], 'now': 0},
        {'name': 'precision', 'values': list(precisions), 'now': 0},
    ]


def _grid(
    axes: list[dict[str, Any]], rows: Sequence[Sequence[float]], precisions: int
) -> dict[str, Any]:
    """Rows without the axis of batches, which follows from them, and with it in its place."""
    values = []
    for start in range(0, len(rows), precisions):
        for batch in BATCHES:
            for total, compute, fork in rows[start : start + precisions]:
                seconds = batch * (total - fork) + fork
                values.append([_ms(seconds), _ms(batch * min(compute, total))])
    return {'axes': axes, 'values': values, 'fixed': FIXED}


def _ms(seconds: float) -> float:
    return float(f'{1e3 * seconds:.4g}')


def _cpu_machine(
    machine: Machine, count: int, caches: float, memory: float, words: float, peak: float
) -> Machine:
    """With so many cores; caches, the last and the other bandwidths, and peaks times a factor."""
    more = max(1.0, count / machine.cores)
    one, every = machine.bandwidth_one_gbps, machine.bandwidth_all_gbps
    inner = [v * words for v in one[:-1]], [v * words * more for v in every[:-1]]
    return replace(
        machine,
        cores=max(machine.cores, count),
        peak_one_gflops=machine.peak_one_gflops * peak,
        peak_all_gflops=machine.peak_all_gflops * peak * more,
        bandwidth_one_gbps=(*inner[0], one[-1] * memory),
        bandwidth_all_gbps=(*inner[1], every[-1] * memory),
        caches=tuple(
            replace(c, bytes=int(c.bytes * caches), usable_bytes=int(c.usable_bytes * caches))
            for c in machine.caches
        ),
    )


_CUT: dict[tuple[str, Schedule, int], Schedule] = {}


def _cut(group: Group, schedule: Schedule, machine: Machine, threads: int) -> Schedule:
    """The schedule with the best cut between so many threads; as it is where there is none."""
    key = group.digest, schedule, threads
    if key not in _CUT:
        stage, reg = scheduled_stage(group, schedule), schedule.reg.tile
        other = _cpu_machine(machine, threads, 1, 1, 1, 1)
        best, least = replace(schedule, parallel=()), float('inf')
        for number, cut in enumerate(thread_cuts(stage, threads)):
            fits = all(-(-stage.sizes[d] // reg.get(d, 1)) >= ways for d, ways in cut)
            if number >= CUTS or not fits:
                continue
            tried = replace(schedule, parallel=cut)
            try:
                seconds = predict(group, tried, other).seconds
            except (ScheduleError, KeyError, ValueError):
                continue
            if seconds < least:
                best, least = tried, seconds
        _CUT[key] = best if least < float('inf') else schedule
    return _CUT[key]
