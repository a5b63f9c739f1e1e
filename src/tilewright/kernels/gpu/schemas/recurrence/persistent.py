"""The persistent schema: all steps in one kernel, recurrent weights on the chip from first to last.

Goes in: a group whose stages take turns (ops/phases.py), float32, with phases of one width. Comes
out: a module of three kernels: states before the first step, all steps, states behind the last. All
blocks run at once (need 'resident_grid'); the device refuses to start a kernel whose blocks it
cannot hold together.

    a block    `per` units of one direction, a warp for each; weights of a unit are dealt out to its
               lanes, `kept` fours of each row in registers, the rest in shared memory
    a phase    wait for what the last one left of all units, copy it to shared memory, multiply,
               join the sums of lanes, compute the functions: lane n those of sequence n
    between    a value is sent together with the number of its step, as one word of 8 bytes, and
               read until that number is the right one: no fence, no counter. Two buffers in turns
               are enough, since whoever is a step ahead has read what everybody sent before.

Like NCCL's protocol LL; persistent RNNs: Diamos et al. (ICML'16). Decisions:

    per     units of a block
    kept    fours of a row of weights that a lane keeps in registers
    batch   sequences whose sums a lane has at once
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import Array, Kernel, padded
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.recurrence.code import (
    AT_ONCE,
    Begin,
    PhaseKernel,
    finished,
    own_buffers,
)
from tilewright.kernels.gpu.schemas.recurrence.code import propose as propose_steps
from tilewright.kernels.gpu.work import WARP, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.ops.phases import Phase, Product, StepPlan, step_plan
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'persistent'
RESIDENT = 'resident_grid'
FOUR = 4
OTHER_REGISTERS = 40  # beside weights and sums
SCHEDULERS = 4  # parts of a multiprocessor: each has its share of warps and registers
ASKED = 512  # pairs that a block asks for before it looks at the first: others wait behind them
PARTS = 'xyzw'


@dataclass(frozen=True)
class PersistentPlan:
    """Units of a block, weights in registers, sequences at once."""

    steps: StepPlan
    per: int
    kept: int
    at_once: int

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(p for phase in self.steps.phases for p in phase.products)

    @property
    def width(self) -> int:
        return self.steps.phases[0].width

    @property
    def blocks(self) -> int:
        """Blocks of one direction."""
        return -(-self.width // self.per)

    @property
    def threads(self) -> int:
        return self.per * WARP

    def fours(self, product: Product) -> int:
        """Fours of a row of weights that a lane has."""
        return -(-product.units // (FOUR * WARP))

    def pitch(self, product: Product) -> int:
        return self.fours(product) * FOUR * WARP

    def held(self, product: Product) -> int:
        """Fours of a row that are in registers."""
        return min(self.kept, self.fours(product))

    def asked(self, product: Product) -> tuple[int, int, int]:
        """(values of a word, words of all units and sequences, words that a thread asks for at
        once).
        """
        run = 2 if product.units % 2 == 0 else 1
        count = self.steps.batch * product.units // run
        return run, count, min(-(-count // self.threads), max(ASKED // self.threads, 1))

    def rounds(self, product: Product) -> int:
        """Times that a thread asks for words and waits for them."""
        _, count, turns = self.asked(product)
        return -(-count // (turns * self.threads))

    @property
    def registers(self) -> int:
        weights = sum(FOUR * p.gates * self.held(p) for p in self.products)
        sums = (max(p.gates for p in self.products) + FOUR) * self.at_once
        return weights + sums + OTHER_REGISTERS

    @property
    def shared(self) -> tuple[tuple[str, int], ...]:
        """(array, floats): what all units left, and weights that are not in registers."""
        found = []
        for number, p in enumerate(self.products):
            found.append((f'x_{number}', self.steps.batch * self.pitch(p)))
            rest = self.fours(p) - self.held(p)
            if rest:
                found.append((f'rest_{number}', rest * p.gates * FOUR * self.threads))
        return tuple(found)

    @property
    def shared_bytes(self) -> int:
        return 4 * sum(padded(floats) for _, floats in self.shared)


def plan(group: Group, schedule: GpuSchedule) -> PersistentPlan:
    """[Group, GpuSchedule] -> [PersistentPlan]; ScheduleError where it is not legal."""
    steps = step_plan(group)
    per, kept, batch = (schedule[n] for n in ('per', 'kept', 'batch'))
    for text, holds in (
        ('all tensors of its steps are float32', group.output.dtype == 'f32'),
        ('all its phases have one width', len({p.width for p in steps.phases}) == 1),
        ('every phase has a product', all(p.products for p in steps.phases)),
        (f'there are at most {WARP} sequences', steps.batch <= WARP),
        ('per is 1 to 32 and batch at least 1', 1 <= per <= WARP and batch >= 1),
    ):
        if not holds:
            raise ScheduleError(f'{group.label}: schedule {schedule.tiles}: it must be that {text}')
    return PersistentPlan(steps, per, kept, min(batch, steps.batch))


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    main = _AllSteps(p).kernel()
    begin = Step.of(_Start(p).kernel())
    sent = [Buffer(a.name, a.dims, a.sizes) for a in map(_sent(p), _sources(p))]
    buffers = (*tensor_buffers(group), *own_buffers(p.steps, p.steps.carried), *sent)
    return Module(group, buffers, (begin, Step.of(main), *finished(p.steps)))


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """As few units in a block as the multiprocessors allow, as much of the weights in registers as
    there is room; then the schedules of one kernel a step.
    """
    if not group.is_sequential:
        return ()
    others = propose_steps(group, machine)
    steps = step_plan(group)
    width, batch = steps.phases[0].width, min(AT_ONCE, steps.batch)
    blocks = machine.multiprocessors // steps.directions  # of a direction, one on each
    if RESIDENT not in machine.instructions or blocks < 1:
        return others
    per = -(-width // blocks)
    if per * WARP > machine.threads_per_block:
        return others
    held = -(-per // SCHEDULERS) * SCHEDULERS * WARP
    room = min(machine.registers // held // 8 * 8, machine.registers_per_thread)
    for kept in range(16, -1, -1):
        schedule = GpuSchedule.of(NAME, per=per, kept=kept, batch=batch)
        try:
            p = plan(group, schedule)
        except ScheduleError:
            return others
        if p.registers <= room and p.shared_bytes <= machine.shared_bytes_per_block:
            return (schedule, *others)
    return others


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]: each phase waits for the one before it, out and in again, and
    for every round of what it asks for.
    """
    p = plan(group, schedule)
    turns, steps = p.steps.steps * len(p.steps.phases), p.steps
    each = sum(FOUR * x.gates * p.fours(x) for x in p.products)  # of a lane and a sequence
    sums = sum(x.gates for x in p.products) * steps.batch
    reads = sum(p.fours(x) for x in p.products) * steps.batch
    rest = sum((p.fours(x) - p.held(x)) * x.gates for x in p.products)
    rest *= -(-steps.batch // p.at_once)
    weights = 4.0 * sum(x.gates * x.units for x in p.products) * p.per
    received = 8.0 * steps.batch * sum(x.units for x in p.products)
    warps = p.per * steps.steps
    return Work(
        steps.directions * p.blocks, 1, p.threads, registers or p.registers, p.shared_bytes, 1,
        turns, warps * each * steps.batch, 0.0, warps * (reads + rest),
        warps * FOUR * (reads + rest), steps.steps * received / 8 / WARP,
        weights + steps.steps * received, warps * (10 * sums + 60 * len(steps.phases)),
        8.0 * steps.steps * p.per * steps.batch, 0.0, extra_kernels=2,
        waits=turns + steps.steps * sum(p.rounds(x) for x in p.products),
    )  # fmt: skip


def _sources(p: PersistentPlan) -> tuple[str, ...]:
    """What all units send to each other."""
    return tuple(dict.fromkeys(x.source for x in p.products))


def _sent(p: PersistentPlan):
    def array(name: str) -> Array:
        sizes = (2, p.steps.directions, p.steps.batch, p.steps.width(name), 2)
        return Array(f'{name}_sent', ('parity', 'd', 'n', 'h', 'word'), sizes, written=True)

    return array


def _place(p: PersistentPlan, name: str, parity: str, n: str, unit: str) -> str:
    """Where the pair of a value and its step is."""
    d, batch, width = p.steps.directions, p.steps.batch, p.steps.width(name)
    inner = f'({parity}) * {d * batch * width} + (d * {batch} + {n}) * {width} + {unit}'
    return f'{name}_sent + 2 * ({inner})'


class _Start(Begin):
    """States before the first step; nothing else has been sent yet."""

    def __init__(self, p: PersistentPlan) -> None:
        super().__init__(p.steps)
        self.p = p

    def kernel(self) -> Kernel:
        made = super().kernel()
        lines, steps = [], self.steps
        for name in _sources(self.p):
            width = steps.width(name)
            lines += [f'if (h < {width}) {{']
            lines.append(f'    SEND({_place(self.p, name, "1", "n", "h")}, 0.0f, -1);')
            value, tag = '0.0f', -1
            if name in steps.carried:
                value, tag = self.state(name, '0', 'n', 'h'), 0
            lines.append(f'    SEND({_place(self.p, name, "0", "n", "h")}, {value}, {tag});')
            lines.append('}')
        arrays = tuple(map(_sent(self.p), _sources(self.p)))
        return Kernel(
            made.name, (*made.args, *arrays), '\n'.join([made.body, *lines]), made.grid,
            made.threads, (), made.helpers, frozenset({RESIDENT}),
        )  # fmt: skip


class _AllSteps(PhaseKernel):
    """The kernel of all steps."""

    def __init__(self, p: PersistentPlan) -> None:
        super().__init__(p.steps, 0, p.threads, WARP, p.at_once, True)
        self.p = p
        self.given: dict[str, tuple[str, str]] = {}  # text of an element -> its variable and type

    def kernel(self) -> Kernel:
        p, steps = self.p, self.steps
        body = [
            f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP};',
            f'const int d = BLOCK_X / {p.blocks};',
            f'const int unit = BLOCK_X % {p.blocks} * {p.per} + warp;',
            # All threads have to reach the barriers: those behind the end repeat the last unit.
            f'const int h = min(unit, {p.width - 1}), n = min(lane, {steps.batch - 1});',
            f'const bool mine = unit < {p.width} && lane < {steps.batch};',
        ]
        for number, product in enumerate(p.products):
            body += self._weights(number, product)
        for name in steps.carried:
            kind = C_TYPES[self.group.tensor(name).dtype]
            body.append(f'{kind} {name}_last = {self.state(name, "0", "n", "h")};')
        phases = [line for phase in steps.phases for line in self._phase(phase)]
        points = [s for phase in steps.phases for s in phase.points]
        body += [
            f'for (int t = 0; t < {steps.steps}; t++) {{',
            '    int polls = 0;',
            *(f'    const {kind} {name} = {text};' for text, (name, kind) in self.given.items()),
            *(f'    {C_TYPES[self.group.tensor(s.write.tensor).dtype]} {s.write.tensor}_here;'
              for s in points),
            *pieces.indented(phases),
            *(f'    {name}_last = {name}_here;' for name in steps.carried),
            '}',
            'if (mine) {',
        ]  # fmt: skip
        for name in steps.carried:
            end = self.state(name, str(steps.steps & 1), 'n', 'h', written=True)
            body.append(f'    {end} = {name}_last;')
        arrays = tuple(map(_sent(p), _sources(p)))
        return Kernel(
            'recurrence_persistent', (*self.arguments(), *arrays), '\n'.join([*body, '}']),
            (steps.directions * p.blocks, 1, 1), p.threads, p.shared, self.helpers(),
            frozenset({RESIDENT, 'lane_xor'}), 1,
        )  # fmt: skip

    def _weights(self, number: int, product: Product) -> list[str]:
        """This unit's rows of a product, to where they stay; zeros behind the end of a row."""
        p, units = self.p, product.units
        held, fours = p.held(product), p.fours(product)
        source = self.use(product.weights)
        row = f'((d * {product.gates} + g) * {p.width} + h) * {units}'
        if units % FOUR == 0:
            four = f'k < {units} ? LOAD4(GLOBAL, {source} + {row} + k) : FLOAT4(0, 0, 0, 0)'
        else:
            parts = (
                f'k + {i} < {units} ? {source}[{row} + k + {i}] : 0.0f' for i in range(FOUR)
            )  # fmt: skip
            four = f'FLOAT4({", ".join(parts)})'
        place = f'((c - {held}) * {product.gates} + g) * {p.threads} + THREAD'
        lines = [f'float4 w_{number}[{max(held, 1)}][{product.gates}];']
        for first, end, store in (
            (0, held, f'w_{number}[c][g] = weight;'),
            (held, fours, f'STORE4(SHARED, rest_{number} + ({place}) * {FOUR}, weight);'),
        ):
            if first < end:
                lines += [
                    '#pragma unroll',
                    f'for (int c = {first}; c < {end}; c++) {{',
                    f'    const int k = (c * {WARP} + lane) * {FOUR};',
                    '#pragma unroll',
                    f'    for (int g = 0; g < {product.gates}; g++) {{',
                    f'        const float4 weight = {four};',
                    f'        {store}',
                    '    }',
                    '}',
                ]
        floats = self.steps.batch * p.pitch(product)
        return [
            *lines,
            f'for (int at = THREAD; at < {floats}; at += {p.threads})',
            f'    x_{number}[at] = 0.0f;',
        ]

    def _phase(self, phase: Phase) -> list[str]:
        self.phase = phase
        p, steps = self.p, self.steps
        numbers = {x.stage.write.tensor: n for n, x in enumerate(p.products)}
        lines = ['BARRIER;']  # everybody has read what lies there
        for product in phase.products:
            lines += self._received(numbers[product.stage.write.tensor], product)
        lines.append('BARRIER;')
        for product in phase.products:
            lines += self._sums_of(numbers[product.stage.write.tensor], product)
        points = self._points(phase)
        sends = [
            f'SEND({_place(p, name, "(t + 1) & 1", "n", "h")}, {name}_here, t + 1);'
            for name in _sources(p)
            if name in phase.written
        ]
        shown = [
            self._show(f'{name}_here')
            for name in phase.written
            if name == steps.final.reads[0].tensor
        ]
        return [*lines, *points, 'if (mine) {', *pieces.indented([*sends, *shown]), '}']

    def _received(self, number: int, product: Product) -> list[str]:
        """What all units left of all sequences, to shared memory."""
        p = self.p
        units, (run, count, turns) = product.units, p.asked(product)
        tag = 't' if product.last else 't + 1'
        first = _place(p, product.source, f'({tag}) & 1', '0', '0')
        stores = [f'x_{number}[row * {p.pitch(product)} + k] = RECEIVED(got[turn], 0);']
        if run == 2:
            stores.append(f'x_{number}[row * {p.pitch(product)} + k + 1] = RECEIVED(got[turn], 1);')
        return [
            f'for (int base = THREAD; base < {count}; base += {turns * p.threads}) {{',
            f'    PAIRS got[{turns}];',
            '#pragma unroll',
            f'    for (int turn = 0; turn < {turns}; turn++)',
            f'        ASK{run}(got[turn], {first} + {2 * run} * min(base + turn * {p.threads}, '
            f'{count - 1}));',
            '#pragma unroll',
            f'    for (int turn = 0; turn < {turns}; turn++) {{',
            f'        const int at = min(base + turn * {p.threads}, {count - 1});',
            f'        while (!HAS{run}(got[turn], {tag})) {{',
            '            PAUSE(polls);',
            f'            ASK{run}(got[turn], {first} + {2 * run} * at);',
            '        }',
            f'        const int row = at * {run} / {units}, k = at * {run} % {units};',
            *(f'        {line}' for line in stores),
            '    }',
            '}',
        ]

    def _sums_of(self, number: int, product: Product) -> list[str]:
        """Sums of this unit for the sequence of each lane: `NAME_g`."""
        p, name, gates = self.p, product.stage.write.tensor, product.gates
        held, fours, batch = p.held(product), p.fours(product), self.steps.batch
        row = '0' if batch == 1 else f'min(first + m, {batch - 1})'
        pitch = p.pitch(product)
        lines = [f'float {name}_own[{gates}];']
        place = f'((c - {held}) * {gates} + g) * {p.threads} + THREAD'
        loops = []
        for first, end, weight in (
            (0, held, f'w_{number}[c][g]'),
            (held, fours, f'LOAD4(SHARED, rest_{number} + ({place}) * {FOUR})'),
        ):
            if first < end:
                loops += [
                    '#pragma unroll',
                    f'for (int c = {first}; c < {end}; c++) {{',
                    f'    float4 x[{p.at_once}];',
                    '#pragma unroll',
                    f'    for (int m = 0; m < {p.at_once}; m++)',
                    f'        x[m] = LOAD4(SHARED, x_{number} + {row} * {pitch} + '
                    f'(c * {WARP} + lane) * {FOUR});',
                    '#pragma unroll',
                    f'    for (int g = 0; g < {gates}; g++) {{',
                    f'        const float4 w = {weight};',
                    '#pragma unroll',
                    f'        for (int m = 0; m < {p.at_once}; m++) {{',
                    *(f'            sums[g][m] = FMA(w.{i}, x[m].{i}, sums[g][m]);'
                      for i in PARTS),
                    '        }',
                    '    }',
                    '}',
                ]  # fmt: skip
        return [
            *lines,
            f'for (int first = 0; first < {batch}; first += {p.at_once}) {{',
            f'    float sums[{gates}][{p.at_once}];',
            *pieces.indented(_every(gates, p.at_once, ['sums[g][m] = 0.0f;'])),
            *pieces.indented(loops),
            *pieces.indented(
                _every(
                    gates,
                    p.at_once,
                    [
                        *(f'sums[g][m] += LANE_XOR(sums[g][m], {by});' for by in (16, 8, 4, 2, 1)),
                        f'{name}_own[g] = lane == first + m ? sums[g][m] : {name}_own[g];',
                    ],
                )
            ),
            '}',
        ]

    def _points(self, phase: Phase) -> list[str]:
        """Functions of this unit; all lanes compute them, those of no sequence for nothing."""
        lines = []
        for stage in phase.points:
            name = stage.write.tensor
            reads = [self._read(access, {}) for access in stage.reads]
            lines.append(
                f'{name}_here = {self.value(stage.expr, reads, self.group.tensor(name).dtype)};'
            )
        return lines

    def _read(self, access: Access, values: dict[str, str]) -> tuple[str, str]:
        name, dtype = access.tensor, self.group.tensor(access.tensor).dtype
        if any(product.stage.write.tensor == name for product in self.p.products):
            return f'{name}_own[{access.index[3].const}]', dtype
        steps = self.steps
        if (name in steps.aliases or name in steps.carried) and steps.is_last(access):
            return f'{steps.carrier(access)}_last', dtype
        if any(name in phase.written for phase in steps.phases):
            return f'{name}_here', dtype
        # Operands of a step are asked for before anybody is waited for.
        text = self.element(access)
        known = self.given.setdefault(text, (f'given_{len(self.given)}', C_TYPES[dtype]))
        return known[0], dtype


def _every(gates: int, sequences: int, body: list[str]) -> list[str]:
    return [
        '#pragma unroll',
        f'for (int g = 0; g < {gates}; g++)',
        '#pragma unroll',
        f'    for (int m = 0; m < {sequences}; m++) {{',
        *pieces.indented(body, 2),
        '    }',
    ]
