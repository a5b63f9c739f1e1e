"""The schema of steps by matrix instructions: two kernels for each phase of a step.

Goes in: a group whose stages take turns (ops/phases.py), float32, where the products of a phase are
alike. Comes out: a module. The products of a phase are one matrix product of all sequences with all
rows of weights, which the schema `inner` computes (3xTF32): both operands are contiguous along what
is summed up, and blocks share the depth, so that every multiprocessor reads a part of the weights
and of the states once:

    Sums[q, d, n, g, h] = sum over k of Weights[q, d, g, h, k] * From[q, d, n, k]

q are products of a phase with sources of their own: gradients have one for each gate. The second
kernel, a thread for each unit of a sequence, adds the parts of a sum in a fixed order, computes the
functions, and writes what later products read to their `From`. Weights of several products are laid
side by side once, before the first step. Which step it is stands in memory, as in code.py.
Decisions are those of `inner`:

    bk bp   sequences and rows of weights of a block    tk tp   of a warp
    kb      depth of a piece     stages   pieces in flight     split   blocks that share the depth
    fresh   1: sums of eight depths are added in fp32; 0 where it is not said
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.inner.code import partial_sums, summing_kernel
from tilewright.kernels.gpu.schemas.inner.counts import work as work_of_products
from tilewright.kernels.gpu.schemas.inner.plan import INTRINSIC, InnerPlan
from tilewright.kernels.gpu.schemas.inner.plan import plan as plan_of_products
from tilewright.kernels.gpu.schemas.recurrence.code import (
    EACH,
    TURN,
    Begin,
    PhaseKernel,
    finished,
    own_buffers,
)
from tilewright.kernels.gpu.schemas.recurrence.persistent import propose as propose_others
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.describe import group_of
from tilewright.ops.group import Group
from tilewright.ops.phases import Phase, StepPlan, step_plan
from tilewright.ops.stage import Access, Dim, Stage, call, read, var
from tilewright.schedule.gpu import GpuSchedule

NAME = 'matrix_steps'
LEAST_BATCH = 8  # sequences from which on rows of matrix instructions are worth it
MOST_ROWS = 64  # sequences of a block
MOST_SUMS = 1024  # of a warp
_DIMS = {'Sums': 'qdngh', 'Weights': 'qdghk', 'From': 'qdnk'}  # q: where there are several
# What blocks do in every step, of kernels/gpu/work.py.
_EACH_STEP = ('pieces', 'matrix', 'reads', 'wavefronts', 'copies', 'copied', 'other', 'stored')
DECISIONS = ('bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split')


class _Names:
    """Buffers of a phase."""

    def __init__(self, number: int) -> None:
        self.source, self.weights = f'From_{number}', f'Weights_{number}'
        self.sums = f'Sums_{number}'


def _products(steps: StepPlan, number: int) -> Group:
    """The products of a phase as one group."""
    phase = steps.phases[number]
    first, count = phase.products[0], len(phase.products)
    sizes = {'d': steps.directions, 'n': steps.batch, 'g': first.gates, 'h': phase.width,
             'k': first.units}  # fmt: skip
    if count > 1:
        sizes = {'q': count, **sizes}
    dims = tuple(Dim(n, size, 'reduction' if n == 'k' else 'parallel') for n, size in sizes.items())

    own = {name: [n for n in names if n in sizes] for name, names in _DIMS.items()}
    sums, *operands = (Access(name, tuple(map(var, names))) for name, names in own.items())
    stage = Stage(
        'steps', dims, sums, tuple(operands), call('mul', read(0), read(1)), 'sum'
    )  # fmt: skip
    shapes = {access.tensor: tuple(sizes[n] for n in own[access.tensor]) for access in operands}
    return group_of(f'{steps.group.label}-products', [stage], shapes)


def _of_products(schedule: GpuSchedule) -> GpuSchedule:
    """The schedule of `inner` for the products of a phase."""
    tiles = {name: schedule[name] for name in DECISIONS}
    fresh = {name: value for name, value in schedule.tiles if name == 'fresh'}
    return GpuSchedule.of('inner', schedule.intrinsic, **tiles, joint=0, **fresh)


def plans(group: Group, schedule: GpuSchedule) -> tuple[StepPlan, tuple[InnerPlan, ...]]:
    """The steps, and the products of each phase; ScheduleError where it is not legal."""
    steps = step_plan(group)
    if any(t.dtype != 'f32' for t in group.tensors if t.role == 'output'):
        raise ScheduleError(f'{group.label}: the {NAME} schema computes in float32')
    for phase in steps.phases:
        if len({(p.gates, p.units) for p in phase.products}) != 1:
            raise ScheduleError(
                f'{group.label}: the {NAME} schema needs products in every phase of its steps, all '
                f'of the same size'
            )
    inner = _of_products(schedule)
    return steps, tuple(
        plan_of_products(_products(steps, number), inner) for number in range(len(steps.phases))
    )


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    steps, found = plans(group, schedule)
    buffers = [*own_buffers(steps, (*steps.carried, *steps.kept))]
    buffers.append(Buffer(TURN, ('turn',), (2,), 'i32', zeroed=True))
    ahead: list[Step] = [Step.of(_First(steps).kernel())]
    each: list[Step] = []
    for number, (phase, p) in enumerate(zip(steps.phases, found, strict=True)):
        names, sums = _Names(number), partial_sums(p)
        weights = phase.products[0].weights
        buffers += [_source(steps, number), Buffer(names.sums, sums.dims, sums.sizes)]
        if len(phase.products) > 1:
            weights = names.weights
            side_by_side = p.group.tensor('Weights')
            buffers.append(Buffer(weights, side_by_side.dims, side_by_side.shape))
            ahead.append(Step.of(_gathered(steps, number, p)))
        each += [
            Step.of(
                summing_kernel(p, [sums]),
                **{'Weights': weights, 'From': names.source, sums.name: names.sums},
            ),
            Step.of(_Functions(steps, number, p).kernel()),
        ]
    return Module(
        group,
        (*tensor_buffers(group), *buffers),
        (*ahead, *each * steps.steps, *finished(steps)),
    )


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Tiles of sequences as high as there are, of rows as wide as blocks on all multiprocessors
    allow, each with the depth shared by as many blocks as are free; then what other schemas
    propose.
    """
    if not group.is_sequential:
        return ()
    others = propose_others(group, machine)
    steps = step_plan(group)
    if steps.batch < LEAST_BATCH or not machine.has(INTRINSIC):
        return others
    high = next((n for n in (16, 32) if steps.batch <= n), MOST_ROWS)
    phase = max(steps.phases, key=lambda phase: _rows(steps, phase))
    found = []
    for wide in (32, 64, 128):
        tiles = -(-_rows(steps, phase) // wide) * -(-steps.batch // high)
        tp = max(wide // 4, 8)
        tk = high if high * tp <= MOST_SUMS else high // 2
        for waves in (1, 2, 4):
            split = max(waves * machine.multiprocessors // tiles, 1)
            tiled = {'bk': high, 'bp': wide, 'tk': tk, 'tp': tp, 'kb': 32, 'stages': 3}
            found.append(GpuSchedule.of(NAME, INTRINSIC, **tiled, split=split))
    return (*dict.fromkeys(found), *others)


def _rows(steps: StepPlan, phase: Phase) -> int:
    """Rows of weights of all products of a phase."""
    return steps.directions * len(phase.products) * phase.products[0].gates * phase.width


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]: the products of all steps, each behind the one before it.

    Functions begin while the last products end, so that both launches of a phase are counted as
    one: with two, predictions were 3 to 6 us a step too long (LSTMs of 8 to 64 sequences, H200).
    """
    steps, found = plans(group, schedule)
    inner = _of_products(schedule)
    main = max(found, key=lambda p: p.results)
    one = work_of_products(main.group, inner, registers)
    moved = sum(8.0 * p.split * p.results for p in found)
    turns = steps.steps * len(found)
    many = {name: turns * getattr(one, name) for name in _EACH_STEP}
    return replace(
        one, **many, extra_kernels=turns, extra_bytes=moved * steps.steps
    )  # fmt: skip


def _source(steps: StepPlan, number: int) -> Buffer:
    made = _products(steps, number).tensor('From')
    return Buffer(_Names(number).source, made.dims, made.shape)


def _sources(steps: StepPlan, name: str) -> list[tuple[Buffer, int]]:
    """Where products read a tensor: the buffer of a phase, and which of its products it is."""
    return [
        (_source(steps, number), q)
        for number, phase in enumerate(steps.phases)
        for q, product in enumerate(phase.products)
        if product.source == name
    ]


def _written(steps: StepPlan, names: tuple[str, ...]) -> tuple[Array, ...]:
    """Arguments of a kernel that writes sources of products."""
    buffers = {b.name: b for name in names for b, _ in _sources(steps, name)}
    return tuple(Array(b.name, b.dims, b.sizes, written=True) for b in buffers.values())


def _sent(steps: StepPlan, name: str, value: str) -> list[str]:
    """Write a value of unit h of sequence n to where products read it."""
    lines = []
    for buffer, q in _sources(steps, name):
        d, batch, units = buffer.sizes[-3:]
        place = f'(({q} * {d} + d) * {batch} + n) * {units} + h'
        lines.append(f'{buffer.name}[{place}] = {value};')
    return lines


class _First(Begin):
    """States before the first step, also where products read them."""

    def kernel(self) -> Kernel:
        made, steps = super().kernel(), self.steps
        lines = []
        for name in steps.carried:
            sent = _sent(steps, name, self.state(name, '0', 'n', 'h'))
            lines += [f'if (h < {steps.width(name)}) {{', *(f'    {x}' for x in sent), '}'] * bool(
                sent
            )
        return replace(
            made, args=(*made.args, *_written(steps, tuple(steps.carried))),
            body='\n'.join([made.body, *lines]),
        )  # fmt: skip


class _Functions(PhaseKernel):
    """The functions of a phase: one thread for each unit of a sequence."""

    def __init__(self, steps: StepPlan, number: int, p: InnerPlan) -> None:
        super().__init__(steps, number, EACH, 1, 1, False)
        self.p, self.sums = p, _Names(number).sums

    def kernel(self) -> Kernel:
        steps, phase, p = self.steps, self.phase, self.p
        sizes = steps.directions, steps.batch, phase.width
        points = math.prod(sizes)
        self.use(TURN)
        functions = self._points(phase)
        for name in phase.written:
            functions += _sent(steps, name, f'{name}_here')
        body = [
            f'const int t = {TURN}[0];',
            f'const int point = BLOCK_X * {EACH} + THREAD;',
            f'if (point < {points}) {{',
            f'    const int h = point % {phase.width};',
            f'    const int n = point / {phase.width} % {steps.batch};',
            f'    const int d = point / {phase.width * steps.batch};',
        ]
        for q, product in enumerate(phase.products):
            name, gates = product.stage.write.tensor, product.gates
            row = f'(({q} * {steps.directions} + d) * {steps.batch} + n) * {gates}'
            body += [
                f'    float {name}_own[{gates}];',
                '#pragma unroll',
                f'    for (int g = 0; g < {gates}; g++) {{',
                '        float value = 0.0f;',
                '#pragma unroll',
                f'        for (int part = 0; part < {p.split}; part++)',
                f'            value += {self.sums}[part * {p.results} + ({row} + g) * '
                f'{phase.width} + h];',
                f'        {name}_own[g] = value;',
                '    }',
            ]
        body += [*(f'    {line}' for line in functions), '}']
        blocks = -(-points // EACH)
        if self.number == len(steps.phases) - 1:
            body += ['BARRIER;', *self._next(blocks)]  # all have read which step it is
        sums = partial_sums(p)
        return Kernel(
            f'steps_{phase.products[0].stage.name}',
            (*self.arguments(), Array(self.sums, sums.dims, sums.sizes),
             *_written(steps, phase.written)),
            '\n'.join(body), (blocks, 1, 1), EACH, (), self.helpers(),
        )  # fmt: skip

    def _read(self, access: Access, values: dict[str, str]) -> tuple[str, str]:
        if any(p.stage.write.tensor == access.tensor for p in self.phase.products):
            return f'{access.tensor}_own[{access.index[3].const}]', 'f32'
        return super()._read(access, values)


def _gathered(steps: StepPlan, number: int, p: InnerPlan) -> Kernel:
    """Weights of the products of a phase side by side."""
    phase, whole = steps.phases[number], p.group.tensor('Weights')
    each = math.prod(whole.shape) // len(phase.products)
    body = [
        f'const int at = BLOCK_X * {EACH} + THREAD;',
        f'if (at >= {each})',
        '    return;',
        *(f'{_Names(number).weights}[{q * each} + at] = {product.weights}[at];'
          for q, product in enumerate(phase.products)),
    ]  # fmt: skip
    given = {x.weights: steps.group.tensor(x.weights) for x in phase.products}
    return Kernel(
        f'steps_weights_{number}',
        (*(Array(name, t.dims, t.shape, t.dtype) for name, t in given.items()),
         Array(_Names(number).weights, whole.dims, whole.shape, written=True)),
        '\n'.join(body), (-(-each // EACH), 1, 1), EACH,
    )  # fmt: skip
