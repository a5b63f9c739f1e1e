"""Tasks bound to memory of a device: from a program and its modules to a network that runs.

Goes in: a program, a module for every task, a device. Comes out: `GpuNetwork`. Constants are
uploaded once; kernels that turn them into what others read run here, once for each set of them, and
what only they needed is given back.

A part of the arena that OpenCL cannot point at (its parts begin at multiples of some bytes) is
reached by a kernel of its own that first moves its pointer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.graph.graph import DTYPES as KINDS
from tilewright.graph.graph import Value
from tilewright.graph.limits import index_limits
from tilewright.graph.memory import Place
from tilewright.graph.memory_proof import box, read_box
from tilewright.graph.program import Program, Task
from tilewright.kernels.gpu.language import ENDS, Array, Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step
from tilewright.ops.dtypes import DTYPES
from tilewright.runtime.gpu.device import Call, Device, NDArray, Values
from tilewright.runtime.gpu.network import GpuNetwork, GpuTask, Held, Launches
from tilewright.runtime.gpu.recorded import Waits, in_a_row
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.bundle import argument_name, bundle, bundles, put_together
from tilewright.targets.gpu.code import Report, programs
from tilewright.targets.gpu.order import Span, Touched, waits
from tilewright.targets.gpu.place import Placement, duties, place
from tilewright.targets.gpu.proof import Bound, prove_bound


@dataclass(frozen=True, slots=True)
class Work:
    """One task with the schedule that was chosen for it, and its kernels."""

    task: Task
    schedule: GpuSchedule
    module: Module
    predicted_s: float = 0.0
    bound_s: float = 0.0
    limit: str = ''


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where an argument of a kernel lies: in the arena from a byte on, or an array of its own."""

    offset: int = 0
    array: NDArray | None = None


def bind(
    program: Program,
    works: Sequence[Work],
    device: Device,
    *,
    parallel: bool = True,
    report: Report | None = None,
) -> GpuNetwork:
    """[Program, Work of every task, Device] -> [GpuNetwork]

    parallel   whether kernels that touch different memory may run side by side
    """
    with _Holder(device) as holder:
        return _Binder(program, works, device, holder, report, parallel).network()


