"""The end of a block of the channels schema: its sums, through the epilogue, into the result.

Goes in: a plan whose block has its sums in shared memory, [row][column]. Comes out: lines in which
every thread takes some neighbours of a row at a time, `run` of them, and then others as far apart
as all threads together reach.

What an epilogue reads comes from where a kernel before has put it, at best from the second cache. A
thread that waited for each of its reads before it asks for the next would spend most of its time
so, where a product is short. In a cluster the threads of all its blocks deal the tile out among
them, and each adds up what the blocks have of a run, in their order.

- an operand of the columns alone (a bias) is read once by each thread that keeps to its columns,
  before the products where there are registers for it, or else copied into shared memory; constants
  even before the kernels that this one follows have ended;
- of one that lies as the result does (a residual), several are asked for before the first is used.
  The result may lie where that operand lay: each thread writes what it has read, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import half, pieces, whole
from tilewright.kernels.gpu.language import ELEMENT
from tilewright.kernels.gpu.schemas.channels.plan import ChannelsPlan
from tilewright.ops.dtypes import DTYPES

AT_ONCE = 8  # reads of a thread that are under way, of sixteen bytes each
FEW_SUMS = 64  # of a thread, beside which it keeps what it reads once
MANY_THREADS = 256  # of a block: with more of them fewer reads each are enough


@dataclass(frozen=True)
class Store:
    """How the results of a block are dealt out.

    run      neighbours of a row that a thread stores at once
    once     operands that a thread reads once
    joint    operands of the columns that all threads read from shared memory
    ahead    operands of which several are asked for before they are used
    """

    p: ChannelsPlan
    strides: dict[str, int]
    const: int
    run: int
    once: tuple[Operand, ...]
    joint: tuple[Operand, ...]
    ahead: tuple[Operand, ...]

    @classmethod
    def of(cls, p: ChannelsPlan) -> Store:
        write = replace(p.group.main.write, tensor=p.group.output.name)
        strides, const = access_strides(p.group, write)
        run = _run(p, strides, const)
        vector, keeps = p.contraction.vector, p.threads % (p.bk // run) == 0
        alone = tuple(
            item for item in p.epilogue.operands
            if not any(s for d, s in item.strides if d != vector)
        )  # fmt: skip
        once = alone if keeps else ()
        joint = tuple(
            item for item in alone
            if not keeps and item.stride(vector) and p.group.tensor(item.tensor).dtype == 'f32'
        )  # fmt: skip
        ahead = tuple(
            item for item in p.epilogue.operands
            if item not in alone and run >= 4 and _is_beside(p, item, run)
            and _words(p, item, run) in (2, 4)
        )  # fmt: skip
        return cls(p, strides, const, run, once, joint, ahead)

    @property
    def per_row(self) -> int:
        return self.p.bk // self.run

    @property
    def items(self) -> int:
        """Runs of a block."""
        return self.p.bp * self.per_row

    @property
    def begin(self) -> str:
        """The first run of a thread."""
        return f'BLOCK_Z * {self.p.threads} + THREAD' if self.p.cluster else 'THREAD'

    @property
    def at_once(self) -> int:
        """Runs of a thread whose operands are asked for together."""
        most = AT_ONCE if self.p.threads <= MANY_THREADS else AT_ONCE // 2
        return min(max(most // max(len(self.ahead), 1), 1), -(-self.items // self.p.storing))

    @property
    def shared(self) -> list[tuple[str, int]]:
        """Arrays in shared memory."""
        return [(f'{item.name}_all', self.p.bk) for item in self.joint]

    @property
    def holds(self) -> bool:
        """Whether a thread has registers left for operands while products are computed."""
        return math.prod(self.p.sums) <= FEW_SUMS

    def first(self, constant: bool) -> list[str]:
        """What is read before the products: constants, or what kernels before this one make."""
        once = self.once if self.holds else ()
        return [
            *self._read_once([item for item in once if self._is_constant(item) == constant]),
            *self._read_jointly([i for i in self.joint if self._is_constant(i) == constant]),
        ]

    def lines(self) -> list[str]:
        """The rest, once the sums are there."""
        return [*([] if self.holds else self._read_once(self.once)), *self._dealt()]

    def _dealt(self) -> list[str]:
        p = self.p
        used = [*self._place(), *self._unless_there(), *self._decoded(), *self._values()]
        if not self.ahead:
            return pieces.dealt('item', self.begin, self.items, p.storing, used)
        asked = [*self._place(), *self._unless_there(), *self._decoded()]
        for one in self.ahead:
            load = f'LOAD{self._words(one)}(GLOBAL, {one.name} + {one.name}_at)'
            asked += [self._at(one), f'{one.name}_w[turn] = {load};']
        inside = [
            *(f'float{self._words(one)} {one.name}_w[{self.at_once}];' for one in self.ahead),
            *self._turns(asked),
            *self._turns(used),
        ]
        step = self.at_once * p.storing
        return [
            '#pragma unroll 1',
            f'for (int first = {self.begin}; first < {self.items}; first += {step}) {{',
            *pieces.indented(inside),
            '}',
        ]

    def _turns(self, body: Sequence[str]) -> list[str]:
        """The runs of a thread, as many as are asked for together."""
        return [
            '#pragma unroll',
            f'for (int turn = 0; turn < {self.at_once}; turn++) {{',
            f'    const int item = first + turn * {self.p.storing};',
            *pieces.indented(body),
            '}',
        ]

    def _words(self, item: Operand) -> int:
        return _words(self.p, item, self.run)

    def _is_constant(self, item: Operand) -> bool:
        return self.p.group.tensor(item.tensor).role == 'constant'

    def _read_once(self, items: Sequence[Operand]) -> list[str]:
        """What a thread that keeps to its columns reads."""
        if not items:
            return []
        p, vector = self.p, self.p.contraction.vector
        body = [f'const int {vector} = first_column + THREAD % {self.per_row} * {self.run};']
        body += [line for item in items for line in [self._at(item), *self._read(item)]]
        if p.columns % p.bk:
            body = [body[0], f'if ({vector} < {p.columns}) {{', *pieces.indented(body[1:]), '}']
        return [*(self._declared(item) for item in items), '{', *pieces.indented(body), '}']

    def _read_jointly(self, items: Sequence[Operand]) -> list[str]:
        """What all threads copy into shared memory: a number for each column, with the first
        piece.
        """
        p, vector = self.p, self.p.contraction.vector
        lines: list[str] = []
        for item in items:
            body = [
                f'const int {vector} = min(first_column + column, {p.columns - 1});',
                self._at(item),
                f'COPY1({item.name}_all + column, {item.name} + {item.name}_at, true);',
            ]
            lines += pieces.dealt('column', 'THREAD', p.bk, p.threads, body)
        return lines

    def _place(self) -> list[str]:
        return [
            f'const int tile_row = item / {self.per_row};',
            f'const int tile_column = item % {self.per_row} * {self.run};',
            'const int row = first_row + tile_row;',
            f'const int {self.p.contraction.vector} = first_column + tile_column;',
        ]

    def _unless_there(self) -> list[str]:
        p, step = self.p, self.at_once * self.p.storing
        tests = [f'item >= {self.items}'] if self.ahead and self.items % step else []
        tests += [f'row >= {p.points}'] if p.points % p.bp else []
        tests += [f'{p.contraction.vector} >= {p.columns}'] if p.columns % p.bk else []
        return [f'if ({" || ".join(tests)})', '    continue;'] if tests else []

    def _decoded(self) -> list[str]:
        """The row's place in each of its dimensions, unless all that is moved lies row by row."""
        return [] if self._by_row else pieces.decode('row', self.p.rows)

    @property
    def _by_row(self) -> bool:
        """Whether rows follow each other in the result and in all operands, evenly spaced."""
        moved = [dict(item.strides) for item in self.p.epilogue.operands]
        return all(_row_step(self.p, strides) is not None for strides in (self.strides, *moved))

    def _index(self, strides: Mapping[str, int], const: int) -> str:
        """Where something is moved, over the row or its dimensions, and the other iterators."""
        if self._by_row:
            rows = dict(self.p.rows)
            rest = {d: s for d, s in strides.items() if d not in rows}
            strides = {'row': _row_step(self.p, strides) or 0, **rest}
        terms = [scaled(d, s) for d, s in strides.items() if s]
        return total([*terms, str(const) if const or not terms else ''])

    def _at(self, item: Operand) -> str:
        return f'const int {item.name}_at = {self._index(dict(item.strides), item.const)};'

    def _values(self) -> list[str]:
        """One run: sums, epilogue, store."""
        p, run = self.p, self.run
        lines = [f'float value[{run}];']
        at = f'tiles + tile_row * {p.pitch} + tile_column'
        lines += self._summed(at) if p.cluster else half.load('value', run, at, 'f32', 'SHARED')
        made = 'made' if p.whole else 'value'
        text = p.epilogue.expression.replace('value', 'sum' if p.whole else 'value[q]')
        for item in p.epilogue.operands:
            if item in self.ahead:
                words = [f'{item.name}_w[turn].{part}' for part in 'xyzw'[: self._words(item)]]
                dtype = p.group.tensor(item.tensor).dtype
                lines += [self._declared(item), *self._unpacked(f'{item.name}_v', words, dtype)]
            elif item in self.joint:
                place = f'{item.name}_all + tile_column'
                lines += [self._declared(item)]
                lines += half.load(f'{item.name}_v', run, place, 'f32', 'SHARED')
            elif item not in self.once:
                lines += [self._at(item), self._declared(item), *self._read(item)]
            moving = item.stride(p.contraction.vector) != 0
            read = f'{item.name}_v[{"q" if moving else 0}]'
            text = text.replace(f'{item.name}[{item.name}_at]', read)
        if p.whole:
            kind = ELEMENT['f32' if p.group.output.dtype == 'f32' else 'i32']
            lines += [
                f'{kind} made[{run}];',
                '#pragma unroll',
                f'for (int q = 0; q < {run}; q++) {{',
                '    const int sum = (int)FLOAT_BITS(value[q]);',
                f'    made[q] = {text};',
                '}',
            ]
        elif p.epilogue.expression != 'value':
            lines += ['#pragma unroll', f'for (int q = 0; q < {run}; q++)']
            lines += [f'    value[q] = {text};']
        place = f'@{p.group.output.name} + {self._index(self.strides, self.const)}'
        values, dtype = [f'{made}[{q}]' for q in range(run)], p.group.output.dtype
        store = whole.store if dtype in whole.KINDS else half.store
        return [*lines, *store(values, place, dtype)]

    def _summed(self, at: str) -> list[str]:
        """One run of the sums of all blocks of a cluster: all of them are asked for at once."""
        p, run = self.p, self.run
        words = 4 if run >= 4 else 1
        kind, fields = ('float4', 'xyzw') if words == 4 else ('float', '')
        asked = [
            f'const {kind} of{part}_{q} = BESIDE{words}({at} + {q}, {part});'
            for part in range(p.split)
            for q in range(0, run, words)
        ]
        added = []
        for q in range(run):
            name = f'_{q // words * words}' + (f'.{fields[q % words]}' if fields else '')
            parts = [f'of{part}{name}' for part in range(p.split)]
            if p.whole:
                total = ' + '.join(f'FLOAT_BITS({one})' for one in parts)
                added.append(f'value[{q}] = BITS_FLOAT({total});')
            else:
                added.append(f'value[{q}] = {" + ".join(parts)};')
        return [*asked, *added]

    def _unpacked(self, name: str, words: Sequence[str], dtype: str) -> list[str]:
        return (whole if dtype in whole.KINDS else half).unpacked(name, words, dtype)

    def _declared(self, item: Operand) -> str:
        moving = item.stride(self.p.contraction.vector) != 0
        kind = 'int' if self.p.group.tensor(item.tensor).dtype in whole.KINDS else 'float'
        return f'{kind} {item.name}_v[{self.run if moving else 1}];'

    def _read(self, item: Operand) -> Sequence[str]:
        """An operand as floats, from where `_at` says."""
        name, step = item.name, item.stride(self.p.contraction.vector)
        dtype = self.p.group.tensor(item.tensor).dtype
        load = whole.load if dtype in whole.KINDS else half.load
        if step == 0 or _is_beside(self.p, item, self.run):
            count = self.run if step else 1
            return load(f'{name}_v', count, f'{name} + {name}_at', dtype)
        apart = (
            load('x', 1, f'{name} + {name}_at + {q * step}', dtype)[0] for q in range(self.run)
        )
        return [one.replace('x[0]', f'{name}_v[{q}]') for q, one in enumerate(apart)]


