"""The parts of a chain as plain loops: any stride, window, combiner and expression.

Goes in: a `NestPlan`. Comes out: C, one nest for each part inside the loops over tiles, by the
general schema's nests (kernels/cpu/schemas/general): compilers make vectors of the innermost loops.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import Typed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.names import TAKEN, safe_iterators
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.schemas.chain.plan import NestPlan
from tilewright.kernels.cpu.schemas.general.code import HELPERS
from tilewright.kernels.cpu.schemas.general.nest import PieceWriter
from tilewright.kernels.cpu.schemas.general.plan import Piece, Tables, piece_of
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine


def generate_nests(p: NestPlan) -> str:
    """[NestPlan] -> [C source]"""
    body, functions, typed, tables = Writer(), Writer(), Typed(), Tables()
    places = abi.constant_places(p.group, '', 0)
    body.open('void tw_pack(const float *const *constants, float *packed)')
    floats = abi.write_constants(body, p.group, places, 0)
    if not places:
        body.line('(void)constants, (void)packed;')
    body.close()
    body.line()
    abi.write_sizes(body, p.schedule.threads, p.scratch_floats, floats)
    _write_part(p, places, body, functions, typed, tables)
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.lines += [*HELPERS.splitlines(), '']
    write_functions(writer, typed.functions)
    writer.lines += [*functions.lines, *body.lines]
    return writer.text()


def _write_part(
    p: NestPlan, places: dict[str, int], writer: Writer, functions: Writer, typed: Typed,
    tables: Tables,
) -> None:  # fmt: skip
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    bases = inputs | {name: f'args->packed + {at}' for name, at in places.items()}
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('float *scratch = (float *)(args->scratch + part * tw_scratch_bytes());')
    nest = Nest(p.stage, p.schedule, writer)
    nest.open_parts()
    for name in nest.loops(p.schedule.reg):
        nest.open_loop(p.schedule.reg, name)
    for number, part in enumerate(p.parts):
        writer.line(f'/* {part.label} */')
        writer.open('')
        _write_nest(p, number, nest, bases, writer, functions, typed, tables)
        writer.close()
    nest.close()
    writer.close()


def _write_nest(
    p: NestPlan, number: int, nest: Nest, bases: dict[str, str], writer: Writer,
    functions: Writer, typed: Typed, tables: Tables,
) -> None:  # fmt: skip
    """One part over its region of the tile."""
    part, names = safe_iterators(p.parts[number], TAKEN)
    stage = p.parts[number].main
    spans = {}
    for name, (start, count) in p.ranges[number].items():
        if part.output.name == p.group.output.name:
            low, high = nest.at(name)
        else:
            writer.line(f'const long {names[name]}_first = {_text(start, nest)};')
            low = f'max_long(0, {names[name]}_first)'
            high = f'min_long({names[name]}_first + {count}, {stage.sizes[name]})'
        spans[names[name]] = (f'{names[name]}_from', f'{names[name]}_to')
        writer.line(f'const long {names[name]}_from = {low}, {names[name]}_to = {high};')
    pointers: list[str] = []

    def pointer(tensor: str, _access: Access) -> tuple[str, tuple[int, ...]]:
        pointers.append(tensor)
        kept = p.buffers.get(tensor)
        return f'p{len(pointers) - 1}_', kept.strides if kept else part.tensor(tensor).strides

    piece = piece_of(part, tables, pointer, spans, ())
    _declare(p, piece, part, nest, bases, writer)
    PieceWriter(writer, functions, typed, piece, p.schedule.isa).write()


def _declare(
    p: NestPlan, piece: Piece, part: Group, nest: Nest, bases: dict[str, str], writer: Writer
) -> None:
    """The pointers of a part; those into scratch memory count from the tensor's own origin."""
    for place in piece.places:
        kept = p.buffers.get(place.tensor)
        if kept is None:
            base = 'args->out' if place.tensor == p.group.output.name else bases[place.tensor]
        else:
            moved = [
                scaled(f'({_text(start, nest)})', stride)
                for start, stride in zip(kept.starts, kept.strides, strict=True)
                if start != Affine(())
            ]
            base = total(['scratch', str(kept.offset)])
            base += f' - ({total(moved)})' if moved else ''
        const = '' if place.tensor == part.output.name else 'const '
        writer.line(f'{const}float *restrict {place.pointer} = {base};')


def _text(at: Affine, nest: Nest) -> str:
    """A place that is affine in the origin of the tile, in C."""
    terms = [scaled(nest.start(name), step) for name, step in at.terms if nest.start(name) != '0']
    return total([*terms, str(at.const) if at.const else ''])
