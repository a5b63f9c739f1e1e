"""One point of a stage in CUCL, with what follows it: any dtype, expression, combiner and index.

Goes in: a part of a group (ops/parts.py) as kernels/cpu/schemas/general/plan.py plans it. Comes
out: lines that a schema puts into its loops: the value that one point of the reductions adds, the
neutral one, two of them combined, the stages behind and the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.kernels.cpu.expression import C_TYPES, number
from tilewright.kernels.cpu.schemas.general.plan import (
    Loop,
    Piece,
    Place,
    Tables,
    affine_text,
    read_texts,
)
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.ops.dtypes import computed
from tilewright.ops.stage import COMBINERS


class Point:
    """Texts of one piece; `typed` collects the functions that they call."""

    def __init__(self, piece: Piece, typed: GpuTyped) -> None:
        self.piece, self.typed = piece, typed

    @property
    def type(self) -> str:
        """The C type that is accumulated."""
        return C_TYPES[self.piece.dtype]

    @property
    def neutral(self) -> str:
        """What changes nothing when it is combined."""
        return narrow(number(COMBINERS[self.piece.stage.combiner or 'sum'], self.piece.dtype))

    def term(self) -> str:
        """What one point of the reductions adds, in the dtype that is accumulated."""
        piece = self.piece
        iterators = {name: affine_text(at) for name, at in piece.iterators.items()}
        text, dtype = self.typed.text(
            piece.stage.expr, read_texts(piece.reads, [], self.element), iterators
        )
        return narrow(self.typed.convert(text, dtype, piece.dtype))

    def combined(self, left: str, right: str) -> str:
        combiner = self.piece.stage.combiner or 'sum'
        return self.typed.combine(combiner, self.piece.dtype, left, right)

    def finish(self) -> list[str]:
        """The stages behind, from `value_0` on, and the store."""
        piece, lines = self.piece, []
        dtypes = [piece.dtype]
        for count, after in enumerate(piece.after, 1):
            iterators = {name: affine_text(at) for name, at in after.iterators.items()}
            reads = read_texts(after.reads, dtypes, self.element)
            text, dtype = self.typed.text(after.expr, reads, iterators)
            made = narrow(self.typed.convert(text, dtype, after.dtype))
            lines.append(f'const {C_TYPES[after.dtype]} value_{count} = {made};')
            dtypes.append(after.dtype)
        target = f'{piece.write.pointer}[{piece.write.index({})}]'
        made = self.typed.stored(f'value_{len(piece.after)}', piece.write.dtype)
        return [*lines, f'{target} = {made};']

    def element(self, place: Place, looked_up: Mapping[int, str]) -> str:
        if place.lookups:
            self.typed.functions['lookup'] = None
        element = self.typed.loaded(f'{place.pointer}[{place.index(looked_up)}]', place.dtype)
        if not place.tests:
            return element
        tests = [
            f'{t.table.name}[{affine_text(t.at)}] >= 0'
            if t.table
            else f'(unsigned)({affine_text(t.at)}) < {t.extent}u'
            for t in place.tests
        ]
        pad = narrow(number(self.piece.stage.pad_value, computed(place.dtype)))
        return f'({" && ".join(dict.fromkeys(tests))} ? {element} : {pad})'


def outside_in(piece: Piece, loops: Sequence[Loop], places: Sequence[Place]) -> list[Loop]:
    """Loops, those with the largest steps in the first of these places outside."""
    first = places[0] if places else piece.write
    return sorted(loops, key=lambda p: -abs(first.strides.get(p.name, 0)))


def table_lines(tables: Tables) -> str:
    """Definitions of positions that are known now."""
    return '\n'.join(
        f'TABLE {table.name}[{len(table.values)}] = {{{", ".join(map(str, table.values))}}};'
        for table in tables.all()
    )
