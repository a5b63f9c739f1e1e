"""The outer-product schema: packed weights, padded input tiles, register-owning micro-kernels.

Goes in: the plan of a group whose main stage is a sum of products (plan.py). Comes out: a C
translation unit with the ABI of kernels/cpu/abi.py.

    part -> bands of tile loops (schedule.levels, outermost first)
              pack_tile         after the last loop that moves the broadcast operand's tile
              register tiles    micro-kernel (reduction inside), then store with the epilogue

What is decided before a line is written is in plan.py, the packing of weights in panels.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from tilewright.kernels.cpu import abi, operand
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.isa import micro, tiles
from tilewright.kernels.cpu.isa.neon_done import can_finish, emit_done
from tilewright.kernels.cpu.isa.neon_near import emit_near
from tilewright.kernels.cpu.isa.neon_near import why_not as why_not_near
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import Operand as EpilogueOperand
from tilewright.kernels.cpu.pointwise import access_strides, write_epilogue
from tilewright.kernels.cpu.schemas.outer.behind import write_behind
from tilewright.kernels.cpu.schemas.outer.finish import Finished
from tilewright.kernels.cpu.schemas.outer.panels import (
    constant_offsets,
    write_packing,
    write_panels,
)
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan, blocks
from tilewright.kernels.cpu.schemas.outer.store import fetched, write_fetch, write_store
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS


def generate(p: OuterPlan) -> str:
    """[OuterPlan] -> [C source]"""
    group, schedule, writer = p.group, p.schedule, Writer()
    abi.write_head(writer, group, schedule)
    write_epilogue(writer, p.functions)
    if schedule.pack:
        tensor, lanes = group.tensor(p.contraction.a.tensor), ISAS[schedule.isa].lanes
        operand.write_pack(writer, p.operand, tensor, p.front, lanes)
    write_kernels(writer, p)
    if p.moving:
        write_panels(writer, p)
    write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def write_kernels(writer: Writer, p: OuterPlan, a_ahead: bool = True) -> None:
    """The micro-kernel of every tile, and the functions that store what they have summed.

    Hardware sees the stream where iterations walk along a row that is read in place, and asking
    for a line of every row in every iteration would keep the load units busy.
    """
    if p.deep:
        writer.lines += tiles.prologue(p.schedule.isa, p.schedule.dtype).splitlines()
        writer.line()
    if p.behind:
        write_behind(writer, p)
    a_ahead = a_ahead and (bool(p.schedule.pack) or p.operand.strides.get(p.contraction.loop) != 1)
    for vectors in sorted({p.panels.vectors, p.panels.tail_vectors}):
        for extents in p.pixel_extents:
            kernel = replace(_micro(p, extents, vectors), a_ahead=a_ahead)
            if p.done and is_done(p, extents, vectors):
                done = micro.Finish(
                    (), bool(p.done.bias), bool(p.done.more), p.done.low, p.done.high
                )
                writer.lines += emit_done(kernel, done).splitlines()
                writer.line()
                continue
            writer.lines += micro.emit(kernel).splitlines()
            writer.line()
            if p.near and finishes(p):
                places = pixel_places(p, extents)
                writer.lines += emit_near(kernel, places, p.near.value).splitlines()
                writer.line()
    if p.behind:
        write_fetch(writer, p)
        return
    write_store(writer, p, [v for v in variants(p) if not is_done(p, *v)])


def variants(p: OuterPlan) -> list[tuple[tuple[int, ...], int]]:
    """Pixels and vectors of every register tile that occurs."""
    widths = sorted({p.panels.vectors, p.panels.tail_vectors})
    return [(extents, vectors) for vectors in widths for extents in p.pixel_extents]


def is_done(p: OuterPlan, extents: tuple[int, ...], vectors: int) -> bool:
    """Whether a tile's micro-kernel stores results itself: one row of whole blocks of pixels. In a
    strip several rows lie side by side as well, which they do not in the result.
    """
    if p.done is None or p.result != 'float' or extents[-1] % micro.BLOCK:
        return False
    if math.prod(extents) != extents[-1]:
        return False
    if not p.turned(extents, vectors):
        return False
    return can_finish(_micro(p, extents, vectors))


def finishes(p: OuterPlan) -> bool:
    """Whether sums that are small are finished in registers: one call completes them."""
    c, near = p.contraction, p.near
    if near is None or not near.alone or p.persistent or c.outer:
        return False
    if p.out_strides.get(c.vector) != 1:
        return False
    if p.ahead or p.stream_ahead or near.scale.stride(c.vector) != 1:
        return False
    variants = itertools.product(p.pixel_extents, {p.panels.vectors, p.panels.tail_vectors})
    return not any(why_not_near(_micro(p, *variant), near.value) for variant in variants)


def pixel_places(p: OuterPlan, extents: tuple[int, ...]) -> list[int]:
    """Elements from the first pixel of a tile to each, in the result."""
    strides = [p.out_strides.get(d, 0) for d in p.contraction.pixels]
    return [
        sum(step * i for step, i in zip(strides, point, strict=True))
        for point in itertools.product(*(range(e) for e in extents))
    ]


def _micro(p: OuterPlan, extents: tuple[int, ...], vectors: int) -> micro.MicroKernel:
    turned = p.turned(extents, vectors)
    computed = (*extents[:-1], blocks(extents[-1])) if turned else extents
    pixels = list(itertools.product(*(range(e) for e in computed)))
    names, strides = p.contraction.pixels, p.operand.strides
    width = p.panels.lanes * vectors

    def place(table: dict[str, int], point: tuple[int, ...]) -> int:
        return sum(table.get(d, 0) * i for d, i in zip(names, point, strict=True))

    if p.persistent:
        acc = tuple(place(p.acc_strides, point) for point in pixels)
    else:
        acc = tuple(number * width for number in range(len(pixels)))
    return micro.MicroKernel(
        p.schedule.isa,
        tuple(place(strides, point) for point in pixels),
        vectors,
        p.operand.steps,
        strides.get(p.contraction.loop, 0),
        acc,
        micro.micro_name(p.schedule.isa, extents, vectors),
        turned=turned,
        dtype=p.schedule.dtype,
        accumulation=p.schedule.accumulation,
        fetch=p.ahead.most or p.ahead.floats if p.ahead else 0,
        fetch_apart=p.ahead.apart if p.ahead else 0,
        varies=p.ahead is not None and p.ahead.most > 0,
        stored=p.stored,
        b_ahead=_weights_ahead(p),
        finish=_finish(p, [place(p.out_strides, point) for point in pixels]),
        deep=p.deep,
        taps=p.taps,
        behind=-(-math.prod(extents) * p.deep // p.panels.points) if p.behind else 0,
    )


def _weights_ahead(p: OuterPlan) -> int:
    """Floats of panels that a micro-kernel asks for ahead; one of tiles where a panel is longer
    than that.
    """
    if not p.deep:
        return p.stream_ahead
    ahead = tiles.AHEAD_BYTES // 4
    return ahead if p.panels.points * p.panels.width > 2 * ahead else 0


def _finish(p: OuterPlan, places: list[int]) -> micro.Finish | None:
    if p.finish is None:
        return None
    bias, more = bool(p.finish.bias), bool(p.finish.more)
    return micro.Finish(
        tuple(places), bias, more, p.finish.low, p.finish.high, p.finish.stored
    )  # fmt: skip


def _write_part(writer: Writer, p: OuterPlan) -> None:
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    places = constant_offsets(p)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    source = p.front.source if p.front else p.contraction.a.tensor
    writer.line(f'const float *source = {pointer(source)};')
    numbers = ''.join(
        f', args->packed + {places[n.tensor]}' for n in (p.front.numbers if p.front else ())
    )
    write_nest(writer, p, pointer, f'pack_tile(source, buffer, from, extent{numbers});')
    writer.close()


def write_nest(writer: Writer, p: OuterPlan, pointer: Callable[[str], str], fill: str) -> None:
    """The loops of a thread, inside `tw_part`.

    `pointer` says where tensors lie; `fill` is the C statement that fills `buffer` with a tile of
    the broadcast operand, `from` and `extent` along each of its axes.
    """
    c, schedule, stage = p.contraction, p.schedule, p.group.main
    writer.line('float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *accumulators = buffer + {abi.aligned(p.operand.size + 16)};')
    for item in p.epilogue.operands:
        kind = C_TYPES[item.dtype]
        cast = '' if kind == 'float' else f'(const {kind} *)'
        place = pointer(item.tensor)
        writer.line(f'const {kind} *{item.name} = {cast}{f"({place})" if cast else place};')
    if p.deep:
        writer.line('const void *shape = NULL;')
        writer.line('tiles_begin();')
    if p.behind:
        writer.line('pending f = {0};')
        writer.line('long turn = 0;')
    nest = Nest(stage, schedule, writer)
    nest.open_parts()
    if p.moving:
        writer.line(f'float *panels = accumulators + {abi.aligned(p.acc_floats)};')
        ranges = ', '.join(text for d in (c.vector, *p.loose) for text in nest.at(d))
        writer.line(f'pack_panels({pointer(c.b.tensor)}, panels, {ranges});')
    origin, kept = _open_bands(writer, p, nest, fill)
    reg = schedule.reg
    for name in reg.order:
        if name in stage.parallel:
            nest.open_loop(reg, name)
    _write_tile(writer, p, nest, origin, kept)
    nest.close()
    if p.behind:
        writer.line('finish(&f, f.left);')
    if p.deep:
        writer.line('tiles_end();')


def _open_bands(
    writer: Writer, p: OuterPlan, nest: Nest, fill: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Open every cache band; pack behind the last loop that moves the operand's tile.

    Comes out: the first indices of that tile, and of the one whose sums are kept.
    """
    c, schedule = p.contraction, p.schedule
    names = [level.name for level in schedule.levels]
    first = names.index(schedule.pack) if schedule.pack else 0
    probe = Nest(p.group.main, schedule, Writer())
    probe.open_parts()
    moving = 0
    for index in range(len(schedule.levels) - 1, max(first, 1) - 1, -1):
        level = schedule.levels[index]
        for name in probe.loops(level):
            # A loop that cuts nothing at this size is passed, so that most sizes pack at one place.
            last, cuts = probe.opened == moving, probe.is_loop(level, name)
            probe.open_loop(level, name)
            if name in c.a.names if cuts else last:
                moving = probe.opened
    origin: dict[str, str] = {}
    kept: dict[str, str] = {}

    def pack_here() -> None:
        origin.update(nest.starts())
        if schedule.pack:
            _write_fill(writer, p, nest, fill)

    if moving == 0:
        pack_here()
    for index in range(len(schedule.levels) - 1, 0, -1):
        level = schedule.levels[index]
        for name in nest.loops(level):
            nest.open_loop(level, name)
            if nest.opened == moving:
                pack_here()
        if level.name == p.kept:
            kept = nest.starts()
    return origin, kept


