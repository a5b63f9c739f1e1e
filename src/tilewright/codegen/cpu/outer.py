"""The outer-product schema: packed weights, padded input tiles, register-owning micro-kernels.

Goes in: a group whose main stage is a sum of products, and a schedule with schema 'outer'.
Comes out: a C translation unit with the ABI of codegen/cpu/abi.py.

    part -> bands of tile loops (schedule.levels, outermost first)
              pack_tile         after the last loop that moves the broadcast operand's tile
              register tiles    micro-kernel (reduction inside), then store with the epilogue

Packed weights: [batch and column dims][panel of V vectors][reductions][V * lanes], the last panel
only as wide as the problem needs, its lanes beyond the problem zero (MOpt Sec. 6, "Packing"). They
are packed once; an operand that changes with every call is packed by each thread, as far as its
part needs it, before anything else.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tilewright.codegen.cpu import abi, micro, operand
from tilewright.codegen.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.codegen.cpu.front import Front, plan_front
from tilewright.codegen.cpu.nest import Nest, part_extents, tile_sets
from tilewright.codegen.cpu.pointwise import (
    Epilogue,
    access_strides,
    typed_epilogue,
    write_epilogue,
)
from tilewright.codegen.cpu.pointwise import Operand as EpilogueOperand
from tilewright.codegen.cpu.store import Quick, fetched, straight, write_store
from tilewright.codegen.cpu.writer import Writer, scaled, total
from tilewright.errors import ScheduleError
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group, Tensor
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True)
class Panels:
    """The packed operand: panels of `vectors` vectors along the vector dimension."""

    size: int
    lanes: int
    vectors: int
    points: int
    count: int
    tail_vectors: int

    @classmethod
    def of(cls, contraction: Contraction, lanes: int, vectors: int) -> Panels:
        sizes = contraction.stage.sizes
        size, width = sizes[contraction.vector], lanes * vectors
        count = -(-size // width)
        tail = -(-(size - (count - 1) * width) // lanes)
        points = math.prod(sizes[d] for d in contraction.reduction)
        return cls(size, lanes, vectors, points, count, tail)

    @property
    def width(self) -> int:
        return self.lanes * self.vectors

    @property
    def tail_width(self) -> int:
        return self.lanes * self.tail_vectors

    @property
    def floats(self) -> int:
        """Floats of all panels of one batch and column point."""
        return self.points * ((self.count - 1) * self.width + self.tail_width)


@dataclass(frozen=True)
class Plan:
    """Everything that the generator decides before it writes a line."""

    group: Group
    schedule: Schedule
    contraction: Contraction
    panels: Panels
    operand: operand.Operand
    front: Front | None
    epilogue: Epilogue
    lane: str
    persistent: bool
    pixel_extents: tuple[tuple[int, ...], ...]
    acc_strides: dict[str, int]
    acc_floats: int
    out_strides: dict[str, int]
    out_const: int
    quick: Quick | None

    def turned(self, extents: tuple[int, ...], vectors: int) -> bool:
        """Whether tiles of these extents have pixels across vectors, so that stores turn nothing.

        A row that is no multiple of four is computed up to the next one, where sums are so short
        that this costs less than transposing.
        """
        isa, run = self.schedule.isa, extents[-1] if extents else 0
        if self.quick is None or isa not in micro.TURNING or self.panels.size % micro.BLOCK:
            return False
        if self.contraction.pixels[-1] != self.lane or self.operand.strides.get(self.lane) != 1:
            return False
        if run % micro.BLOCK == 0:
            return True
        whole = _blocks(run)
        alone = math.prod(extents) == run and not self.persistent and bool(self.schedule.pack)
        fits = micro.registers_needed(whole, vectors) <= ISAS[isa].registers
        return alone and fits and self.panels.points * (whole - run) < TURN_CYCLES * whole / 2

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions that are called before or behind the sums."""
        before = self.front.functions if self.front else ()
        return tuple(dict.fromkeys((*before, *self.epilogue.functions)))

    @property
    def moving(self) -> bool:
        """Whether panels are packed in every call."""
        return self.group.tensor(self.contraction.b.tensor).role != 'constant'

    @property
    def panel_floats(self) -> int:
        """Floats of all panels."""
        sizes = self.group.main.sizes
        return math.prod(sizes[d] for d in self.loose) * self.panels.floats

    @property
    def loose(self) -> tuple[str, ...]:
        """Dimensions that choose a run of panels: batch and further columns."""
        return (*self.contraction.batch, *self.contraction.columns)