def _words(p: ChannelsPlan, item: Operand, run: int) -> int:
    """Of a run of an operand that is stored in less than a word each; else 0."""
    size = DTYPES[p.group.tensor(item.tensor).dtype]
    return run * size // 4 if size < 4 else 0


def _row_step(p: ChannelsPlan, strides: Mapping[str, int]) -> int | None:
    """Elements from one row to the next; None where that is not the same everywhere."""
    apart = [(strides.get(d, 0), size) for d, size in p.rows if size > 1]
    if not apart:
        return 0
    step, expected = apart[-1][0], apart[-1][0]
    for stride, size in reversed(apart):
        if stride != expected:
            return None
        expected = stride * size
    return step


def _is_beside(p: ChannelsPlan, item: Operand, run: int) -> bool:
    """Whether neighbouring columns of an operand may be read at once."""
    vector = p.contraction.vector
    others = [s for d, s in item.strides if d != vector]
    wide = min(run, 16 // DTYPES[p.group.tensor(item.tensor).dtype])
    return item.stride(vector) == 1 and not any(n % wide for n in (item.const, *others))


def _run(p: ChannelsPlan, strides: dict[str, int], const: int) -> int:
    """Neighbouring columns that are stored at once."""
    vector = p.contraction.vector
    others = [s for d, s in strides.items() if d != vector]
    for run in (16, 8, 4, 2) if DTYPES[p.group.output.dtype] == 1 else (8, 4, 2):
        wide = min(run, 16 // DTYPES[p.group.output.dtype])
        beside = strides.get(vector) == 1 and not any(n % wide for n in (const, *others))
        if beside and p.columns % run == 0:
            return run
    return 1
