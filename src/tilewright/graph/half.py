"""Values of a network in f16 or bf16, and images with their channels last: a pass for GPUs, and for
CPUs that compute in f16.

    x: f32 [n, 3, h, w] -> conv -> y: f32 [n, 64, h, w] -> conv -> out: f32
    x: f32 [n, 3, h, w] -> convert -> f16 [n, h, w, 8] -> conv -> y: f16 [n, h, w, 64] -> ...

Goes in: a program of float32, behind fusion. Comes out: one that computes the same with half the
bytes. Inputs and results keep the dtype and layout that callers know: an input is converted by a
task of its own, a result is written as it is. Weights of products become half, unless they are too
large for it; all other constants
(biases, scales), and what lies between the stages of a group (sums, statistics of normalisations),
stay float32, so that a value is rounded once, where it is stored. What takes turns step by step
stays as it is.

Images are those that a window slides over or whose second axis is summed up, and what is computed
from them element by element. Each tensor is laid out on its own: a group's accesses follow. An
image that is also seen in another shape keeps its order. The channels of a converted input are
filled up with zeros to four or a multiple of eight, which are copied at once (`UNITS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np

from tilewright.graph.graph import Attribute, Graph, Value, fresh_name
from tilewright.graph.half_rows import ON_CPU, ON_GPU, in_rows, row_form, row_weights
from tilewright.graph.program import Program, Task
from tilewright.ops.attention import attends
from tilewright.ops.describe import dims_of
from tilewright.ops.dtypes import HALVES, NUMPY, is_float
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, read, var

UNITS = (4, 8)  # channels
LAST = (0, 2, 3, 1)  # axes of an image with its channels last
WEIGHTS_LAST = (1, 2, 3, 0)  # of weights that each channel has of its own
LEAST_ROWS = 16  # of an attention in tiles; fewer are multiplied in place, in float32
_ONNX_F32, _ONNX_F16 = 1, 10  # what ONNX's Cast calls them
Orders = Mapping[str, tuple[int, ...]]  # tensor -> its axes, in another order


def halved(program: Program, dtype: str, on_cpu: bool = False) -> Program:
    """[Program] -> [Program]; `dtype` is one of `HALVES`.

    on_cpu   products of two values that are not constant stay float32, since no kernel of a CPU
             multiplies such halves: what they give is converted behind them. Attention of many rows
             in bf16 is multiplied in tiles

    Inputs of few channels are read in rows of pixels and channels (graph/half_rows.py).
    """
    state = _State(program, dtype, on_cpu)
    made, last = state.conversions(), state.last_writers()
    tasks = [task for name, task in made.items() if name in program.inputs]
    for number, task in enumerate(program.tasks):
        tasks.append(state.task(task))
        tasks += [made[name] for name, writer in last.items() if writer == number]
    values = {name: state.type_of(name) for name in program.values} | state.made
    constants = {**program.constants, **state.constants}
    used = {v for t in tasks for v in t.operands.values()} | {v for _, v in program.outputs}
    used |= {program.base(v) for v in used}
    return replace(
        program, tasks=tuple(tasks), values=values, views={**program.views, **state.views},
        constants={n: a for n, a in constants.items() if n in used or n not in state.replaced},
    )  # fmt: skip


def holds_halves(graph: Graph) -> bool:
    """Whether a graph's inputs or weights are stored as f16."""
    return any(v.dtype == 'f16' for v in graph.inputs) or any(
        array.dtype == np.float16 for array in graph.constants.values()
    )


def widened(graph: Graph) -> Graph:
    """A graph of f16 as one of float32: weights, inputs and whatever is cast to f16."""

    def attribute(name: str, value: Attribute) -> Attribute:
        if name == 'to' and value == _ONNX_F16:
            return _ONNX_F32
        return value.astype(np.float32) if _is_f16(value) else value

    nodes = tuple(
        replace(node, attributes={n: attribute(n, v) for n, v in node.attributes.items()})
        for node in graph.nodes
    )
    inputs = tuple(replace(v, dtype='f32') if v.dtype == 'f16' else v for v in graph.inputs)
    constants = {
        name: array.astype(np.float32) if _is_f16(array) else array
        for name, array in graph.constants.items()
    }
    return replace(graph, nodes=nodes, inputs=inputs, constants=constants)