class _Holder:
    """Arrays and programs; given back where something fails before a network holds them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.arrays: list[NDArray] = []
        self.kept = False

    def __enter__(self) -> _Holder:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            with contextlib.suppress(TilewrightError):
                for array in self.arrays:
                    self.device.free(array)

    def empty(self, sizes: Sequence[int], dtype: str) -> NDArray:
        array = self.device.empty(tuple(f'd{i}' for i in range(len(sizes))), sizes, dtype)
        self.arrays.append(array)
        return array

    def free(self, array: NDArray) -> None:
        self.arrays.remove(array)
        self.device.free(array)


class _Binder:
    def __init__(
        self,
        program: Program,
        works: Sequence[Work],
        device: Device,
        holder: _Holder,
        report: Report | None,
        parallel: bool,
    ) -> None:
        self.program, self.works, self.device, self.holder = program, works, device, holder
        self.placement: Placement = place(program, [work.module for work in works])
        self.arena = holder.empty((max(self.placement.arena_bytes, 1),), 'u8')
        self.constants: dict[tuple[str, str], NDArray] = {}
        self.passing: list[tuple[str, str]] = []
        self.prepared: dict[tuple, Mapping[str, NDArray]] = {}
        self.slots = [self._slots(number) for number in range(len(works))]
        steps = [(n, step) for n, work in enumerate(works) for step in work.module.steps]
        touched = [_touched(works[n].task, step, self.slots[n]) for n, step in steps]
        self.order: Waits | None = waits(touched) if parallel else None
        self.waits = in_a_row(len(steps)) if self.order is None else self.order
        self.kernels = let_in(
            [self._kernel(step, self.slots[n]) for n, step in steps], self.waits
        )  # fmt: skip
        ahead = [step.kernel for work in works for step in work.module.ahead]
        self.programs = programs(device, [*ahead, *self.kernels], report)

    def network(self) -> GpuNetwork:
        tasks, kernels = [], iter(self.kernels)
        for number, work in enumerate(self.works):
            self._prepare(number, work)
            slots = self.slots[number]
            calls = []
            for step, kernel in zip(work.module.steps, kernels, strict=False):
                calls.append(Call(self.programs[kernel], self._values(kernel, step, slots)))
            tasks.append(
                GpuTask(
                    work.task.name, work.task.origin, work.task.group, work.schedule,
                    tuple(calls), work.predicted_s, work.bound_s, work.limit,
                    self.program.values[work.task.result],
                )
            )  # fmt: skip
        self.device.synchronize()
        for key in self.passing:
            self.holder.free(self.constants.pop(key))
        inputs = [(self.program.values[n], self._value(n)) for n in self.program.inputs]
        outputs = []
        for name, value in self.program.outputs:
            kind = self.program.values[value]
            outputs.append((Value(name, kind.shape, kind.dtype), self._value(value)))
        order = self.order
        self._prove(self.waits)
        launches = self._launches([call for task in tasks for call in task.calls], order)
        arena, *arrays = self.holder.arrays
        held = Held(arena, tuple(arrays), tuple(self.programs.values()))
        made = GpuNetwork(
            self.program.name, self.device, inputs, outputs, tasks, order, held, self._places(),
            launches,
        )  # fmt: skip
        made.limits = index_limits(self.program)
        made.carried = frozenset(self.placement.replaced.values())
        self.holder.kept = True
        return made

    def _launches(self, calls: Sequence[Call], order: Waits | None) -> Launches | None:
        """What a call starts, small updates of carried values together; None: kernel by kernel."""
        few = self.device.dialect.family == 'opencl'  # arguments of a kernel
        if order is None or not self.program.carried or few:
            return None
        found = bundles([call.program.kernel for call in calls], order)
        kernels = {one: bundle([calls[n].program.kernel for n in one]) for one in found}
        self.programs |= programs(self.device, kernels.values())
        numbers, needed = put_together(order, found)
        started = []
        for one in numbers:
            if len(one) == 1:
                started.append(calls[one[0]])
                continue
            values = {
                argument_name(place, name): value
                for place, number in enumerate(one)
                for name, value in calls[number].values.items()
            }
            started.append(Call(self.programs[kernels[one]], values))
        return started, needed

    def _prove(self, order: Sequence[Sequence[int]]) -> None:
        """Raise unless what is handed to the device computes what the program means."""
        held = {id(array) for array in self.holder.arrays}
        arrays = [slot.array for slots in self.slots for slot in slots.values() if slot.array]
        prove_bound(
            Bound(
                self.program, self.works, self.arena.bytes, self.slots, self._where, order,
                {id(array) for array in arrays} - held,
            )
        )  # fmt: skip

    def _where(self, value: str) -> _Slot:
        """Where a value lies that callers give or get."""
        root, element = self.program.place(value)
        dtype = self.program.values[value].dtype
        offset = element * DTYPES[dtype]
        if root in self.program.constants:
            return _Slot(offset, self._constant(root, dtype))
        return _Slot(offset + self.placement.values[root])

    def _places(self) -> dict[str, Place]:
        """Where every value lies that is in the arena."""
        found = {}
        for value, kind in self.program.values.items():
            root, element = self.program.place(value)
            if root in self.placement.values:
                offset = self.placement.values[root] + element * DTYPES[kind.dtype]
                found[value] = Place('arena', '', offset)
        return found

    def _value(self, value: str) -> NDArray:
        """A value as an array of the device."""
        kind, slot = self.program.values[value], self._where(value)
        dims = tuple(f'd{i}' for i in range(len(kind.shape)))
        whole = self.arena if slot.array is None else slot.array
        return self.device.part(whole, slot.offset, dims, kind.shape, kind.dtype)

    def _constant(self, name: str, dtype: str) -> NDArray:
        """A constant on the device, as its own shape, uploaded once."""
        key = (name, dtype)
        if key not in self.constants:
            values = np.ascontiguousarray(self.program.constants[name], KINDS[dtype])
            self.constants[key] = self.holder.empty((values.size,), dtype)
            if values.size:
                self.device.write(self.constants[key], values.reshape(-1))
        return self.constants[key]

    def _slots(self, number: int) -> dict[str, _Slot]:
        """Where every buffer of a task's module lies, but for what is made ahead."""
        work = self.works[number]
        task, group = work.task, work.module.group
        named = {**task.operands, group.output.name: task.result}
        kinds = duties(work.module)
        found = {}
        for buffer in work.module.buffers:
            duty = kinds[buffer.name]
            if duty == 'scratch':
                found[buffer.name] = _Slot(self.placement.scratch[number][buffer.name])
            elif duty == 'zeroed':
                found[buffer.name] = _Slot(array=self._zeros(buffer))
            elif duty != 'prepared':
                found[buffer.name] = self._operand(named[buffer.name], duty)
        return found

    def _operand(self, value: str, duty: str) -> _Slot:
        root, element = self.program.place(value)
        dtype = self.program.values[value].dtype
        if root not in self.program.constants:
            return _Slot(self.placement.values[root] + element * DTYPES[dtype])
        key, fresh = (root, dtype), (root, dtype) not in self.constants
        array = self._constant(root, dtype)
        if duty == 'packing' and fresh:
            self.passing.append(key)
        elif duty != 'packing' and key in self.passing:
            self.passing.remove(key)
        if any(self.program.place(out)[0] == root for _, out in self.program.outputs):
            self.passing = [k for k in self.passing if k != key]
        return _Slot(array=array)

    def _zeros(self, buffer: Buffer) -> NDArray:
        array = self.holder.empty(buffer.sizes, buffer.dtype)
        self.device.write(array, np.zeros(buffer.sizes, KINDS[buffer.dtype]))
        return array

    def _prepare(self, number: int, work: Work) -> None:
        """Run what is ahead, once for equal kernels on the same constants; note its results."""
        module, slots = work.module, self.slots[number]
        made = [b for b in module.buffers if b.name not in slots]
        if not made:
            return
        constants = tuple(
            self.program.base(work.task.operands[t.name])
            for t in module.group.with_role('constant')
        )
        key = (module.ahead, constants)
        if key not in self.prepared:
            self.prepared[key] = {b.name: self.holder.empty(b.sizes, b.dtype) for b in made}
            slots |= {name: _Slot(array=array) for name, array in self.prepared[key].items()}
            for step in module.ahead:
                values = self._values(step.kernel, step, slots)
                self.device.launch(Call(self.programs[step.kernel], values))
        slots |= {name: _Slot(array=array) for name, array in self.prepared[key].items()}

    def _values(self, kernel: Kernel, step: Step, slots: Mapping[str, _Slot]) -> Values:
        """argument -> an array with the dimensions that the kernel declares."""
        found: dict[str, NDArray | int | float] = {}
        for argument, buffer in step.buffers:
            declared, slot = kernel.array(argument), slots[buffer]
            if slot.array is None:
                start = slot.offset - slot.offset % self.device.alignment
                found[argument] = self._part(declared, start, slot.offset - start)
            else:
                found[argument] = replace(slot.array, dims=declared.dims, sizes=declared.sizes)
        return found

    def _part(self, declared: Array, start: int, rest: int) -> NDArray:
        """The arena from `start` on; as many bytes as hold the array behind `rest` of them."""
        if not rest:
            return self.device.part(
                self.arena, start, declared.dims, declared.sizes, declared.dtype
            )
        size = declared.elements * DTYPES[declared.dtype] + rest
        whole = self.device.part(self.arena, start, ('byte',), (size,), 'u8')
        return replace(whole, dims=declared.dims, sizes=declared.sizes, dtype=declared.dtype)

    def _kernel(self, step: Step, slots: Mapping[str, _Slot]) -> Kernel:
        """The kernel of a step, with pointers moved where a part cannot begin at its place."""
        moved = []
        for argument, buffer in step.buffers:
            slot = slots.get(buffer, _Slot())
            rest = slot.offset % self.device.alignment
            if slot.array is None and rest:
                count = rest // DTYPES[step.kernel.array(argument).dtype]
                moved.append(f'@{argument} += {count};')
        if not moved:
            return step.kernel
        return replace(step.kernel, body='\n'.join([*moved, step.kernel.body]))