def _write_fill(writer: Writer, p: OuterPlan, nest: Nest, fill: str) -> None:
    firsts, extents = [], []
    for expression in p.contraction.a.index:
        firsts.append(
            total([*(scaled(nest.start(n), k) for n, k in expression.terms), str(expression.const)])
        )
        spans = [scaled(f'({nest.at(n)[1]} - {nest.at(n)[0]} - 1)', k) for n, k in expression.terms]
        extents.append(total([*spans, '1']))
    writer.line(f'const long from[] = {{{", ".join(firsts)}}};')
    writer.line(f'const long extent[] = {{{", ".join(extents)}}};')
    writer.line(fill)


def _write_tile(
    writer: Writer, p: OuterPlan, nest: Nest, origin: dict[str, str], kept: dict[str, str]
) -> None:
    """One register tile: pointers, micro-kernel, store."""
    c, panels, stage = p.contraction, p.panels, p.group.main
    sizes, v = stage.sizes, c.vector
    at = nest.start
    writer.line(f'const long last = {at(v)} + {panels.width} >= {panels.size};')
    width = str(panels.width)
    if panels.tail_vectors != panels.vectors:
        width = 'width'
        writer.line(f'const long width = last ? {panels.tail_width} : {panels.width};')
    loose = '0'
    for name in p.loose:
        loose = at(name) if loose == '0' else f'({loose} * {sizes[name]} + {at(name)})'
    panel = total([scaled(loose, panels.floats), scaled(at(v), panels.points)])
    base, kind = 'panels' if p.moving else 'args->packed', micro.WEIGHT_TYPES[p.stored]
    base = base if kind == 'float' else f'(const {kind} *){base}'
    writer.line(f'const {kind} *weights = {base} + {panel};')
    moving = [d for d in (*c.batch, *c.pixels, *c.outer, c.loop) if d]
    if p.schedule.pack:
        shifts = [
            p.operand.start(d, f'({at(d)} - {origin[d]})' if origin[d] != '0' else at(d))
            for d in moving
            if at(d) != origin[d]
        ]
        writer.line(f'const float *tile = buffer + {total(shifts)};')
    else:
        strides, const = access_strides(p.group, c.a)
        shifts = [scaled(at(d), strides.get(d, 0)) for d in moving]
        writer.line(f'const float *tile = source + {total([*shifts, str(const)])};')
    if p.finish:
        _write_store_fetch(writer, p, nest)
        _write_calls(writer, p, nest, width)
        return
    if p.persistent:
        first = kept or {d: nest_part(p, d) for d in stage.parallel}
        place = [
            scaled(f'({at(d)} - {first[d]})', p.acc_strides[d]) for d in stage.parallel if d != v
        ]
        place.append(f'({at(v)} - {first[v]})')
        writer.line(f'float *acc = accumulators + {total(place)};')
    elif p.behind:
        writer.line('float *acc = accumulators + turn;')
        writer.line(f'turn ^= {p.acc_floats};')
    elif not all(is_done(p, *v) for v in variants(p)):
        writer.line('float *acc = accumulators;')
    _write_store_fetch(writer, p, nest)
    alone = _write_finishing(writer, p, nest)
    _write_calls(writer, p, nest, width)
    if p.behind:
        _write_pending(writer, p, nest)
        return
    _write_store_call(writer, p, nest)
    if alone:
        writer.close()


