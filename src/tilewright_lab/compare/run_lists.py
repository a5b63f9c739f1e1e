"""Operator lists on a device: one buffer for each tensor, no copies between operators.

Goes in: an `OperatorList`, a device, weights, and a choice of schedules. Comes out: a `ListRunner`,
its results, and the verdict on every tensor against float64 (Boda Sec. 4; runtime/verify.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.errors import ArrayError, ScheduleError
from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Step
from tilewright.kernels.gpu.schemas.depthwise.plan import schedules as depthwise_schedules
from tilewright.kernels.gpu.schemas.transposed import code as transposed
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import Call, Device, NDArray, Program
from tilewright.runtime.gpu.modules import allocate, calls_of
from tilewright.runtime.verify import Comparison, compare, poison
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.operator_lists import Arrays, Operator, OperatorList, Weights

Choose = Callable[[Group, GpuMachine], GpuSchedule]


def first_choice(group: Group, machine: GpuMachine) -> GpuSchedule:
    """A schedule without any search: the most specialised schema that fits, with middling tiles."""
    if transposed.pays(group):
        return GpuSchedule.of('transposed', side=32, rows=8)
    for choice in (_depthwise, _tiled):
        schedule = choice(group, machine)
        if schedule is not None:
            return schedule
    return general_choice(group, machine)


def general_choice(group: Group, machine: GpuMachine) -> GpuSchedule:
    """The fallback; lanes share reductions where there are too few points for the device."""
    stage = group.main
    points = math.prod(stage.sizes[d] for d in stage.parallel)
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    lanes = 1
    while lanes < 128 and points * lanes < machine.multiprocessors * 256 and 4 * lanes < length:
        lanes *= 2
    return GpuSchedule.of('general', threads=128, lanes=lanes)


def _depthwise(group: Group, machine: GpuMachine) -> GpuSchedule | None:
    """Four columns and two rows a thread, blocks of about 128 threads."""
    try:
        space = depthwise_schedules(group, machine)
        wanted = [s for s in space if (s['th'], s['tw'], s['shared']) == (2, 4, 0)]
    except ScheduleError:
        return None
    near = sorted(wanted, key=lambda s: (abs(s['bp'] * s['bh'] * s['bw'] - 128), -s['bw']))
    return near[0] if near else None


def _tiled(group: Group, machine: GpuMachine) -> GpuSchedule | None:
    """Tiles no larger than the problem, and the depth split where there are too few of them."""
    candidates = vector_candidates(group)
    if not candidates:
        return None
    c = contract(group, candidates[0])
    sizes = group.main.sizes
    rows = math.prod(sizes[d] for d in c.pixels)
    channels = sizes[c.loop] if c.loop else 1
    windows = math.prod(sizes[d] for d in (*c.outer, *c.unrolled))
    bk = 64 if sizes[c.vector] > 32 else 32 if sizes[c.vector] > 16 else 16
    bp = 64 if rows > 32 else 32 if rows > 16 else 8
    kb, joint = 8, channels % 8 != 0 and channels < 32
    pieces = -(-windows * channels // kb) if joint else windows * -(-channels // kb)
    tiles = -(-sizes[c.vector] // bk) * -(-rows // bp) * math.prod(sizes[d] for d in c.batch)
    split = max(1, min(machine.multiprocessors * 2 // tiles, pieces // 8, 16))
    return GpuSchedule.of(
        'tiled', bk=bk, bp=bp, tk=4, tp=4, kb=kb, stages=2, split=split, joint=int(joint)
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """One tensor of a list beside its float64 values."""

    tensor: str
    shape: tuple[int, ...]
    comparison: Comparison
    size: float  # root mean square of the right values

    def to_json(self) -> dict:
        return {
            'tensor': self.tensor,
            'shape': list(self.shape),
            'ok': self.comparison.ok,
            'max_rel_err': self.comparison.max_rel_err,
            'root_mean_square': self.size,
            'message': self.comparison.message,
        }


class ListRunner:
    """An operator list, compiled for a device; not for several threads at once."""

    def __init__(
        self, network: OperatorList, device: Device, weights: Weights,
        choose: Choose = first_choice,
    ) -> None:  # fmt: skip
        self.network, self.device = network, device
        self.schedules = {o.name: choose(o.whole, device.machine) for o in network.operators}
        self.arrays = {
            name: device.empty(_axes(shape), shape) for name, shape in network.shapes.items()
        }
        self._programs: dict[Kernel, Program] = {}
        self.calls = {o.name: self._prepare(o, weights) for o in network.operators}

    def _prepare(self, operator: Operator, weights: Weights) -> list[Call]:
        """Compile an operator, bind its arguments: tensors of the list, and what it has beside."""
        group, device = operator.group, self.device
        module = generate(group, self.schedules[operator.name])
        bound: dict[str, NDArray] = {}
        for tensor, name in zip(group.with_role('input'), operator.inputs, strict=True):
            bound[tensor.name] = replace(self.arrays[name], dims=tensor.dims, sizes=tensor.shape)
        out = group.output
        bound[out.name] = replace(self.arrays[operator.output], dims=out.dims, sizes=out.shape)
        given = weights.get(operator.name, {})
        bound |= allocate(device, module, bound)
        for tensor in group.with_role('constant'):
            if tensor.name not in given or given[tensor.name].shape != tensor.shape:
                raise ArrayError(
                    f'{operator.name}: {tensor.name} of shape {tensor.shape} is needed'
                )
            device.write(bound[tensor.name], np.ascontiguousarray(given[tensor.name], np.float32))
        for call in calls_of(module.ahead, self._compiled(module.ahead), bound):
            device.launch(call)
        return calls_of(module.steps, self._compiled(module.steps), bound)

    def _compiled(self, steps: Sequence[Step]) -> list[Program]:
        """Kernels that occur again, such as those of equal layers, are compiled once."""
        for step in steps:
            if step.kernel not in self._programs:
                self._programs[step.kernel] = self.device.compile(step.kernel)
        return [self._programs[step.kernel] for step in steps]

    @property
    def all_calls(self) -> list[Call]:
        return [call for calls in self.calls.values() for call in calls]

    def __call__(self, inputs: Arrays) -> np.ndarray:
        """The list's output."""
        self.run(inputs)
        return self.device.download(self.arrays[self.network.output])

    def run(self, inputs: Arrays) -> None:
        """Poison every tensor, write the inputs, launch everything."""
        for name, shape in self.network.shapes.items():
            values = inputs.get(name)
            if values is None:
                values = poison(np.empty(shape, np.float32))
            elif values.shape != shape:
                raise ArrayError(f'{name} has shape {values.shape}, expected {shape}')
            self.device.write(self.arrays[name], np.ascontiguousarray(values, np.float32))
        for call in self.all_calls:
            self.device.launch(call)
        self.device.synchronize()

    def time(self, repeats: int) -> dict[str, list[float]]:
        """Seconds of every operator, and of all of them one after the other, as ''."""
        by_operator = {name: self.device.time(c, repeats) for name, c in self.calls.items()}
        return {'': self.device.time(self.all_calls, repeats), **by_operator}


def _axes(shape: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f'd{i}' for i in range(len(shape)))


def check(
    runner: ListRunner, wanted: Iterable[tuple[str, np.ndarray]], tolerance: float | None = None
) -> list[Verdict]:
    """Every tensor that an oracle names, on the device, beside the oracle's values."""
    groups = {o.output: o.group for o in runner.network.operators}
    verdicts = []
    for name, want in wanted:
        got = runner.device.download(runner.arrays[name])
        right = want.reshape(got.shape)
        verdict = compare(groups[name], got, right, tolerance=tolerance)
        verdicts.append(
            Verdict(name, got.shape, verdict, float(np.sqrt(np.mean(np.square(right)))))
        )
    return verdicts
