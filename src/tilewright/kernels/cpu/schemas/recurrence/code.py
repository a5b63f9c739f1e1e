"""The recurrence schema in C: packing, phases of a step, and threads that keep in step.

Goes in: a `RecurrencePlan`. Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.

A call is a row of rounds: the first one sets states and packs weights that are not constant, then
come the phases of every step (of one direction after the other, where they are apart), the last one
writes final states. Nobody begins a round before all
blocks of the one before are done (team.py). In a phase, a block of units of one direction takes the
products of all its gates, for a few sequences at a time, in registers; vectors lie along the units,
so that a weight is loaded once for these sequences and states are broadcast. What follows are the
functions of the phase, unit by unit, which compilers vectorise.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, Typed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.schemas.recurrence.plan import RecurrencePlan
from tilewright.kernels.cpu.schemas.recurrence.team import ROUNDS_ALONE, ROUNDS_TOGETHER, TEAM
from tilewright.kernels.cpu.transpose import TRANSPOSE
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.phases import Phase, Product
from tilewright.ops.stage import Access, Affine

LINE = 64
PAGE_BYTES = 4096  # weights of steps are asked for as far ahead, or not at all
QUAD = 4  # lanes that are packed together
PIECE = 1 << 14  # bytes of weights that stay in the first cache for several tiles of sequences

HELPERS = """\
#include <stdint.h>