def _write_pending(writer: Writer, p: OuterPlan, nest: Nest) -> None:
    """What the next micro-kernel finishes."""
    low, high = nest.at(p.contraction.pixels[0])
    writer.line('f.acc = acc;')
    writer.line(f'f.out = {_out(p)} + {_result_place(p, nest)};')
    for item in p.epilogue.operands:
        writer.line(f'f.{item.name} = {item.name} + {_operand_place(p, nest, item)};')
    writer.line(f'f.left = {high} - {low};')


def _write_finishing(writer: Writer, p: OuterPlan, nest: Nest) -> bool:
    """The call that finishes sums in registers, where they are small and fill their vectors;
    whether a block for all others was opened behind it.
    """
    c, near = p.contraction, p.near
    if near is None or not finishes(p):
        return False
    high, whole = nest.at(c.loop)[1] if c.loop else '1', ''
    if p.panels.size % p.panels.width:
        whole = f' && {nest.at(c.vector)[0]} + {p.panels.width} <= {p.panels.size}'
    writer.open(f'if (*{near.near.name}{whole})')
    places = ', '.join(f'{i.name} + {_operand_place(p, nest, i)}' for i in (near.start, near.scale))
    given = f'tile, weights, {places}, {_out(p)} + {_result_place(p, nest)}, {high}'
    _dispatch(
        writer, p, nest,
        lambda extents, vectors: (
            f'{micro.micro_name(p.schedule.isa, extents, vectors)}_near({given});'
        ),
    )  # fmt: skip
    writer.close()
    writer.open('else')
    return True