def let_in(kernels: Sequence[Kernel], order: Waits) -> list[Kernel]:
    """The kernels, those without `ENDS` that a kernel of clusters waits for.

    Blocks of a cluster are placed together, by what is free at that moment: beside others that are
    about to end, several of them share a multiprocessor, and others get none.
    """
    before = {n for late, kernel in enumerate(kernels) if kernel.cluster > 1 for n in order[late]}
    return [
        replace(kernel, body=kernel.body.replace(f'{ENDS}\n', '')) if n in before else kernel
        for n, kernel in enumerate(kernels)
    ]


def _touched(task: Task, step: Step, slots: Mapping[str, _Slot]) -> Touched:
    """The spans of the arena that a kernel reads and writes."""
    return Touched(tuple(_spans(task, step, slots, False)), tuple(_spans(task, step, slots, True)))


def _spans(task: Task, step: Step, slots: Mapping[str, _Slot], written: bool) -> Iterator[Span]:
    for argument, buffer in step.buffers:
        array, slot = step.kernel.array(argument), slots.get(buffer)
        # What is made ahead has no place in the arena.
        if slot is None or slot.array is not None or array.written != written:
            continue
        whole = Span(slot.offset, slot.offset + array.elements * DTYPES[array.dtype])
        region = None
        if buffer in task.operands:
            region = read_box(task.group, buffer)
        elif buffer == task.group.output.name and task.writes_part:
            region = box(task.group)
        if region is None or len(region.levels) != 1:
            yield whole
        else:
            first = slot.offset + region.start
            yield Span(first, slot.offset + region.end, region.levels[0][0], region.run)