def _is_f16(value: object) -> TypeGuard[np.ndarray]:
    return isinstance(value, np.ndarray) and value.dtype == np.float16


def half_group(group: Group, dtype: str, last: bool = True) -> Group:
    """One group alone: inputs, weights and result in `dtype`, images with their channels last."""
    halves = {t.name: dtype for t in group.tensors if _is_halved(group, t)}
    orders = dict.fromkeys(_images(group), LAST) if last else {}
    if orders:
        orders |= {name: WEIGHTS_LAST for name in halves if by_channel(group, name)}
    return rewritten(group, halves, orders, {})


def _is_halved(group: Group, tensor: Tensor) -> bool:
    if tensor.dtype != 'f32' or tensor.role == 'inner':
        return False
    return tensor.role != 'constant' or _is_weight(group, tensor.name)


def _is_weight(group: Group, name: str) -> bool:
    """Whether a tensor is a factor of the group's products."""
    main = group.main
    return main.is_product_sum and name in {a.tensor for a in main.reads}


def _rounds(group: Group) -> bool:
    """Whether a group makes whole numbers of its input, element by element: no need for halves."""
    return group.main.combiner is None and not is_float(group.output.dtype)


def _multiplies_values(group: Group) -> bool:
    """Whether a group adds up products of two tensors of which neither is constant."""
    return any(
        stage.is_product_sum and all(group.tensor(a.tensor).role != 'constant' for a in stage.reads)
        for stage in group.stages
    )


def by_channel(group: Group, name: str) -> bool:
    """Whether a tensor holds the weights of a depthwise convolution, a filter for each channel."""
    if not _is_weight(group, name) or group.tensor(name).role != 'constant':
        return False
    weights, image = group.main.reads
    if weights.tensor != name:
        weights, image = image, weights
    shape = group.tensor(name).shape
    shared = set(weights.index[0].names) & set(image.names)
    return len(shape) == 4 and shape[1] == 1 and bool(shared)


def _images(group: Group) -> set[str]:
    """Tensors of four axes that are images: what slides or sums up, and what is computed of it."""
    found = {
        access.tensor
        for stage in group.stages
        for access in stage.reads
        if len(access.index) == 4
        and group.tensor(access.tensor).role != 'constant'
        and _is_image(stage, access)
    }
    if found and len(group.output.shape) == 4:
        found |= {
            t.name
            for t in group.tensors
            if len(t.shape) == 4 and t.role not in ('constant', 'input')
        }
        found |= {
            a.tensor
            for stage in group.stages
            for a in stage.reads
            if len(a.index) == 4 and group.tensor(a.tensor).role == 'input'
        }
    return found


def _is_image(stage: Stage, access: Access) -> bool:
    slides = any(len(access.index[axis].terms) > 1 for axis in (2, 3))
    return slides or bool(set(access.index[1].names) & set(stage.reduction))


