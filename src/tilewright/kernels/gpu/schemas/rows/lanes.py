"""Parts of a row by the lanes of one warp, neighbours moved at once.

Goes in: a part as `Point` writes it. Comes out: its lines, for a kernel in which `lane` is the
place of a thread among the `LANES` of its row. Lanes exchange what each of them combined, so all
have the result, in registers, without a barrier. A row of few turns is unrolled whole: all of it is
asked for at once, stays in registers from part to part, and the constants along it are asked for
even before the kernels that this one follows have ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schemas.general.plan import Loop, Place
from tilewright.kernels.gpu import half, pieces
from tilewright.kernels.gpu.point import Point, outside_in
from tilewright.kernels.gpu.schemas.general.code import reductions
from tilewright.kernels.gpu.schemas.vector.code import is_beside
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.dtypes import HALVES

LANES = WARP
RUNS = (8, 4, 2, 1)
FEW_TURNS = 4  # of a lane along a row, which are unrolled
MOST_HELD = 64  # floats of constants that a lane keeps in registers


class RunPoint(Point):
    """A point among `run` neighbours along an iterator: operands that lie side by side are in
    registers, which `loads` fills.
    """

    def __init__(self, point: Point, along: str, run: int) -> None:
        super().__init__(point.piece, point.typed)
        self.along, self.run = along, run
        self.loads: dict[str, tuple[str, Place]] = {}

    def moves(self, place: Place) -> bool:
        """Whether neighbours of an operand, or of the result, are moved at once."""
        return (
            self.run > 1
            and not (place.tables or place.lookups or place.tests)
            and place.dtype in ('f32', *HALVES)
            and place.strides.get(self.along, 0) == 1
            and is_beside(place, self.along, self.run)
        )

    def element(self, place: Place, looked_up: Mapping[int, str]) -> str:
        if not self.moves(place):
            return super().element(place, looked_up)
        at = f'{place.pointer} + {place.index(looked_up)}'
        name, _ = self.loads.setdefault(at, (f'run_{len(self.loads)}', place))
        return f'{name}[u]'

    def loaded(self, held: Collection[str] = ()) -> list[str]:
        """Lines that fill the registers, but those of the places that are `held`."""
        lines = []
        for at, (name, place) in self.loads.items():
            if place.dtype in HALVES:
                self.typed.functions[f'from_{place.dtype}'] = None
            if at in held:
                lines.append(f'const float *const {name} = held_{name}[turn];')
                continue
            lines += [
                f'float {name}[{self.run}];',
                *half.load(name, self.run, at, place.dtype),
            ]
        return lines


@dataclass(frozen=True, slots=True)
class RowPart:
    """Lines of one part; `first` are those that only read constants."""

    lines: list[str]
    first: Sequence[str] = ()


def part(point: Point, run: int, constants: Collection[str] = ()) -> RowPart:
    """All points of one part that belong to a row; some operands are constants."""
    piece = point.piece
    loops = outside_in(piece, piece.parallel, [piece.write])
    alone = math.prod(loop.size for loop in loops) == 1 and piece.stage.combiner is not None
    if alone:
        return RowPart(_together(point, reductions(piece), run))
    if any(loop.size > 1 for loop in piece.reductions):
        raise ScheduleError('lanes of a row share sums of one point alone; leave lanes out')
    return _dealt(point, loops, run, constants)


def _together(point: Point, loops: Sequence[Loop], run: int) -> list[str]:
    """One point by all lanes; each of them has it in the end."""
    if point.piece.dtype != 'f32':
        raise ScheduleError(
            f'lanes of a row exchange f32, not {point.piece.dtype}; leave lanes out'
        )
    each = _runs(point, loops, run)
    added = [f'value = {each.combined("value", each.term())};']
    lines = [f'float value = {point.neutral};', *_walked(each, loops, added, [])]
    for step in (16, 8, 4, 2, 1):
        lines.append(f'value = {point.combined("value", f"LANE_XOR(value, {step})")};')
    return [*lines, 'const float value_0 = value;', *point.finish()]


def _dealt(point: Point, loops: Sequence[Loop], run: int, constants: Collection[str]) -> RowPart:
    """Points by a lane each, or `run` neighbours."""
    each = _runs(point, loops, run)
    write = point.piece.write
    lines = [f'const {point.type} value_0 = {each.term()};', *each.finish()]
    held = _held(each, loops, constants)
    first = _first(each, loops, held)
    if not each.moves(write):
        return RowPart(_walked(each, loops, lines, [], held), first)
    # The last line stores the value: neighbours are gathered, and stored together.
    lines[-1] = f'made[u] = value_{len(point.piece.after)};'
    place = f'{write.pointer} + {write.index({})}'
    stored = half.store([f'made[{u}]' for u in range(each.run)], place, write.dtype)
    if write.dtype in HALVES:
        point.typed.functions[f'to_{write.dtype}'] = None
    around = [f'float made[{each.run}];', *stored]
    return RowPart(_walked(each, loops, lines, around, held), first)


def _runs(point: Point, loops: Sequence[Loop], run: int) -> RunPoint:
    """Runs along the innermost loop, where they divide it."""
    if not loops or loops[-1].size % run:
        return RunPoint(point, '', 1)
    return RunPoint(point, loops[-1].name, run)


def _held(each: RunPoint, loops: Sequence[Loop], constants: Collection[str]) -> Collection[str]:
    """Where the constants are that a lane keeps in registers; none where that are too many."""
    found = [at for at, (_, place) in each.loads.items() if place.pointer in constants]
    turns = _turns(each, loops)
    few = turns <= FEW_TURNS and turns * each.run * len(found) <= MOST_HELD
    return frozenset(found) if few else frozenset()


def _first(each: RunPoint, loops: Sequence[Loop], held: Collection[str]) -> list[str]:
    """Lines that ask for the constants that are held."""
    if not held:
        return []
    names = {at: name for at, (name, _) in each.loads.items() if at in held}
    turns, sizes = _turns(each, loops), [(loop.name, loop.size) for loop in loops]
    asked = [
        line
        for at, name in names.items()
        for line in half.load(f'held_{name}[turn]', each.run, at, each.loads[at][1].dtype)
    ]
    return [
        *(f'float held_{name}[{turns}][{each.run}];' for name in names.values()),
        *_turned(each, loops, [*pieces.decode('at', sizes), *asked]),
    ]


def _turns(each: RunPoint, loops: Sequence[Loop]) -> int:
    """Of each lane, `run` points at once."""
    return -(-math.prod(loop.size for loop in loops) // (LANES * each.run))


def _turned(each: RunPoint, loops: Sequence[Loop], body: Sequence[str]) -> list[str]:
    """`body` at every point `at` where a run of this lane begins."""
    length, run, turns = math.prod(loop.size for loop in loops), each.run, _turns(each, loops)
    inside = list(body)
    if length % (LANES * run):
        inside = [f'if (at < {length}) {{', *pieces.indented(inside), '}']
    return [
        '#pragma unroll' if turns <= FEW_TURNS else '#pragma unroll 4',
        f'for (int turn = 0; turn < {turns}; turn++) {{',
        f'    const int at = (turn * {LANES} + lane) * {run};',
        *pieces.indented(inside),
        '}',
    ]


def _walked(
    each: RunPoint,
    loops: Sequence[Loop],
    inside: list[str],
    around: list[str],
    held: Collection[str] = (),
) -> list[str]:
    """`inside` at every point; `around` is the first line before a run, and those behind it."""
    sizes, run = [(loop.name, loop.size) for loop in loops], each.run
    if run == 1:
        body = ['const int here = at;', *pieces.decode('here', sizes), *inside]
        return _turned(each, loops, body)
    body = [
        *pieces.decode('at', sizes), *around[:1], *each.loaded(held), '#pragma unroll',
        f'for (int u = 0; u < {run}; u++) {{', '    const int here = at + u;',
        *pieces.indented([*pieces.decode('here', sizes), *inside]), '}', *around[1:],
    ]  # fmt: skip
    return _turned(each, loops, body)
