"""Parts of a row by the lanes of one warp, neighbours moved at once.

Goes in: a part as `Point` writes it. Comes out: its lines, for a kernel in which `lane` is the
place of a thread among the `LANES` of its row. Lanes exchange what each of them combined, so all
have the result, in registers, without a barrier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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

    def loaded(self) -> list[str]:
        """Lines that fill the registers."""
        lines = []
        for at, (name, place) in self.loads.items():
            if place.dtype in HALVES:
                self.typed.functions[f'from_{place.dtype}'] = None
            lines += [
                f'float {name}[{self.run}];',
                *half.load(name, self.run, at, place.dtype),
            ]
        return lines


def part(point: Point, run: int) -> list[str]:
    """All points of one part that belong to a row."""
    piece = point.piece
    loops = outside_in(piece, piece.parallel, [piece.write])
    alone = math.prod(loop.size for loop in loops) == 1 and piece.stage.combiner is not None
    if alone:
        return _together(point, reductions(piece), run)
    if any(loop.size > 1 for loop in piece.reductions):
        raise ScheduleError('lanes of a row share sums of one point alone; leave lanes out')
    return _dealt(point, loops, run)


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


def _dealt(point: Point, loops: Sequence[Loop], run: int) -> list[str]:
    """Points by a lane each, or `run` neighbours."""
    each = _runs(point, loops, run)
    write = point.piece.write
    lines = [f'const {point.type} value_0 = {each.term()};', *each.finish()]
    if not each.moves(write):
        return _walked(each, loops, lines, [])
    # The last line stores the value: neighbours are gathered, and stored together.
    lines[-1] = f'made[u] = value_{len(point.piece.after)};'
    place = f'{write.pointer} + {write.index({})}'
    stored = half.store([f'made[{u}]' for u in range(each.run)], place, write.dtype)
    if write.dtype in HALVES:
        point.typed.functions[f'to_{write.dtype}'] = None
    return _walked(each, loops, lines, [f'float made[{each.run}];', *stored])


def _runs(point: Point, loops: Sequence[Loop], run: int) -> RunPoint:
    """Runs along the innermost loop, where they divide it."""
    if not loops or loops[-1].size % run:
        return RunPoint(point, '', 1)
    return RunPoint(point, loops[-1].name, run)


def _walked(
    each: RunPoint, loops: Sequence[Loop], inside: list[str], around: list[str]
) -> list[str]:
    """`inside` at every point; `around` is the first line before a run, and those behind it."""
    sizes = [(loop.name, loop.size) for loop in loops]
    length, run = math.prod(size for _, size in sizes), each.run
    body = [*pieces.decode('here', sizes), *inside]
    if run > 1:
        body = [
            *pieces.decode('at', sizes), *around[:1], *each.loaded(), '#pragma unroll',
            f'for (int u = 0; u < {run}; u++) {{', '    const int here = at + u;',
            *pieces.indented(body), '}', *around[1:],
        ]  # fmt: skip
    else:
        body = ['const int here = at;', *body]
    return [
        '#pragma unroll 4',
        f'for (int at = lane * {run}; at < {length}; at += {LANES * run}) {{',
        *pieces.indented(body),
        '}',
    ]