@dataclass
class _State:
    """What becomes of every value."""

    program: Program
    dtype: str
    on_cpu: bool = False
    made: dict[str, Value] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        program = self.program
        self.taken = set(program.values)
        fixed = {*program.inputs, *program.constants}
        fixed |= {name for name in program.values if program.is_output(name)}
        self.kept = {t.name for t in program.tasks if self.on_cpu and self._stays(t.group)}
        for task in program.tasks:
            if task.group.is_sequential or task.name in self.kept:
                fixed |= {program.place(v)[0] for v in (task.result, *task.operands.values())}
        self.halves = {
            name
            for name, value in program.values.items()
            if value.dtype == 'f32' and name not in fixed and program.place(name)[0] not in fixed
        }
        self.last = self._last()
        units = ON_CPU if self.on_cpu else ON_GPU
        self.forms = {
            name: form
            for name in program.inputs
            if name in self.last and len(program.readers.get(name, ())) == 1
            and not program.readers[name][0].group.is_sequential
            and (form := row_form(program.readers[name][0], name, units))
        }  # fmt: skip
        self.converted = {
            name: self._converted(name)
            for name in program.inputs
            if program.values[name].dtype == 'f32' and program.readers.get(name)
            and not any(t.group.is_sequential for t in program.readers[name])
            and not all(_rounds(t.group) for t in program.readers[name])
        }  # fmt: skip
        results = {program.place(t.result)[0] for t in program.tasks if t.name in self.kept}
        self.converted |= {
            name: self._converted(name)
            for name in program.values
            if name not in program.inputs and program.place(name)[0] in results
            and program.values[name].dtype == 'f32' and self._is_factor(name)
        }  # fmt: skip

    def _stays(self, group: Group) -> bool:
        """Whether a CPU has no kernel for the products of a group in halves."""
        tiled = self.dtype == 'bf16' and attends(group, LEAST_ROWS)
        return _multiplies_values(group) and not tiled

    def _is_factor(self, name: str) -> bool:
        """Whether some task multiplies a value by weights."""
        return any(
            task.name not in self.kept
            and any(v == name and _is_weight(task.group, t) for t, v in task.operands.items())
            for task in self.program.tasks
        )

    def last_writers(self) -> dict[str, int]:
        """Converted values that tasks make -> the last task that writes to them."""
        written = {
            self.program.place(task.result)[0]: number
            for number, task in enumerate(self.program.tasks)
        }
        return {
            name: written[self.program.place(name)[0]]
            for name in self.converted
            if name not in self.program.inputs
        }

    def _last(self) -> set[str]:
        """Images whose channels come last; results of networks and what is seen otherwise do not,
        unless their memory is the same either way.
        """
        program = self.program
        apart = {*program.views, *program.views.values(), *program.inside}
        apart |= {holder for holder, _ in program.inside.values()}
        found: set[str] = set()
        while True:
            before = len(found)
            for task in program.tasks:
                names = {**task.operands, task.group.output.name: task.result}
                seen = {names[t] for t in _images(task.group) if t in names}
                pointwise = task.group.main.combiner is None
                if pointwise and found & set(names.values()):
                    seen |= set(names.values())
                found |= {
                    v for v in seen
                    if v in self.halves | set(program.inputs)
                    and len(program.values[v].shape) == 4
                    and (v not in apart or _same_memory(program.values[v].shape))
                }  # fmt: skip
            if len(found) == before:
                return found

    def _converted(self, name: str) -> tuple[str, int]:
        """(the half value of an input, its channels: filled up where all who read it allow it)."""
        value = self.program.values[name]
        if name in self.forms:
            shape, channels = self.forms[name].shape, 0
        elif name not in self.last:
            shape, channels = value.shape, 0
        else:
            readers = self.program.readers[name]
            padded = all(_may_pad(task, name) for task in readers)
            channels = value.shape[1]
            if padded:
                unit = next((u for u in UNITS if u >= channels), UNITS[-1])
                channels = -(-channels // unit) * unit
            shape = (value.shape[0], *value.shape[2:], channels)
        half = fresh_name(f'{name}@{self.dtype}', self.taken)
        self.made[half] = Value(half, shape, self.dtype)
        if name in self.forms:
            view = fresh_name(f'{half}/rows', self.taken)
            self.made[view] = Value(view, self.forms[name].rows, self.dtype)
            self.views[view] = half
        return half, channels

    def conversions(self) -> dict[str, Task]:
        """Converted value -> the task that converts it."""
        tasks = {}
        for name, (half, _) in self.converted.items():
            image, shape = name in self.last, self.made[half].shape
            dims = dims_of(shape)
            axes = [var(d.name) for d in dims]
            index = [axes[LAST.index(axis)] for axis in range(4)] if image else axes
            if name in self.forms:
                for axis, before in zip((2, 3), self.forms[name].before, strict=True):
                    index[axis] = replace(index[axis], const=-before)
            stage = Stage(
                'convert', dims, Access('Out', tuple(axes)), (Access('In', tuple(index)),), read(0)
            )  # fmt: skip
            given = self.program.values[name].shape
            tensors = (
                Tensor('In', tuple(d.name for d in dims_of(given)), given),
                Tensor('Out', tuple(d.name for d in dims), shape, 'output', self.dtype),
            )
            label = f'convert {"x".join(map(str, given))} {self.dtype}'
            tasks[name] = Task(half, Group(label, tensors, (stage,)), {'In': name}, half)
        return tasks

    def type_of(self, name: str) -> Value:
        value = self.program.values[name]
        if name not in self.halves:
            return value
        shape = tuple(value.shape[a] for a in LAST) if name in self.last else value.shape
        return replace(value, shape=shape, dtype=self.dtype)

    def _in_rows(self, task: Task) -> Task:
        """The task that reads an input in rows."""
        found = next((v for v in task.operands.values() if v in self.forms), '')
        if not found:
            return task
        form = self.forms[found]
        value = task.operands[form.weights]
        given = task.group.tensor(form.weights).shape
        array = np.asarray(self.program.constants[self.program.base(value)]).reshape(given)
        rows = fresh_name(f'{value}/rows', self.taken)
        self.made[rows] = Value(rows, row_weights(array, form).shape, 'f32')
        self.constants[rows] = np.ascontiguousarray(row_weights(array, form))
        self.replaced |= {self.program.base(value)}
        view = next(v for v, half in self.views.items() if half == self.converted[found][0])
        operands = {**task.operands, form.weights: rows, form.image: view}
        return replace(task, group=in_rows(task.group, form), operands=operands)

    def task(self, task: Task) -> Task:
        """The task on what its values have become."""
        if task.name in self.kept:
            return task
        task = self._in_rows(task)
        group, operands = task.group, dict(task.operands)
        names = {**operands, group.output.name: task.result}
        dtypes: dict[str, str] = {}
        orders: dict[str, tuple[int, ...]] = {}
        widened: dict[str, int] = {}  # reduction -> its length
        for tensor, value in names.items():
            if value in self.views:
                dtypes[tensor] = self.dtype
            elif value in self.halves:
                dtypes[tensor] = self.dtype
                if value in self.last:
                    orders[tensor] = LAST
            elif value in self.converted and tensor in operands:
                operands[tensor], channels = self.converted[value]
                dtypes[tensor] = self.dtype
                if value in self.last:
                    orders[tensor] = LAST
                    if channels > group.tensor(tensor).shape[1]:
                        widened[_channel(group, tensor)] = channels
        if not dtypes or group.is_sequential:
            return task
        for tensor in [t for t in operands if _is_weight(group, t)]:
            if group.tensor(tensor).dtype == 'f32' and self._is_constant(operands[tensor]):
                if LAST in orders.values() and by_channel(group, tensor):
                    orders[tensor] = WEIGHTS_LAST
                operands[tensor] = self._weight(
                    group, tensor, operands[tensor], widened, orders.get(tensor)
                )
                dtypes[tensor] = self.made[operands[tensor]].dtype
        made = rewritten(group, dtypes, orders, widened)
        return replace(task, group=made, operands=operands)

    def _is_constant(self, value: str) -> bool:
        return self.program.base(value) in self.program.constants or value in self.constants

    def _weight(
        self, group: Group, tensor: str, value: str, widened: Mapping[str, int],
        order: tuple[int, ...] | None,
    ) -> str:  # fmt: skip
        """The half constant of a factor, zeros where it is widened."""
        access = next(a for a in group.main.reads if a.tensor == tensor)
        given = group.tensor(tensor).shape
        longer = [
            (0, widened[e.names[0]] - size if e.names and e.names[0] in widened else 0)
            for e, size in zip(access.index, given, strict=True)
        ]
        base = self.program.base(value)
        shape = tuple(size + more for size, (_, more) in zip(given, longer, strict=True))
        name = f'{value}@{self.dtype}' + (f'/{shape}' if shape != given else '')
        name += f'/{order}' if order else ''
        if name not in self.made:
            known = self.program.constants if base in self.program.constants else self.constants
            array = np.pad(np.asarray(known[base]).reshape(given), longer)
            moved = array.transpose(order) if order else array
            with np.errstate(over='ignore'):
                kept = np.ascontiguousarray(moved, NUMPY[self.dtype])
            dtype = self.dtype
            if not np.isfinite(kept.astype(np.float32)).all():  # too large: they stay
                dtype, kept = 'f32', np.ascontiguousarray(moved, np.float32)
            self.constants[name] = kept
            self.made[name] = Value(name, moved.shape, dtype)
            self.replaced |= {base}
        return name


def _same_memory(shape: Sequence[int]) -> bool:
    """Whether an image is the same in memory wherever its channels come."""
    return shape[1] == 1 or shape[2] * shape[3] == 1


def _channel(group: Group, tensor: str) -> str:
    """The reduction that runs over an image's channels."""
    access = next(a for a in group.main.reads if a.tensor == tensor)
    return access.index[1].names[0]


def _may_pad(task: Task, value: str) -> bool:
    """Whether more channels with weights of zero change nothing: products that sum over them."""
    group, main = task.group, task.group.main
    read_as = [t for t, v in task.operands.items() if v == value]
    if len(read_as) != 1 or not main.is_product_sum or not _is_weight(group, read_as[0]):
        return False
    if any(a.tensor == read_as[0] for s in group.stages if s is not main for a in s.reads):
        return False
    image, other = main.reads if main.reads[0].tensor == read_as[0] else main.reads[::-1]
    at = image.index[1]
    if len(at.terms) != 1 or at.terms[0][1] != 1 or at.const or at.names[0] not in main.reduction:
        return False
    weights = [e for e in other.index if at.names[0] in e.names]
    constant = group.tensor(other.tensor).role == 'constant'
    return constant and len(weights) == 1 and weights[0] == at


def rewritten(
    group: Group, dtypes: Mapping[str, str], orders: Orders, widened: Mapping[str, int]
) -> Group:
    """The group with other dtypes, axes in other orders, and longer reductions."""
    moved = dict(orders)
    if group.output.name in orders:
        moved |= {t.name: LAST for t in group.tensors if t.role == 'inner' and len(t.shape) == 4}
    longer = {
        (access.tensor, axis): widened[e.names[0]]
        for access in group.main.reads
        for axis, e in enumerate(access.index)
        if e.names and e.names[0] in widened
    }

    def order(name: str, items: Sequence) -> tuple:
        return tuple(items[axis] for axis in moved[name]) if name in moved else tuple(items)

    def tensor(one: Tensor) -> Tensor:
        shape = [longer.get((one.name, axis), size) for axis, size in enumerate(one.shape)]
        return replace(
            one, dims=order(one.name, one.dims), shape=order(one.name, shape),
            dtype=dtypes.get(one.name, one.dtype),
        )  # fmt: skip

    def access(one: Access) -> Access:
        if one.tensor not in moved:
            return one
        place = moved[one.tensor].index
        return Access(
            one.tensor, order(one.tensor, one.index),
            tuple((place(axis), values) for axis, values in one.tables),
            tuple((place(axis), number) for axis, number in one.lookups),
        )  # fmt: skip

    def stage(one: Stage) -> Stage:
        dims = one.dims
        if one is group.main and widened:
            dims = tuple(Dim(d.name, widened.get(d.name, d.size), d.kind) for d in dims)
        return replace(one, dims=dims, write=access(one.write), reads=tuple(map(access, one.reads)))

    kinds = sorted(set(dtypes.values()) & set(HALVES))
    return Group(
        ' '.join([group.label, *kinds]), tuple(map(tensor, group.tensors)),
        tuple(map(stage, group.stages)), group.storage,
    )  # fmt: skip