def nest_part(p: OuterPlan, name: str) -> str:
    """The C name of the first index of a dimension that this thread owns."""
    return f'{name}_part' if dict(p.schedule.parallel).get(name, 1) > 1 else '0'


def _write_calls(writer: Writer, p: OuterPlan, nest: Nest, width: str) -> None:
    """The micro-kernel that fits this tile, once for every point of the outer reductions."""
    c, sizes = p.contraction, p.group.main.sizes
    at = nest.at
    steps = len(p.operand.steps)
    first = [f'{at(d)[0]} == 0' for d in (*c.outer, c.loop) if d and at(d)[0] != '0']
    resume = '0' if not first else f'!({" && ".join(first)})'
    for name in c.outer:
        writer.open(f'for (long {name} = {at(name)[0]}; {name} < {at(name)[1]}; {name}++)')
    linear = '0'
    for name in c.outer:
        linear = name if linear == '0' else f'({linear} * {sizes[name]} + {name})'
    if c.loop:
        inside = scaled(linear, sizes[c.loop]) if linear != '0' else ''
        linear = total([inside, at(c.loop)[0]])
    count = f'{at(c.loop)[1]} - {at(c.loop)[0]}' if c.loop else '1'
    shift = total([scaled(f'({d} - {at(d)[0]})', p.operand.strides.get(d, 0)) for d in c.outer])
    again = ' || '.join([resume, *(f'{d} > {at(d)[0]}' for d in c.outer)])
    runs = bool(p.run and c.loop) and p.run < p.schedule.levels[1].tile[c.loop]
    if runs:
        writer.line(f'const long length = {count};')
        writer.open(f'for (long done = 0; done < length; done += {p.run})')
        count, again = f'min_long({p.run}, length - done)', f'{again} || done'
        linear, shift = f'{linear} + done', total(
            [shift, scaled('done', p.operand.strides.get(c.loop, 0))]
        )  # fmt: skip
    arguments = f'tile + {shift}, weights + ({linear}) * {steps} * {width}'
    done = ''
    if p.done:
        pointers = _pointers(p, nest, p.done)
        pitch = p.out_strides.get(c.vector, 0)
        done = f'{arguments}, {_out(p)} + {_result_place(p, nest)}, {count}, {pitch}'
        done += f', {", ".join(pointers)}'
    if p.finish:
        pointers = _pointers(p, nest, p.finish)
        arguments += f', {_out(p)} + {_result_place(p, nest)}, {count}, {", ".join(pointers)}'
    else:
        arguments += f', acc, {count}, {again}'
    if p.ahead:
        share = f'({at(p.ahead.dim)[0]} - {p.ahead.start}) / {p.ahead.tile} * ({count})'
        place = total([f'({linear}) * {width}', str(p.ahead.distance)])
        kind, floats = micro.WEIGHT_TYPES[p.stored], str(p.ahead.floats)
        if p.ahead.apart:  # by lines of all tiles so far
            share = f'({scaled(f"({linear})", p.ahead.shares)} + {share}) / {p.deep}'
            place, floats = str(p.ahead.distance), str(LINE_FLOATS)
        writer.line(f'const {kind} *next = weights + {place} + {share} * {floats};')
        arguments += ', next'
        arguments += f', {p.ahead.floats} * sizeof *next' if p.ahead.most else ''
    if p.deep:
        arguments += ', &shape, &f' if p.behind else ', &shape'
    _dispatch(
        writer,
        p,
        nest,
        lambda extents, vectors: (
            f'{micro.micro_name(p.schedule.isa, extents, vectors)}_done({done});'
            if is_done(p, extents, vectors)
            else f'{micro.micro_name(p.schedule.isa, extents, vectors)}({arguments});'
        ),
    )
    if c.outer or runs:
        writer.close(len(c.outer) + runs)


