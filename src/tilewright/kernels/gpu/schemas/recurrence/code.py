"""The recurrence schema: one kernel for each phase of a step, the same one for every step.

Goes in: a group whose stages take turns (ops/phases.py). Comes out: a module whose steps are these
kernels over and over, between one that sets the first states and one that writes the last. Which
step it is stands in memory, where the last block of a step counts it up, and back to zero at the
end; so nothing is compiled twice, and a graph of the whole call can be replayed.

Some lanes share a unit: they walk its rows of weights together, for a few sequences at a time, join
their sums in shared memory, and then each computes the functions of one sequence. Decisions:

    threads   of a block
    lanes     that share a unit, a power of two that divides the threads
    batch     sequences that a block takes at once, no more than lanes
    wide      1: weights and states are loaded four at a time, where they are floats and rows are
              whole fours; arrays have to begin at multiples of 16 bytes
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.schemas.general.plan import Tables, affine_text
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.kernels.gpu.point import table_lines
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.kernels.gpu.work import WARP, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.phases import Phase, Product, StepPlan, step_plan
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'recurrence'
TURN = 'Turn'  # [which step it is, blocks of it that are done]
AT_ONCE = 4  # sequences whose sums a lane keeps in registers
EACH = 128  # threads of a block that sets or writes states


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    steps = step_plan(group)
    threads, lanes, batch, wide = (schedule[n] for n in ('threads', 'lanes', 'batch', 'wide'))
    if lanes < 1 or lanes & (lanes - 1) or threads % lanes or not 1 <= batch <= lanes:
        raise ScheduleError(
            f'{group.label}: {lanes} lanes and {batch} sequences in a block of {threads} threads; '
            f'give a power of two that divides the threads, and no more sequences than lanes'
        )
    phases = [
        Step.of(PhaseKernel(steps, number, threads, lanes, batch, wide == 1).kernel())
        for number in range(len(steps.phases))
    ]
    begin = Step.of(Begin(steps).kernel())
    own = own_buffers(steps, (*steps.carried, *steps.kept))
    turn = Buffer(TURN, ('turn',), (2,), 'i32', zeroed=True)
    buffers = (*tensor_buffers(group), *own, turn)
    return Module(group, buffers, (begin, *phases * steps.steps, *finished(steps)))


def own_buffers(steps: StepPlan, names: Iterable[str]) -> list[Buffer]:
    """Memory for what steps hand on."""
    return [
        Buffer(name, _dims(steps, name), _sizes(steps, name), steps.group.tensor(name).dtype)
        for name in names
    ]


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """A warp for each unit, fewer lanes where sums are short; the last loads one at a time."""
    if not group.is_sequential:
        return ()
    steps = step_plan(group)
    shortest = min(p.units for phase in steps.phases for p in phase.products)
    lanes = 32
    while lanes > 4 and lanes > shortest:
        lanes //= 2
    threads = min(128, machine.threads_per_block)
    batch = min(AT_ONCE, steps.batch)
    return tuple(
        GpuSchedule.of(NAME, threads=threads, lanes=lanes, batch=batch, wide=wide)
        for wide in (1, 0)
    )


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]: blocks of all steps; each reads its rows of weights again."""
    steps = step_plan(group)
    threads, lanes, batch = (schedule[n] for n in ('threads', 'lanes', 'batch'))
    owners, parts = threads // lanes, -(-steps.batch // batch)
    blocks = products = sums = copied = 0
    for phase in steps.phases:
        grid = -(-steps.directions * phase.width // owners) * parts
        blocks += grid
        for p in phase.products:
            own = p.gates * batch
            products += grid * threads / WARP * own * -(-p.units // lanes)
            sums += grid * threads / WARP * own
            copied += 4 * grid * p.units * (owners * p.gates + batch)
    most = max(p.gates for phase in steps.phases for p in phase.products)
    joins = (2 + 3 * math.log2(lanes)) * sums / blocks
    return Work(
        blocks * steps.steps, 1, threads, registers or 32 + most * (batch + 1),
        4 * most * batch * threads, 1, 1, products / blocks, 0.0, joins, joins,
        copied / blocks / (4 * WARP), copied / blocks, 60.0 * threads / WARP,
        8.0 * owners * batch, 0.0, extra_kernels=len(steps.phases) * steps.steps + 1,
    )  # fmt: skip


def _dims(steps: StepPlan, name: str) -> tuple[str, ...]:
    return ('parity', 'd', 'n', 'h') if name in steps.carried else ('d', 'n', 'h')


def _sizes(steps: StepPlan, name: str) -> tuple[int, ...]:
    sizes = steps.directions, steps.batch, steps.width(name)
    return (2, *sizes) if name in steps.carried else sizes


class _Texts:
    """What kernels of a group read and write, and the texts of elements and expressions."""

    def __init__(self, steps: StepPlan, tables: str = 'table') -> None:
        self.steps, self.group = steps, steps.group
        self.typed, self.tables = GpuTyped(), Tables(tables)
        self.used: dict[str, bool] = {}  # tensor -> whether it is written

    def use(self, name: str, written: bool = False) -> str:
        self.used[name] = self.used.get(name, False) or written
        return name

    def arguments(self) -> tuple[Array, ...]:
        return tuple(
            Array(name, ('turn',), (2,), 'i32', written)
            if name == TURN
            else Array(name, _dims(self.steps, name), _sizes(self.steps, name),
                       self.group.tensor(name).dtype, written)
            if name in self.steps.carried or name in self.steps.kept
            else Array(name, self.group.tensor(name).dims, self.group.tensor(name).shape,
                       self.group.tensor(name).dtype, written)
            for name, written in self.used.items()
        )  # fmt: skip

    def launched(self, name: str, lines: list[str], points: int) -> Kernel:
        """A kernel of one thread for each point."""
        grid = (-(-points // EACH), 1, 1)
        return Kernel(name, self.arguments(), '\n'.join(lines), grid, EACH, (), self.helpers())

    def helpers(self) -> str:
        return '\n'.join(filter(None, [self.typed.helpers(), table_lines(self.tables)]))

    def state(self, name: str, parity: str, n: str, unit: str, written: bool = False) -> str:
        """An element of a tensor that steps or phases hand on."""
        d, batch, width = self.steps.directions, self.steps.batch, self.steps.width(name)
        place = f'(d * {batch} + {n}) * {width} + {unit}'
        if name in self.steps.carried:
            place = f'({parity}) * {d * batch * width} + {place}'
        return f'{self.use(name, written)}[{place}]'

    def last(self, name: str, n: str, unit: str) -> str:
        """What the step before left."""
        return self.state(name, 't & 1', n, unit)

    def element(self, access: Access) -> str:
        """An element of an operand of the group."""
        tensor, tables, terms = self.group.tensor(access.tensor), dict(access.tables), []
        for axis, (at, step) in enumerate(zip(access.index, tensor.strides, strict=True)):
            text = affine_text(at)
            if axis in tables:
                text = f'{self.tables.of(tables[axis], tensor.shape[axis]).name}[{text}]'
            terms.append(scaled(f'({text})', step) if text != '0' else '')
        return f'{self.use(access.tensor)}[{total(terms)}]'

    def value(self, expr, reads, dtype: str, row: str = '') -> str:
        names = {name: name for name in 'tdnh'} | {'r': row}
        text, made = self.typed.text(expr, reads, names)
        return narrow(self.typed.convert(text, made, dtype))

    def store(self, row: str, reads: list[tuple[str, str]]) -> str:
        """One element of the result, in a row."""
        final, out = self.steps.final, self.group.output
        value = self.value(final.expr, reads, out.dtype, row)
        terms = [
            scaled(f'({affine_text(e)})'.replace('(r)', f'({row})'), step)
            for e, step in zip(final.write.index, out.strides, strict=True)
        ]
        return f'{self.use(out.name, written=True)}[{total(terms)}] = {value};'


class PhaseKernel(_Texts):
    """One phase of a step, whichever it is."""

    def __init__(
        self, steps: StepPlan, number: int, threads: int, lanes: int, batch: int, wide: bool
    ) -> None:
        super().__init__(steps, f'table_{number}' if number else 'table')
        self.number, self.phase = number, steps.phases[number]
        self.threads, self.lanes, self.at_once, self.wide = threads, lanes, batch, wide

    @property
    def type(self) -> str:
        return C_TYPES[self.group.output.dtype]

    def kernel(self) -> Kernel:
        phase, steps = self.phase, self.steps
        items, owners = steps.directions * phase.width, self.threads // self.lanes
        grid = -(-items // owners), -(-steps.batch // self.at_once), 1
        self.use(TURN)
        body = [
            f'const int t = {TURN}[0];',
            f'const int lane = THREAD % {self.lanes};',
            f'const int mine = BLOCK_X * {owners} + THREAD / {self.lanes};',
            # All threads have to reach the barriers: those behind the end repeat the last unit.
            f'const int item = mine < {items} ? mine : {items - 1};',
            f'const int d = item / {phase.width};',
            f'const int h = item % {phase.width};',
            f'const int first = BLOCK_Y * {self.at_once};',
        ]
        for product in phase.products:
            body += self._product(product)
        body += [
            f'if (mine < {items} && lane < {self.at_once} && first + lane < {steps.batch}) {{',
            '    const int n = first + lane;',
            *(f'    {line}' for line in self._points(phase)),
            '}',
        ]
        if self.number == len(steps.phases) - 1:
            body += self._next(math.prod(grid))
        floats = DTYPES[self.group.output.dtype] // 4
        shared = tuple(
            (f'{p.stage.write.tensor}_joined', self._sums(p) * self.threads * floats)
            for p in phase.products
        )
        return Kernel(
            f'recurrence_{phase.products[0].stage.name}', self.arguments(), '\n'.join(body), grid,
            self.threads, shared, self.helpers(),
        )  # fmt: skip

    def _sums(self, product: Product) -> int:
        return product.gates * self.at_once

    def _product(self, product: Product) -> list[str]:
        """Sums of this unit: all gates of a few sequences, each by its lanes together."""
        name, kind, gates = product.stage.write.tensor, self.type, product.gates
        weights, units = self.use(product.weights), product.units
        width, batch = self.phase.width, self.steps.batch
        every = [(g, n) for g in range(gates) for n in range(self.at_once)]
        four = self.wide and units % 4 == 0 and kind == 'float'
        lines = [f'{kind} {name}_{g}_{n} = 0;' for g, n in every]
        first, step = ('lane * 4', self.lanes * 4) if four else ('lane', self.lanes)
        lines.append(f'for (int k = {first}; k < {units}; k += {step}) {{')
        for n in range(self.at_once):
            at = 'first' if n == 0 else f'min(first + {n}, {batch - 1})'
            parity = 't & 1' if product.last else '0'
            source = self.state(product.source, parity, at, 'k')
            lines.append(f'    {_loaded(f"x_{n}", source, kind, four)}')
        for g in range(gates):
            row = f'((d * {gates} + {g}) * {width} + h) * {units} + k'
            lines.append(f'    {_loaded(f"w_{g}", f"{weights}[{row}]", kind, four)}')
        for part in ('.x', '.y', '.z', '.w') if four else ('',):
            lines += [f'    {name}_{g}_{n} += w_{g}{part} * x_{n}{part};' for g, n in every]
        lines.append('}')
        lines.append(f'SHARED {kind} *const {name}_sums = (SHARED {kind} *){name}_joined + THREAD;')
        places = [number * self.threads for number in range(len(every))]
        for (g, n), place in zip(every, places, strict=True):
            lines.append(f'{name}_sums[{place}] = {name}_{g}_{n};')
        lines += ['BARRIER;', f'for (int apart = {self.lanes // 2}; apart > 0; apart /= 2) {{']
        lines += ['    if (lane < apart) {']
        lines += [f'        {name}_sums[{p}] += {name}_sums[{p} + apart];' for p in places]
        return [*lines, '    }', '    BARRIER;', '}']

    def _points(self, phase: Phase) -> list[str]:
        lines, values = [], {}
        for stage in phase.points:
            name = stage.write.tensor
            reads = [self._read(access, values) for access in stage.reads]
            dtype = self.group.tensor(name).dtype
            made = self.value(stage.expr, reads, dtype)
            lines.append(f'const {C_TYPES[dtype]} {name}_here = {made};')
            values[name] = f'{name}_here'
            if name in self.steps.carried or name in self.steps.kept:
                target = self.state(name, '(t + 1) & 1', 'n', 'h', written=True)
                lines.append(f'{target} = {name}_here;')
            if name == self.steps.final.reads[0].tensor:
                lines.append(self._show(f'{name}_here'))
        return lines

    def _read(self, access: Access, values: dict[str, str]) -> tuple[str, str]:
        name, dtype = access.tensor, self.group.tensor(access.tensor).dtype
        for product in self.phase.products:
            if product.stage.write.tensor == name:
                # Sums of a unit are those of its first lane; this lane takes its own sequence.
                gate = access.index[3].const * self.at_once
                return f'{name}_sums[({gate} + lane) * {self.threads} - lane]', dtype
        carried = name in self.steps.aliases or name in self.steps.carried
        if carried and self.steps.is_last(access):
            return self.last(self.steps.carrier(access), 'n', 'h'), dtype
        if name in values:
            return values[name], dtype
        if carried:
            return self.state(name, '(t + 1) & 1', 'n', 'h'), dtype
        if name in self.steps.kept:
            return self.state(name, '0', 'n', 'h'), dtype
        return self.element(access), dtype

    def _show(self, value: str) -> str:
        """The row of the result that belongs to this step; it reads nothing of later rows."""
        steps, rows = self.steps, tuple(row for each in self.steps.rows for row in each)
        row = 't'
        if rows != tuple(range(steps.steps)):
            row = f'{self.tables.of(rows, steps.final.sizes["r"]).name}[d * {steps.steps} + t]'
        reads = []
        for number, access in enumerate(steps.final.reads):
            dtype = self.group.tensor(access.tensor).dtype
            if access.tensor in steps.carried:
                reads.append((value if number == 0 else f'({C_TYPES[dtype]})0', dtype))
            else:
                reads.append((self.element(access), dtype))
        return self.store(row, reads)

    def _next(self, blocks: int) -> list[str]:
        """The last block of a step says which one comes next; all have read which it was."""
        self.use(TURN, written=True)
        return [
            f'if (THREAD == 0 && ATOMIC_COUNT({TURN} + 1) == {blocks - 1}) {{',
            f'    {TURN}[1] = 0;',
            f'    {TURN}[0] = t + 1 < {self.steps.steps} ? t + 1 : 0;',
            '}',
        ]


def _loaded(name: str, element: str, kind: str, four: bool) -> str:
    """One element, or four beside each other, in a variable."""
    if four:
        return f'const float4 {name} = LOAD4(GLOBAL, &{element});'
    return f'const {kind} {name} = {element};'


class Begin(_Texts):
    """States before the first step, as they are given, or zero; one thread for each element."""

    def kernel(self) -> Kernel:
        steps = self.steps
        lines = _point_lines([steps.directions, steps.batch, self._widest], 'dnh')
        for name, given in steps.carried.items():
            width, dtype = steps.width(name), self.group.tensor(name).dtype
            value = f'({C_TYPES[dtype]})0'
            if given:
                value = f'{self.use(given)}[(d * {steps.batch} + n) * {width} + h]'
            target = self.state(name, '0', 'n', 'h', written=True)
            lines += [f'if (h < {width})', f'    {target} = {value};']
        return self.launched('recurrence_first', lines, self._points)

    @property
    def _widest(self) -> int:
        return max(map(self.steps.width, self.steps.carried))

    @property
    def _points(self) -> int:
        return self.steps.directions * self.steps.batch * self._widest


class Finish(_Texts):
    """The rows behind the steps: last states and cells, one thread for each element."""

    def __init__(self, steps: StepPlan) -> None:
        super().__init__(steps, 'table_last')

    def kernel(self) -> Kernel:
        steps, final = self.steps, self.steps.final
        sizes = [final.sizes['r'] - steps.steps, steps.directions, steps.batch, final.sizes['h']]
        body = [*_point_lines(sizes, ('behind', *'dnh')), f'const int r = behind + {steps.steps};']
        reads = []
        for number, access in enumerate(final.reads):
            dtype = self.group.tensor(access.tensor).dtype
            if access.tensor not in steps.carried:
                reads.append((self.element(access), dtype))
                continue
            width, parity = steps.width(access.tensor), str(steps.steps & 1)
            body.append(f'const int unit_{number} = {affine_text(access.index[3])};')
            state = self.state(access.tensor, parity, 'n', f'unit_{number}')
            there = f'unit_{number} >= 0 && unit_{number} < {width}'
            reads.append((f'({there} ? {state} : ({C_TYPES[dtype]})0)', dtype))
        body.append(self.store('r', reads))
        return self.launched('recurrence_last', body, math.prod(sizes))


def finished(steps: StepPlan) -> tuple[Step, ...]:
    """What writes the rows behind the steps, where there are any: gradients have none."""
    if steps.final.sizes['r'] == steps.steps:
        return ()
    return (Step.of(Finish(steps).kernel()),)


def _point_lines(sizes: Sequence[int], names: Sequence[str]) -> list[str]:
    """Which point this thread is; those behind the end leave."""
    return [
        f'const int point = BLOCK_X * {EACH} + THREAD;',
        f'if (point >= {math.prod(sizes)})',
        '    return;',
        *pieces.decode('point', list(zip(names, sizes, strict=True))),
    ]
