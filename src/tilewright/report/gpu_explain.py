"""A layer on a GPU, explained by the model alone: bounds, the best schedule, traffic, what limits.

Goes in: a group and a machine; no GPU, no compiler. Comes out: an `Explanation`, as text and JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.registry import schema_named
from tilewright.kernels.gpu.schemas.library import said_of
from tilewright.kernels.gpu.work import BANKS_BYTES
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import GpuBounds, gpu_bounds, schedule_bounds
from tilewright.model.gpu.time import GpuPrediction, is_priced, predict_gpu
from tilewright.model.gpu.transactions import memory_bytes
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, schedule_text
from tilewright.search.gpu.tune import tune

LOOKED_AT = 600
INTRINSICS = {
    'fma': 'multiply-adds',
    'mma_tf32x3': 'matrix instructions, three for each product',
    'wgmma_tf32x3': 'matrix instructions of warpgroups, three for each product',
    'wgmma_tf32_bf16': 'matrix instructions of warpgroups, one of TF32 and two of bf16',
    'mma_half': 'matrix instructions of f16 or bf16',
    'wgmma_half': 'matrix instructions of warpgroups in f16 or bf16',
    'mma_int8': 'matrix instructions of 8-bit numbers',
    'wgmma_int8': 'matrix instructions of warpgroups on 8-bit numbers',
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`runner_up` is the best schedule of another schema or intrinsic, None if there is none."""

    name: str
    group: Group
    machine: GpuMachine
    bounds: dict[str, GpuBounds]
    schedule: GpuSchedule
    predicted: GpuPrediction
    runner_up: tuple[GpuSchedule, GpuPrediction] | None

    def to_json(self) -> dict:
        other = self.runner_up
        return {
            'name': self.name, 'label': self.group.label, 'flops': self.group.flops,
            'bounds': {name: bound.to_json() for name, bound in self.bounds.items()},
            'schedule': self.schedule.to_json(), 'predicted': self.predicted.to_json(),
            'runner_up': other and {
                'schedule': other[0].to_json(), 'predicted': other[1].to_json()
            },
            'libraries': said_of(self.group),
        }  # fmt: skip


def explain_gpu(
    name: str, group: Group, machine: GpuMachine, schemas: Sequence[str] | None = None,
    algorithm: str = 'auto',
) -> Explanation:  # fmt: skip
    """[Group, GpuMachine] -> [Explanation], the same every time; of all schemas, or of some."""

    def seconds(schedule: GpuSchedule) -> float | None:
        try:
            return predict_gpu(group, schedule, machine).seconds
        except ScheduleError:
            return None

    space = moves(group, machine, schemas, algorithm)
    tried = tune(space, lambda some: [seconds(s) for s in some], trials=LOOKED_AT, batch=64)
    return explained(name, group, machine, [t.schedule for t in tried if t.seconds is not None])


def explained(
    name: str, group: Group, machine: GpuMachine, schedules: Sequence[GpuSchedule]
) -> Explanation:
    """The same of schedules that were found before, best first."""
    working = [s for s in schedules if is_priced(group, s, machine)]
    if not working:
        raise ScheduleError(f'{group.label}: no schedule for {machine.name} was found')
    best = working[0]
    kind = (best.schema, best.intrinsic)
    other = next((s for s in working if (s.schema, s.intrinsic) != kind), None)
    intrinsics = ['fma', *({best.intrinsic} - {'fma'})]
    bounds = {i: gpu_bounds(group, machine, i) for i in intrinsics}
    if schema_named(best.schema).detour is not None:
        bounds[f'{best.schema} {best.intrinsic}'] = schedule_bounds(group, best, machine)
    return Explanation(
        name, group, machine, bounds, best,
        predict_gpu(group, best, machine), other and (other, predict_gpu(group, other, machine)),
    )  # fmt: skip


def explanation_text(e: Explanation) -> str:
    """For people; times in microseconds."""
    group, x = e.group, e.predicted
    title = e.name if e.name == group.label else f'{e.name} ({group.label})'
    lines = [f'{title} on {e.machine.name}, by the model alone: {group.flops / 1e9:.3f} GFLOP']
    for intrinsic, bound in e.bounds.items():
        words = INTRINSICS.get(intrinsic, intrinsic)
        lines.append(
            f'bound with {words}: {bound.microseconds:.2f} us by {bound.by} (compute '
            f'{1e6 * bound.compute_s:.2f}, L2 {1e6 * bound.l2_s:.2f}, DRAM {1e6 * bound.dram_s:.2f}'
            f'{", not needed: all tensors stay in L2" if bound.resident else ""})'
        )
    parts = ', '.join(f'{n} {1e6 * s:.2f}' for n, s in x.parts.items())
    least = min(b.microseconds for b in e.bounds.values())
    moved = x.work.global_bytes
    through = memory_bytes(group, e.schedule, e.machine)
    beyond = 0 if through <= e.machine.l2_bytes else through
    shared = x.work.blocks * x.work.wavefronts * BANKS_BYTES
    waves = x.work.blocks / (e.machine.multiprocessors * x.occupancy.blocks)
    lines += [
        f'best schedule: {schedule_text(e.schedule)}',
        f'  {e.schedule.schema}: {schema_named(e.schedule.schema).words}',
        f'  predicted {1e6 * x.seconds:.2f} us, {100 * least / 1e6 / x.seconds:.0f}% of the bound; '
        f'limited by {x.by}',
        f'  us by resource, which overlap: {parts}',
        f'  traffic: L2 {moved / 1e6:.2f} MB ({moved / group.compulsory_bytes:.1f} times the '
        f'tensors), DRAM {beyond / 1e6:.2f} MB, shared memory {shared / 1e6:.1f} MB read',
        f'  blocks: {x.work.blocks} in {waves:.2f} waves, on a multiprocessor at once '
        f'{x.occupancy.blocks}, limited by {x.occupancy.by}; occupancy '
        f'{100 * x.occupancy.share:.0f}%, about {x.work.registers} registers a thread',
    ]
    if e.runner_up:
        schedule, other = e.runner_up
        lines.append(
            f'runner-up of another kind: {schedule_text(schedule)}, '
            f'{1e6 * other.seconds:.2f} us, limited by {other.by}'
        )
    return '\n'.join([*lines, *(f'with --libraries: {text}' for text in said_of(group).values())])
