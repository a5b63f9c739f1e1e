"""Four neighbouring points of a thread in the general schema: loads and stores of sixteen bytes.

Goes in: a part of a group that reduces nothing, and threads of a block. Comes out: its kernel. An
operand that is contiguous along the innermost dimension of the result is loaded as four, one that
does not move along it once. Then memory is asked for four times as much by each instruction, and
where a point lies is computed for four at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.kernels.cpu.schemas.general.plan import Loop, Piece, Place, Tables, piece_of
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import BEGINS, ENDS, Array, Kernel
from tilewright.kernels.gpu.point import Point, outside_in, table_lines
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.ops.group import Group
from tilewright.ops.stage import Access

RUN = 4


def arguments(group: Group, used: Sequence[str]) -> tuple[Array, ...]:
    """Tensors as arguments of a kernel, each once; the result is written."""
    names = dict.fromkeys([*used, group.output.name])
    return tuple(
        Array(t.name, t.dims, t.shape, t.dtype, written=t.name == group.output.name)
        for t in map(group.tensor, names)
    )


def has_runs(group: Group) -> bool:
    """Whether fours of neighbouring results may be computed, loaded and stored at once."""
    if group.main.combiner is not None:
        return False
    piece = _piece(group, Tables(), [])
    loops = outside_in(piece, piece.parallel, [piece.write])
    if not loops or loops[-1].size % RUN or not is_run(piece.write, loops[-1]):
        return False
    inner = loops[-1].name
    moving = [p for p in piece.places if p.strides.get(inner)]
    indirect = {n for p in piece.places for n in p.names()}
    used = {
        *piece.iterators,
        *(n for a in piece.after for at in a.iterators.values() for n in at.names),
    }
    behind = any(p.lookups for p in piece.places if p not in piece.reads)
    if behind or any(
        piece.reads[n].strides.get(inner) for p in piece.reads for n, _, _ in p.lookups
    ):
        return False
    return inner not in indirect | used and all(
        is_run(p, loops[-1]) or p.dtype != 'f32' for p in moving
    )


def is_run(place: Place, inner: Loop) -> bool:
    """Whether four neighbours along the innermost loop are one aligned load."""
    others = [stride for name, stride in place.strides.items() if name != inner.name]
    return (
        place.dtype == 'f32' and place.strides.get(inner.name) == 1
        and not (place.tests or place.tables)
        and not any(n % RUN for n in (place.const, *others, *(s for _, _, s in place.lookups)))
    )  # fmt: skip


def _piece(group: Group, tables: Tables, used: list[str]) -> Piece:
    def pointer(tensor: str, _: Access) -> tuple[str, tuple[int, ...]]:
        used.append(tensor)
        return tensor, group.tensor(tensor).strides

    return piece_of(group, tables, pointer, {}, ())


class RunPoint(Point):
    """One of four points: operands that were loaded as four are parts of them."""

    def __init__(self, piece: Piece, typed: GpuTyped, inner: Loop, lane: int) -> None:
        super().__init__(piece, typed)
        self.inner, self.lane = inner, lane
        self.loaded: dict[str, str] = {}  # address -> name

    def element(self, place: Place, looked_up: Mapping[int, str]) -> str:
        if is_run(place, self.inner):
            if place.lookups:
                self.typed.functions['lookup'] = None
            address = f'{place.pointer} + {place.index(looked_up)}'
            name = self.loaded.setdefault(address, f'four{len(self.loaded)}')
            return f'{name}.{"xyzw"[self.lane]}'
        return super().element(place, looked_up)


def run_kernel(group: Group, threads: int) -> Kernel:
    """The main stage with its epilogue, four points to a thread."""
    tables, typed, used = Tables(), GpuTyped.of(group), []
    piece = _piece(group, tables, used)
    loops = outside_in(piece, piece.parallel, [piece.write])
    inner, points = loops[-1], math.prod(loop.size for loop in loops)
    fours, lines, results = points // RUN, [], []
    loads: dict[str, str] = {}
    for lane in range(RUN):
        point = RunPoint(piece, typed, inner, lane)
        term = point.term()
        *behind, _ = point.finish()
        last = f'value_{len(piece.after)}'
        step = f'const int {inner.name} = {inner.name}_first + {lane};'
        results.append(f'made{lane}')
        lines += [
            f'float made{lane};',
            '{',
            f'    {step}',
            f'    const {point.type} value_0 = {term};',
            *(f'    {line}' for line in behind),
            f'    made{lane} = {last};',
            '}',
        ]
        loads |= point.loaded
    target = f'{piece.write.pointer} + {piece.write.index({})}'
    sizes = [(loop.name, loop.size) for loop in loops]
    body = [
        f'const int mine = BLOCK_X * {threads} + THREAD;',
        *([f'if (mine >= {fours})', '    return;'] if fours % threads else []),
        f'const int point = mine * {RUN};',
        *pieces.decode('point', [*sizes[:-1], (f'{inner.name}_first', inner.size)]),
        BEGINS,
        ENDS,
        *declared(loads, inner),
        *lines,
        f'const int {inner.name} = {inner.name}_first;',
        f'STORE4(GLOBAL, {target}, FLOAT4({", ".join(results)}));',
    ]
    return Kernel(
        f'general_{group.main.name}', arguments(group, used), '\n'.join(body),
        (-(-fours // threads), 1, 1), threads, (),
        '\n'.join(filter(None, [typed.helpers(), table_lines(tables)])),
    )  # fmt: skip


def declared(loads: Mapping[str, str], inner: Loop) -> list[str]:
    """The fours, before anything is computed with them."""
    if not loads:
        return []
    return [
        *(f'float4 {name};' for name in loads.values()),
        '{',
        f'    const int {inner.name} = {inner.name}_first;',
        *(f'    {name} = LOAD4(GLOBAL, {address});' for address, name in loads.items()),
        '}',
    ]