TURN_CYCLES = 6  # to transpose a block of 4 x 4, beside storing it


def _blocks(pixels: int) -> int:
    """Pixels rounded up to whole blocks."""
    return -(-pixels // micro.BLOCK) * micro.BLOCK


def check(group: Group, schedule: Schedule) -> Contraction:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    candidates = vector_candidates(group, moving=True)
    if schedule.vector not in candidates:
        raise ScheduleError(
            f'{group.label}: vector dimension {schedule.vector!r} is not one of {candidates}; '
            f'use the general schema'
        )
    if len(schedule.levels) < 2:
        raise ScheduleError(
            f'{group.label}: the schedule has only the level reg; the outer schema needs a cache '
            f'level around it'
        )
    if schedule.pack == schedule.reg.name:
        raise ScheduleError(
            f"{group.label}: pack='reg' would copy inside the micro-kernel; pack at a cache level"
        )
    contraction = contract(group, schedule.vector)
    stage, reg, lanes = group.main, schedule.reg.tile, ISAS[schedule.isa].lanes
    if set(reg) != set(stage.sizes):
        raise ScheduleError(f'{group.label}: the schedule tiles {sorted(reg)}, not {stage.sizes}')
    if reg[schedule.vector] % lanes:
        raise ScheduleError(
            f'{group.label}: register tile {schedule.vector}={reg[schedule.vector]} is not a '
            f'multiple of the {lanes} lanes of {schedule.isa}'
        )
    wide = [
        d for d in stage.sizes if reg[d] > 1 and d not in (*contraction.pixels, schedule.vector)
    ]
    if wide:
        raise ScheduleError(f'{group.label}: only pixel dimensions have register tiles, not {wide}')
    tail = len(stage.reduction)
    if tail and set(schedule.reg.order[-tail:]) != set(stage.reduction):
        raise ScheduleError(f'{group.label}: reductions must be innermost in the register band')
    for level in schedule.levels[1:]:
        tile = level.tile
        width, size = reg[schedule.vector], stage.sizes[schedule.vector]
        if tile[schedule.vector] % width and tile[schedule.vector] < size:
            raise ScheduleError(
                f'{group.label}: tile {schedule.vector}={tile[schedule.vector]} of {level.name} '
                f'is neither a multiple of the register tile {width} nor the whole {size}'
            )
        cut = [d for d in contraction.unrolled if tile[d] < stage.sizes[d]]
        if cut:
            raise ScheduleError(f'{group.label}: {level.name} cuts {cut}, which are unrolled')
    bad = [d for d, _ in schedule.parallel if d not in stage.parallel]
    if bad:
        raise ScheduleError(f'{group.label}: {bad} cannot be cut between threads')
    if not schedule.pack and operand.reads_outside(group, contraction):
        raise ScheduleError(f'{group.label} reads outside its input: it must pack it')
    if not schedule.pack and group.stages[0] is not group.main:
        raise ScheduleError(f'{group.label} changes its input first: it must pack it')
    return contraction


def plan(group: Group, schedule: Schedule) -> Plan:
    """[Group, Schedule] -> [Plan]"""
    contraction = check(group, schedule)
    stage, reg = group.main, schedule.reg.tile
    lanes = ISAS[schedule.isa].lanes
    panels = Panels.of(contraction, lanes, reg[schedule.vector] // lanes)
    lane = operand.lane_of(contraction, schedule)
    part = part_extents(stage, schedule)
    if schedule.pack:
        source = operand.buffer_of(contraction, schedule, part)
    else:
        source = operand.in_place(group, contraction)
    sets = tile_sets(stage, schedule)
    pixel_extents = tuple(itertools.product(*(sorted(sets[d]) for d in contraction.pixels)))
    tiled = [
        d
        for d in stage.reduction
        if d not in contraction.unrolled and schedule.levels[1].tile[d] < stage.sizes[d]
    ]
    persistent = bool(tiled)
    acc_strides, acc_floats = _accumulators(contraction, panels, part, reg, persistent, lane)
    out_strides, out_const = access_strides(group, stage.write)
    return Plan(
        group, schedule, contraction, panels, source, plan_front(group), typed_epilogue(group),
        lane, persistent, pixel_extents, acc_strides, acc_floats, out_strides, out_const,
        straight(group, schedule.vector, lane, out_strides),
    )  # fmt: skip


def _accumulators(
    contraction: Contraction, panels: Panels, part: dict[str, int], reg: dict[str, int],
    keep: bool, lane: str,
) -> tuple[dict[str, int], int]:  # fmt: skip
    """Strides and size of the accumulators: one register tile, or the whole part of a thread.

    Stores transpose four pixels of `lane` at a time and so look up to three behind the last one.
    """
    if keep:
        extents = {d: part[d] for d in contraction.stage.parallel if d != contraction.vector}
        step = -(-part[contraction.vector] // panels.lanes) * panels.lanes
    else:
        extents, step = {d: reg[d] for d in contraction.pixels}, panels.width
    strides: dict[str, int] = {}
    for name in reversed(extents):
        strides[name] = step
        step *= extents[name]
    return strides, step + 3 * strides.get(lane, 0)


def generate(group: Group, schedule: Schedule) -> str:
    """[Group, Schedule] -> [C source]"""
    p = plan(group, schedule)
    writer = Writer()
    abi.write_head(writer, group, schedule)
    write_epilogue(writer, p.functions)
    if schedule.pack:
        operand.write_pack(writer, p.operand, group.tensor(p.contraction.a.tensor), p.front)
    for vectors in sorted({p.panels.vectors, p.panels.tail_vectors}):
        for extents in p.pixel_extents:
            writer.lines += micro.emit(_micro(p, extents, vectors)).splitlines()
            writer.line()
    write_store(writer, p)
    if p.moving:
        _write_panels(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _micro(p: Plan, extents: tuple[int, ...], vectors: int) -> micro.MicroKernel:
    turned = p.turned(extents, vectors)
    computed = (*extents[:-1], _blocks(extents[-1])) if turned else extents
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
    )


def _write_packing(writer: Writer, p: Plan) -> None:
    """tw_pack: weights into panels, other constants behind them."""
    c, panels, sizes = p.contraction, p.panels, p.group.main.sizes
    strides, const = access_strides(p.group, c.b)
    constants = p.group.with_role('constant')
    sources = {t.name: f'constants[{i}]' for i, t in enumerate(constants)}
    extra = [t for t in constants if t.name != c.b.tensor]
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    if p.moving:
        _copy_constants(writer, p, extra, sources)
        return
    writer.line(f'const float *b = {sources[c.b.tensor]};')
    writer.line('float *to = packed;')
    for name in p.loose:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.open(f'for (long panel = 0; panel < {panels.count}; panel++)')
    writer.line(
        f'const long width = panel + 1 < {panels.count} ? {panels.width} : {panels.tail_width};'
    )
    for name in c.reduction:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.open('for (long lane = 0; lane < width; lane++)')
    writer.line(f'const long {c.vector} = panel * {panels.width} + lane;')
    address = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    writer.line(f'*to++ = {c.vector} < {panels.size} ? b[{address}] : 0.0f;')
    writer.close(1 + len(c.reduction) + 1 + len(p.loose))
    _copy_constants(writer, p, extra, sources)


def _copy_constants(writer: Writer, p: Plan, extra: list[Tensor], sources: dict[str, str]) -> None:
    """The rest of tw_pack: constants that are not panels, behind them."""
    offset = 0 if p.moving else abi.aligned(p.panel_floats)
    if p.moving and not extra:
        writer.line('(void)constants, (void)packed;')
    for tensor in extra:
        writer.line(
            f'memcpy(packed + {offset}, {sources[tensor.name]}, {tensor.size} * sizeof(float));'
        )
        offset += abi.aligned(tensor.size)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, _scratch_floats(p), offset)


def _write_panels(writer: Writer, p: Plan) -> None:
    """A C function that packs panels in every call: columns `from` to `end`, ranges of the rest.

    The longest reduction runs inside where its neighbours lie side by side, else the lanes do.
    """
    c, panels, sizes = p.contraction, p.panels, p.group.main.sizes
    strides, const = access_strides(p.group, c.b)
    ranges = ''.join(f', long {d}_from, long {d}_end' for d in p.loose)
    writer.open(
        f'static void pack_panels(const float *restrict b, float *restrict panels, long from, '
        f'long end{ranges})'
    )
    loose = '0'
    for name in p.loose:
        writer.open(f'for (long {name} = {name}_from; {name} < {name}_end; {name}++)')
        loose = name if loose == '0' else f'({loose} * {sizes[name]} + {name})'
    width, last = panels.width, panels.count - 1
    writer.open(f'for (long panel = from / {width}; panel * {width} < end; panel++)')
    writer.line(f'const long width = panel < {last} ? {width} : {panels.tail_width};')
    writer.line(f'const long lanes = min_long(width, {panels.size} - panel * {width});')
    start = total([scaled(loose, panels.floats), f'panel * {width * panels.points}'])
    writer.line(f'float *to = panels + {start};')
    address = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    step = '0'
    for name in c.reduction:
        step = name if step == '0' else f'({step} * {sizes[name]} + {name})'
    inside = c.loop if c.loop and strides.get(c.loop) == 1 else ''
    for name in c.reduction:
        if name != inside:
            writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    for low, high, value in (('0', 'lanes', f'b[{address}]'), ('lanes', 'width', '0.0f')):
        writer.open(f'for (long lane = {low}; lane < {high}; lane++)')
        if value != '0.0f':
            writer.line(f'const long {c.vector} = panel * {width} + lane;')
        if inside:
            writer.open(f'for (long {inside} = 0; {inside} < {sizes[inside]}; {inside}++)')
        writer.line(f'to[{step} * width + lane] = {value};')
        writer.close(2 if inside else 1)
    writer.close(len(c.reduction) - bool(inside) + 1 + len(p.loose) + 1)
    writer.line()


def constant_offsets(p: Plan) -> dict[str, int]:
    """Where each constant that is not the packed operand lies behind the panels, in floats."""
    offset = 0 if p.moving else abi.aligned(p.panel_floats)
    places = {}
    for tensor in p.group.with_role('constant'):
        if tensor.name != p.contraction.b.tensor:
            places[tensor.name] = offset
            offset += abi.aligned(tensor.size)
    return places


def _scratch_floats(p: Plan) -> int:
    own = abi.aligned(p.operand.size + 16) + abi.aligned(p.acc_floats)
    return own + (abi.aligned(p.panel_floats) if p.moving else 0)


def _write_part(writer: Writer, p: Plan) -> None:
    c, schedule, stage = p.contraction, p.schedule, p.group.main
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    places = constant_offsets(p)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    source = p.front.source if p.front else c.a.tensor
    writer.line(f'const float *source = {pointer(source)};')
    writer.line('float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *accumulators = buffer + {abi.aligned(p.operand.size + 16)};')
    for item in p.epilogue.operands:
        writer.line(f'const float *{item.name} = {pointer(item.tensor)};')
    nest = Nest(stage, schedule, writer)
    nest.open_parts()
    if p.moving:
        writer.line(f'float *panels = accumulators + {abi.aligned(p.acc_floats)};')
        ranges = ', '.join(text for d in (c.vector, *p.loose) for text in nest.at(d))
        writer.line(f'pack_panels({pointer(c.b.tensor)}, panels, {ranges});')
    origin = _open_bands(writer, p, nest)
    reg = schedule.reg
    for name in reg.order:
        if name in stage.parallel:
            nest.open_loop(reg, name)
    _write_tile(writer, p, nest, origin)
    nest.close()
    writer.close()


def _open_bands(writer: Writer, p: Plan, nest: Nest) -> dict[str, str]:
    """Open every cache band; pack behind the last loop that moves the operand's tile."""
    c, schedule = p.contraction, p.schedule
    names = [level.name for level in schedule.levels]
    first = names.index(schedule.pack) if schedule.pack else 0
    probe = Nest(p.group.main, schedule, Writer())
    probe.open_parts()
    moving = 0
    for index in range(len(schedule.levels) - 1, max(first, 1) - 1, -1):
        level = schedule.levels[index]
        for name in probe.loops(level):
            probe.open_loop(level, name)
            if name in c.a.names:
                moving = probe.opened
    origin: dict[str, str] = {}

    def pack_here() -> None:
        origin.update(nest.starts())
        if schedule.pack:
            _write_pack_call(writer, p, nest)

    if moving == 0:
        pack_here()
    for index in range(len(schedule.levels) - 1, 0, -1):
        level = schedule.levels[index]
        for name in nest.loops(level):
            nest.open_loop(level, name)
            if nest.opened == moving:
                pack_here()
    return origin


def _write_pack_call(writer: Writer, p: Plan, nest: Nest) -> None:
    firsts, extents = [], []
    for expression in p.contraction.a.index:
        firsts.append(
            total([*(scaled(nest.start(n), k) for n, k in expression.terms), str(expression.const)])
        )
        spans = [scaled(f'({nest.at(n)[1]} - {nest.at(n)[0]} - 1)', k) for n, k in expression.terms]
        extents.append(total([*spans, '1']))
    writer.line(f'const long from[] = {{{", ".join(firsts)}}};')
    writer.line(f'const long extent[] = {{{", ".join(extents)}}};')
    places = constant_offsets(p)
    numbers = ''.join(
        f', args->packed + {places[n.tensor]}' for n in (p.front.numbers if p.front else ())
    )
    writer.line(f'pack_tile(source, buffer, from, extent{numbers});')


def _write_tile(writer: Writer, p: Plan, nest: Nest, origin: dict[str, str]) -> None:
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
    base = 'panels' if p.moving else 'args->packed'
    writer.line(f'const float *weights = {base} + {panel};')
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
    if p.persistent:
        place = [
            scaled(f'({at(d)} - {nest_part(p, d)})', p.acc_strides[d])
            for d in stage.parallel
            if d != v
        ]
        place.append(f'({at(v)} - {nest_part(p, v)})')
        writer.line(f'float *acc = accumulators + {total(place)};')
    else:
        writer.line('float *acc = accumulators;')
    _write_store_fetch(writer, p, nest)
    _write_calls(writer, p, nest, width)
    _write_store_call(writer, p, nest)


def nest_part(p: Plan, name: str) -> str:
    """The C name of the first index of a dimension that this thread owns."""
    return f'{name}_part' if dict(p.schedule.parallel).get(name, 1) > 1 else '0'


def _write_calls(writer: Writer, p: Plan, nest: Nest, width: str) -> None:
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
    arguments = f'tile + {shift}, weights + ({linear}) * {steps} * {width}, acc, {count}, {again}'
    _dispatch(
        writer,
        p,
        nest,
        lambda extents, vectors: (
            f'{micro.micro_name(p.schedule.isa, extents, vectors)}({arguments});'
        ),
    )
    if c.outer:
        writer.close(len(c.outer))


def _dispatch(writer: Writer, p: Plan, nest: Nest, call) -> None:
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


def _complete(p: Plan, nest: Nest) -> str:
    """A C condition: the sums of this tile are complete behind this call; '' where always."""
    c, sizes = p.contraction, p.group.main.sizes
    return ' && '.join(
        f'{nest.at(d)[1]} == {sizes[d]}'
        for d in (*c.outer, c.loop)
        if d and nest.at(d)[1] != str(sizes[d])
    )


def _write_store_fetch(writer: Writer, p: Plan, nest: Nest) -> None:
    """Ask for the lines of the result before the sums are made, so that stores find them."""
    done = _complete(p, nest)
    if done:
        writer.line(f'if ({done})')
    operands = ''.join(f', {item.name} + {_operand_place(p, nest, item)}' for item in fetched(p))
    place = f'args->out + {_result_place(p, nest)}'
    writer.line(f'{"    " if done else ""}fetch_result({place}{operands});')


def _result_place(p: Plan, nest: Nest) -> str:
    shifts = (scaled(nest.start(d), p.out_strides.get(d, 0)) for d in p.group.main.parallel)
    return total([*shifts, str(p.out_const)])


def _operand_place(p: Plan, nest: Nest, item: EpilogueOperand) -> str:
    shifts = (scaled(nest.start(d), item.stride(d)) for d in p.group.main.parallel)
    return total([*shifts, str(item.const)])


def _write_store_call(writer: Writer, p: Plan, nest: Nest) -> None:
    c = p.contraction
    at = nest.at
    done = _complete(p, nest)
    if done:
        writer.open(f'if ({done})')
    place = _result_place(p, nest)
    operands = [f', {item.name} + {_operand_place(p, nest, item)}' for item in p.epilogue.operands]
    lanes = f'min_long({p.panels.width}, {p.panels.size} - {at(c.vector)[0]})'
    arguments = f'acc, args->out + {place}, {lanes}{"".join(operands)}'
    _dispatch(
        writer,
        p,
        nest,
        lambda extents, vectors: f'store_p{"x".join(map(str, extents))}_v{vectors}({arguments});',
    )
    if done:
        writer.close()