def _pointers(p: OuterPlan, nest: Nest, finish: Finished) -> list[str]:
    """C expressions: where a tile's bias and what else is added lie."""
    places = {i.name: f'{i.name} + {_operand_place(p, nest, i)}' for i in p.epilogue.operands}
    return [places.get(name, 'NULL') for name in (finish.bias, finish.more)]


def _dispatch(writer: Writer, p: OuterPlan, nest: Nest, call) -> None:
    """Choose among the variants by the extents of this tile; one variant needs no choice."""
    panels = p.panels
    variants = []
    for vectors in sorted({panels.vectors, panels.tail_vectors}, reverse=True):
        for extents in sorted(p.pixel_extents, reverse=True):
            tests = []
            if panels.tail_vectors != panels.vectors:
                tests.append('last' if vectors == panels.tail_vectors else '!last')
            for position, (name, extent) in enumerate(
                zip(p.contraction.pixels, extents, strict=True)
            ):
                if len({e[position] for e in p.pixel_extents}) > 1:
                    low, high = nest.at(name)
                    tests.append(f'{high} - {low} == {extent}')
            variants.append((' && '.join(tests), call(extents, vectors)))
    for number, (test, text) in enumerate(variants):
        if len(variants) == 1:
            writer.line(text)
        elif number + 1 == len(variants):
            writer.line(f'else\n{"    " * (writer.depth + 1)}{text}')
        else:
            word = 'if' if number == 0 else 'else if'
            writer.line(f'{word} ({test})\n{"    " * (writer.depth + 1)}{text}')