typedef {type} elem;
typedef elem vec __attribute__((vector_size({bytes}), aligned({align}), may_alias));
"""


def generate(plan: RecurrencePlan) -> str:
    """[RecurrencePlan] -> [C source]"""
    return _Unit(plan).text()


class _Unit:
    """One translation unit."""

    def __init__(self, plan: RecurrencePlan) -> None:
        self.plan, self.steps, self.typed = plan, plan.steps, Typed()
        self.tables: dict[tuple[int, ...], str] = {}
        group = plan.group
        self.inputs = {t.name: i for i, t in enumerate(group.with_role('input'))}

    def text(self) -> str:
        plan, body = self.plan, Writer()
        for name, (phase, product) in plan.weights.items():
            self._pack(body, name, phase, product)
        self._pack_constants(body)
        for phase in self.steps.phases:
            for product in phase.products:
                self._products(body, product)
        for number, phase in enumerate(self.steps.phases):
            self._phase(body, number, phase)
        self._begin(body)
        self._finish(body)
        self._round(body)
        writer = Writer()
        abi.write_head(writer, plan.group, plan.schedule)
        size = DTYPES[plan.dtype]
        head = HELPERS.format(type=C_TYPES[plan.dtype], bytes=size * plan.lanes, align=size)
        writer.lines += [*head.splitlines(), '']
        if plan.dtype == 'f32':
            writer.lines += [*TRANSPOSE.splitlines(), '']
        write_functions(writer, self.typed.functions)
        for values, name in self.tables.items():
            writer.line(f'static const int {name}[] = {{{", ".join(map(str, values))}}};')
        writer.lines += body.lines
        threads = plan.schedule.threads
        parts = -(-plan.scratch[1] // threads)
        abi.write_sizes(writer, threads, parts, plan.constants[1], shared=threads > 1)
        writer.lines += TEAM.format(parts=threads).splitlines() if threads > 1 else []
        rounds = 2 + plan.rounds
        loop = ROUNDS_TOGETHER if threads > 1 else ROUNDS_ALONE
        writer.lines += loop.format(rounds=rounds).splitlines()
        return writer.text()

    # Where things lie.

    def _base(self, name: str) -> str:
        """A C pointer to the elements of a tensor, a state in scratch or packed weights."""
        kind = C_TYPES[self.plan.group.tensor(name).dtype]
        scratch, constants = self.plan.scratch[0], self.plan.constants[0]
        if name in scratch:
            return f'(({kind} *)((float *)args->scratch + {scratch[name]}))'
        if name in constants:
            return f'((const {kind} *)(args->packed + {constants[name]}))'
        if name in self.inputs:
            return f'((const {kind} *)args->in[{self.inputs[name]}])'
        return f'(({kind} *)args->out)'

    def _state(self, name: str, parity: str, unit: str) -> str:
        """An element of a tensor in scratch, of sequence n of direction d."""
        d, batch, row = self.steps.directions, self.steps.batch, self.plan.row(name)
        place = f'(d * {batch} + n) * {row}'
        if name in self.steps.carried:
            place = f'(({parity}) * {d * batch} + d * {batch} + n) * {row}'
        return f'{self._base(name)}[{place} + {unit}]'

    def _element(self, access: Access, unit: str) -> str:
        """An element of an operand of the group, at t d n and a unit."""
        tensor, tables = self.plan.group.tensor(access.tensor), dict(access.tables)
        terms = []
        for axis, (expression, step) in enumerate(zip(access.index, tensor.strides, strict=True)):
            text = _affine(expression, unit)
            if axis in tables:
                text = f'{self._table(tables[axis])}[{text}]'
            terms.append(scaled(f'({text})', step) if text != '0' else '')
        return f'{self._base(access.tensor)}[{total(terms)}]'

    def _table(self, values: tuple[int, ...]) -> str:
        return self.tables.setdefault(values, f'table_{len(self.tables)}')

    # Packing.

    def _pack(self, out: Writer, name: str, phase: Phase, product: Product) -> None:
        """Some blocks of a matrix of weights; plan.py has the order."""
        blocks, unit, gates = self.plan.blocks(phase), self.plan.unit, product.gates
        rows, units, tile = phase.width, product.units, self.plan.gate_tile(product)
        out.open(f'static void pack_{name}(const elem *from, elem *to, long low, long high)')
        out.open('for (long item = low; item < high; item++)')
        out.line(f'const long d = item / {blocks}, first = item % {blocks} * {unit};')
        out.line(f'elem *const block = to + item * {units * gates * unit};')
        stream = tile * unit // self.plan.streams(product)
        # Where four lanes lie side by side, blocks of 4 x 4 are transposed: weights of a training
        # step are packed in every call.
        wide = QUAD if self.plan.dtype == 'f32' and unit % QUAD == 0 else 1
        out.open(f'for (long g = 0; g < {gates}; g++)')
        out.open(f'for (long lane = 0; lane < {unit}; lane += {wide})')
        out.line(f'const elem *row = from + ((d * {gates} + g) * {rows} + first + lane) * {units};')
        out.line(f'const long place = g % {tile} * {unit} + lane;')
        out.line(f'elem *const at = block + g / {tile} * {units * tile * unit}')
        out.line(f'    + place / {stream} * {units * stream} + place % {stream};')
        out.line('long k = 0;')
        if wide > 1:
            out.line(f'if (first + lane + {wide} <= {rows})')
            out.line(f'    for (; k + {wide} <= {units}; k += {wide})')
            out.line(f'        transpose4(row + k, {units}, at + k * {stream}, {stream}, {wide});')
        out.line(f'for (; k < {units}; k++)')
        out.line(f'    for (long n = 0; n < {wide}; n++)')
        out.line(
            f'        at[k * {stream} + n] = first + lane + n < {rows} ? row[n * {units} + k] : 0;'
        )
        out.close(4)
        out.line()

    def _pack_constants(self, out: Writer) -> None:
        group, places = self.plan.group, self.plan.constants[0]
        out.open('void tw_pack(const float *const *constants, float *packed)')
        out.line('(void)constants, (void)packed;')
        for number, tensor in enumerate(group.with_role('constant')):
            place = f'packed + {places[tensor.name]}'
            if tensor.name in self.plan.weights:
                phase, _ = self.plan.weights[tensor.name]
                items = self.steps.directions * self.plan.blocks(phase)
                given = f'(const elem *)constants[{number}]'
                out.line(f'pack_{tensor.name}({given}, (elem *)({place}), 0, {items});')
            else:
                out.line(f'memcpy({place}, constants[{number}], {tensor.bytes});')
        out.close()
        out.line()

    # One phase.

    def _products(self, out: Writer, product: Product) -> None:
        """Functions for each number of sequences that a register tile may hold."""
        tile, batch = self._tile, self.steps.batch
        for count in sorted({tile, batch % tile} - {0}):
            self._product(out, product, count)

    @property
    def _tile(self) -> int:
        return min(self.plan.batch_tile, self.steps.batch)

    def _product(self, out: Writer, product: Product, count: int) -> None:
        """sums[sequence][gate][unit of the block] of `count` sequences, over some k."""
        lanes, unit, size = self.plan.lanes, self.plan.unit, DTYPES[self.plan.dtype]
        vectors = self.plan.gate_tile(product) * unit // lanes
        row = self.plan.row(product.source)
        tiles = [(b, v) for b in range(count) for v in range(vectors)]
        place = {(b, v): b * product.gates * unit + v * lanes for b, v in tiles}
        name = f'{product.stage.write.tensor.lower()}_{count}'
        ends = 'long low, long high'
        # Inlined among the functions of a phase, sums would leave their registers.
        out.line('__attribute__((noinline))')
        out.open(f'static void {name}(const elem *w, const elem *x, elem *sums, {ends})')
        out.line(f'vec {", ".join(f"s{b}_{v} = {{0}}" for b, v in tiles)};')
        if self._pieces(product) > 1:
            out.open('if (low > 0)')
            for b, v in tiles:
                out.line(f's{b}_{v} = *(const vec *)(sums + {place[b, v]});')
            out.close()
        each = vectors // self.plan.streams(product)
        at = [(v // each * product.units * each + v % each) * lanes for v in range(vectors)]
        out.line(f'w += low * {each * lanes};')
        out.line('long k = low;')
        if ISAS[self.plan.schedule.isa].by_lane:
            # A load brings a state's numbers for several k, which are multiplied by lanes.
            out.open(f'for (; k + {lanes} <= high; k += {lanes}, w += {lanes * each * lanes})')
            for b in range(count):
                out.line(f'const vec x{b} = *(const vec *)(x + k{f" + {b * row}" if b else ""});')
            for lane in range(lanes):
                for v in range(vectors):
                    name = f'w{lane}_{v}'
                    place_of = at[v] + lane * each * lanes
                    out.line(f'const vec {name} = *(const vec *)(w + {place_of});')
                    for b in range(count):
                        out.line(f's{b}_{v} += {name} * x{b}[{lane}];')
            out.close()
        out.open(f'for (; k < high; k++, w += {each * lanes})')
        if self.plan.is_large and ISAS[self.plan.schedule.isa].stream_bytes >= PAGE_BYTES:
            ahead = ISAS[self.plan.schedule.isa].stream_bytes // size * each // vectors
            per_line = max(1, LINE // size // lanes)
            for line in at[::per_line]:
                out.line(f'__builtin_prefetch(w + {ahead + line}, 0, 3);')
        for b in range(count):
            out.line(f'const elem x{b} = x[k{f" + {b * row}" if b else ""}];')
        for v in range(vectors):
            out.line(f'const vec w{v} = *(const vec *)(w + {at[v]});')
            for b in range(count):
                out.line(f's{b}_{v} += w{v} * x{b};')
        out.close()
        for b, v in tiles:
            out.line(f'*(vec *)(sums + {place[b, v]}) = s{b}_{v};')
        out.close()
        out.line()

    def _pieces(self, product: Product) -> int:
        """Pieces of k: what several tiles of sequences read stays in the first cache for them."""
        if self.steps.batch <= self._tile:
            return 1
        row = self.plan.gate_tile(product) * self.plan.unit * DTYPES[self.plan.dtype]
        return max(1, -(-product.units * row // PIECE))

    def _phase(self, out: Writer, number: int, phase: Phase) -> None:
        """Some blocks of a phase at step t."""
        plan, steps = self.plan, self.steps
        blocks, unit = plan.blocks(phase), plan.unit
        items = blocks if plan.apart else steps.directions * blocks
        threads = plan.schedule.threads
        given = 'long t, long d, long part' if plan.apart else 'long t, long part'
        out.open(f'static void phase_{number}(const tw_args *args, {given})')
        out.line(f'const long low = part * {items} / {threads};')
        out.line(f'const long high = (part + 1) * {items} / {threads};')
        for product in phase.products:
            size = steps.batch * product.gates * unit
            name = product.stage.write.tensor
            out.line(f'elem {name}_sums[{size}] __attribute__((aligned(64)));')
        out.open('for (long i = low; i < high; i++)')
        # To and fro: what the last step read last is still in a cache, and is read first.
        if plan.apart:
            out.line(f'const long item = d * {blocks} + (t & 1 ? low + high - 1 - i : i);')
            out.line(f'const long first = item % {blocks} * {unit};')
        else:
            out.line('const long item = t & 1 ? low + high - 1 - i : i;')
            out.line(f'const long d = item / {blocks}, first = item % {blocks} * {unit};')
        out.line(f'const long units = min_long({unit}, {phase.width} - first);')
        for product in phase.products:
            self._calls(out, product)
        out.open(f'for (long n = 0; n < {steps.batch}; n++)')
        self._points(out, phase)
        out.close(3)
        out.line()

    def _calls(self, out: Writer, product: Product) -> None:
        """The sums of all sequences of a block."""
        name, unit, tile = product.stage.write.tensor, self.plan.unit, self._tile
        pieces, batch, row = self._pieces(product), self.steps.batch, product.gates * unit
        gates = self.plan.gate_tile(product)
        loops = []
        n, g, low, high = '0', '0', '0', str(product.units)
        if gates < product.gates:
            loops.append(f'for (long g = 0; g < {product.gates}; g += {gates})')
            g = 'g'
        if pieces > 1:
            step = -(-product.units // (pieces * self.plan.lanes)) * self.plan.lanes
            loops.append(f'for (long from = 0; from < {product.units}; from += {step})')
            low, high = 'from', f'min_long(from + {step}, {product.units})'
        if batch > tile:
            loops.append(f'for (long n = 0; n < {batch}; n += {tile})')
            n = 'n'
        for loop in loops:
            out.open(loop)
        parity = 't & 1' if product.last else '0'
        source = '&' + self._state(product.source, parity, '0').replace('+ n)', f'+ {n})')
        weights = f'{self._base(product.weights)} + (item * {product.gates} + {g}) * ' + str(
            product.units * unit
        )
        sums = f'{name}_sums + {n} * {row} + {g} * {unit}'
        call = f'({weights}, {source}, {sums}, {low}, {high});'
        if batch % tile:
            out.line(f'if ({batch} - n < {tile})')
            out.line(f'    {name.lower()}_{batch % tile}{call}')
            out.line('else')
            out.line(f'    {name.lower()}_{tile}{call}')
        else:
            out.line(f'{name.lower()}_{tile}{call}')
        out.close(len(loops))

    def _points(self, out: Writer, phase: Phase) -> None:
        """The functions of a phase at every unit of the block."""
        out.line('#pragma omp simd')
        out.open('for (long lane = 0; lane < units; lane++)')
        out.line('const long h = first + lane;')
        values: dict[str, str] = {}
        for stage in phase.points:
            name = stage.write.tensor
            reads = [self._read(a, phase, values) for a in stage.reads]
            dtype = self.plan.group.tensor(name).dtype
            text, made = self.typed.text(stage.expr, reads, {name: name for name in 'tdnh'})
            out.line(f'const elem {name}_here = {self.typed.convert(text, made, dtype)};')
            values[name] = f'{name}_here'
            if name in self.steps.carried or name in self.steps.kept:
                out.line(f'{self._state(name, "(t + 1) & 1", "h")} = {name}_here;')
            if name == self.steps.final.reads[0].tensor:
                self._show(out, f'{name}_here')
        out.close()

    def _read(self, access: Access, phase: Phase, values: dict[str, str]) -> tuple[str, str]:
        """(C text, dtype) of one operand of a function."""
        name, dtype = access.tensor, self.plan.group.tensor(access.tensor).dtype
        for product in phase.products:
            if product.stage.write.tensor == name:
                at = f'(n * {product.gates} + {access.index[3].const}) * {self.plan.unit}'
                return f'{name}_sums[{at} + lane]', dtype
        carried = name in self.steps.aliases or name in self.steps.carried
        if carried and self.steps.is_last(access):
            return self._state(self.steps.carrier(access), 't & 1', 'h'), dtype
        if name in values:
            return values[name], dtype
        if name in self.steps.carried:
            return self._state(name, '(t + 1) & 1', 'h'), dtype
        if name in self.steps.kept:
            return self._state(name, '0', 'h'), dtype
        return self._element(access, 'h'), dtype

    # Results.

    def _show(self, out: Writer, value: str) -> None:
        """The row of the result that belongs to this step; it reads nothing of later rows."""
        rows = tuple(row for each in self.steps.rows for row in each)
        straight = rows == tuple(range(self.steps.steps))
        at = 't' if straight else f'{self._table(rows)}[d * {self.steps.steps} + t]'
        final = self.steps.final
        state = final.reads[0].tensor
        reads = []
        for access in final.reads:
            dtype = self.plan.group.tensor(access.tensor).dtype
            if access.tensor == state:
                reads.append((value, dtype))
            elif access.tensor in self.steps.carried:
                reads.append((f'({C_TYPES[dtype]})0', dtype))
            else:
                reads.append((self._element(access, 'h'), dtype))
        self._store(out, at, reads)

    def _store(self, out: Writer, row: str, reads: list[tuple[str, str]]) -> None:
        final = self.steps.final
        names = {'r': row, 'd': 'd', 'n': 'n', 'h': 'h'}
        text, made = self.typed.text(final.expr, reads, names)
        strides = self.plan.group.output.strides
        terms = [
            scaled(f'({_affine(e, "h")})'.replace('(r)', f'({row})'), step)
            for e, step in zip(final.write.index, strides, strict=True)
        ]
        value = self.typed.convert(text, made, self.plan.dtype)
        out.line(f'{self._base(self.plan.group.output.name)}[{total(terms)}] = {value};')

    def _begin(self, out: Writer) -> None:
        """States before the first step; weights that are not constant, packed."""
        steps, threads = self.steps, self.plan.schedule.threads
        out.open('static void begin(const tw_args *args, long part)')
        for name in self.plan.scratch[0]:
            if name not in self.plan.weights:
                continue
            phase, _ = self.plan.weights[name]
            items = steps.directions * self.plan.blocks(phase)
            given = f'(const elem *)args->in[{self.inputs[name]}]'
            low, high = f'part * {items} / {threads}', f'(part + 1) * {items} / {threads}'
            out.line(f'pack_{name}({given}, {self._base(name)}, {low}, {high});')
        out.line('if (part != 0)')
        out.line('    return;')
        out.line('(void)args;')
        for name, given in steps.carried.items():
            out.open(f'for (long d = 0; d < {steps.directions}; d++)')
            out.open(f'for (long n = 0; n < {steps.batch}; n++)')
            out.open(f'for (long h = 0; h < {steps.width(name)}; h++)')
            value = '0'
            if given:
                at = f'(d * {steps.batch} + n) * {steps.width(name)} + h'
                value = f'{self._base(given)}[{at}]'
            out.line(f'{self._state(name, "0", "h")} = {value};')
            out.close(3)
        out.close()
        out.line()

    def _finish(self, out: Writer) -> None:
        """The rows behind the steps: last states and cells."""
        steps, final = self.steps, self.steps.final
        out.open('static void finish(const tw_args *args, long part)')
        out.line('if (part != 0)')
        out.line('    return;')
        out.open(f'for (long r = {steps.steps}; r < {final.sizes["r"]}; r++)')
        out.open(f'for (long d = 0; d < {steps.directions}; d++)')
        out.open(f'for (long n = 0; n < {steps.batch}; n++)')
        out.open(f'for (long h = 0; h < {final.sizes["h"]}; h++)')
        reads = []
        for number, access in enumerate(final.reads):
            dtype = self.plan.group.tensor(access.tensor).dtype
            if access.tensor not in steps.carried:
                reads.append((self._element(access, 'h'), dtype))
                continue
            unit, width = access.index[3], steps.width(access.tensor)
            out.line(f'const long unit_{number} = {_affine(unit, "h")};')
            state = self._state(access.tensor, str(steps.steps & 1), f'unit_{number}')
            there = f'(unsigned long)unit_{number} < {width}ul'
            reads.append((f'({there} ? {state} : ({C_TYPES[dtype]})0)', dtype))
        self._store(out, 'r', reads)
        out.close(5)
        out.line()

    def _round(self, out: Writer) -> None:
        """Part `part` of round `number`."""
        count, steps = len(self.steps.phases), self.steps.steps
        out.open('static void run_round(const tw_args *args, long number, long part)')
        out.line('if (number == 0)')
        out.line('    begin(args, part);')
        out.line(f'else if (number == {1 + self.plan.rounds})')
        out.line('    finish(args, part);')
        for phase in range(count):
            last = phase == count - 1
            out.line('else' if last else f'else if ((number - 1) % {count} == {phase})')
            step = f'(number - 1) / {count}'
            if self.plan.apart:
                step = f'{step} % {steps}, (number - 1) / {count * steps}'
            out.line(f'    phase_{phase}(args, {step}, part);')
        out.close()
        out.line()


def _affine(at: Affine, unit: str) -> str:
    """An affine index in C; `unit` is what the iterator h is called."""
    terms = [scaled(unit if n == 'h' else n, c) for n, c in at.terms]
    return total([*terms, str(at.const) if at.const else ''])