def _complete(p: OuterPlan, nest: Nest) -> str:
    """A C condition: the sums of this tile are complete behind this call; '' where always."""
    c, sizes = p.contraction, p.group.main.sizes
    return ' && '.join(
        f'{nest.at(d)[1]} == {sizes[d]}'
        for d in (*c.outer, c.loop)
        if d and nest.at(d)[1] != str(sizes[d])
    )


def _write_store_fetch(writer: Writer, p: OuterPlan, nest: Nest) -> None:
    """Ask for the lines of the result before the sums are made, so that stores find them."""
    done = _complete(p, nest)
    if done:
        writer.line(f'if ({done})')
    operands = ''.join(f', {item.name} + {_operand_place(p, nest, item)}' for item in fetched(p))
    place = f'{_out(p)} + {_result_place(p, nest)}'
    writer.line(f'{"    " if done else ""}fetch_result({place}{operands});')


def _out(p: OuterPlan) -> str:
    return 'args->out' if p.result == 'float' else f'(({p.result} *)args->out)'


def _result_place(p: OuterPlan, nest: Nest) -> str:
    shifts = (scaled(nest.start(d), p.out_strides.get(d, 0)) for d in p.group.main.parallel)
    return total([*shifts, str(p.out_const)])


def _operand_place(p: OuterPlan, nest: Nest, item: EpilogueOperand) -> str:
    shifts = (scaled(nest.start(d), item.stride(d)) for d in p.group.main.parallel)
    return total([*shifts, str(item.const)])


def _write_store_call(writer: Writer, p: OuterPlan, nest: Nest) -> None:
    c = p.contraction
    at = nest.at
    if all(is_done(p, *v) for v in variants(p)):
        return
    done = _complete(p, nest)
    if done:
        writer.open(f'if ({done})')
    place = _result_place(p, nest)
    operands = [f', {item.name} + {_operand_place(p, nest, item)}' for item in p.epilogue.operands]
    lanes = f'min_long({p.panels.width}, {p.panels.size} - {at(c.vector)[0]})'
    arguments = f'acc, {_out(p)} + {place}, {lanes}{"".join(operands)}'
    _dispatch(
        writer,
        p,
        nest,
        lambda extents, vectors: (
            ';'
            if is_done(p, extents, vectors)
            else f'store_p{"x".join(map(str, extents))}_v{vectors}({arguments});'
        ),
    )
    if done:
        writer.close()
