"""The general schema: plain tiled loops in C for any stage, any expression, any combiner.

Goes in: a group and a schedule with schema 'general'. Comes out: a C translation unit with the ABI
of codegen/cpu/abi.py. Partial results live in the output itself; the first tile of a reduction
initialises them, the last one applies the epilogue. The innermost loop runs along the dimension
that is contiguous in the output; its range is clipped so that it never leaves a tensor.
"""

from __future__ import annotations

from tilewright.codegen.cpu import abi
from tilewright.codegen.cpu.nest import Nest
from tilewright.codegen.cpu.pointwise import access_strides, c_expr, c_float, plan_epilogue
from tilewright.codegen.cpu.writer import Writer, scaled, total
from tilewright.errors import ScheduleError
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Stage, read
from tilewright.schedule.schedule import Schedule

HELPERS = """\
/* Smallest whole number that is at least a / b, for b > 0 and any a. */
static inline long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
"""
_IDENTITY = {'sum': '0.0f', 'max': '-INFINITY'}
_COMBINE = {'sum': '{0} + {1}', 'max': 'fmaxf({0}, {1})'}


def check(group: Group, schedule: Schedule) -> None:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    stage = group.main
    if set(schedule.reg.tile) != set(stage.sizes):
        raise ScheduleError(f'{group.label}: the schedule does not tile {sorted(stage.sizes)}')
    bad = [d for d, _ in schedule.parallel if d not in stage.parallel]
    if bad:
        raise ScheduleError(f'{group.label}: {bad} cannot be cut between threads')


def generate(group: Group, schedule: Schedule) -> str:
    """[Group, Schedule] -> [C source]"""
    check(group, schedule)
    writer = Writer()
    abi.write_head(writer, group, schedule)
    writer.lines += HELPERS.splitlines()
    writer.line()
    places = _write_packing(writer, group, schedule)
    _write_part(writer, group, schedule, places)
    return writer.text()


def _write_packing(writer: Writer, group: Group, schedule: Schedule) -> dict[str, int]:
    """Constants are only copied; returns where each lies."""
    places, offset = {}, 0
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    for number, tensor in enumerate(group.with_role('constant')):
        places[tensor.name] = offset
        writer.line(
            f'memcpy(packed + {offset}, constants[{number}], {tensor.size} * sizeof(float));'
        )
        offset += abi.aligned(tensor.size)
    if not places:
        writer.line('(void)constants, (void)packed;')
    writer.close()
    writer.line()
    abi.write_sizes(writer, schedule.threads, 0, offset)
    return places


def _write_part(writer: Writer, group: Group, schedule: Schedule, places: dict[str, int]) -> None:
    stage, epilogue = group.main, plan_epilogue(group)
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    writer.line('float *restrict out = args->out;')
    for number, access in enumerate(stage.reads):
        writer.line(f'const float *restrict t{number} = {pointer(access.tensor)};')
    for item in epilogue.operands:
        writer.line(f'const float *restrict {item.name} = {pointer(item.tensor)};')
    nest = Nest(stage, schedule, writer)
    nest.open_parts()
    for level in reversed(schedule.levels):
        for name in nest.loops(level):
            nest.open_loop(level, name)
    out_strides, out_const = access_strides(group, stage.write)
    lane = min(stage.parallel, key=lambda d: (out_strides[d], -stage.sizes[d]))
    place = total([*(scaled(d, out_strides[d]) for d in stage.parallel), str(out_const)])
    if stage.combiner:
        _write_initial(writer, stage, nest, place, lane)
    _write_body(writer, group, nest, place, lane)
    if epilogue.expression != 'value':
        writer.open(f'if ({_at_end(stage, nest)})')
        _open_loops(writer, nest, stage.parallel, lane)
        for item in epilogue.operands:
            index = total([*(scaled(d, s) for d, s in item.strides), str(item.const)])
            writer.line(f'const long {item.name}_at = {index};')
        writer.line(f'const float value = out[{place}];')
        writer.line(f'out[{place}] = {epilogue.expression};')
        writer.close(len(stage.parallel) + 1)
    nest.close()
    writer.close()


def _open_loops(writer: Writer, nest: Nest, names: tuple[str, ...], lane: str) -> None:
    for name in [*(d for d in names if d != lane), lane]:
        low, high = nest.at(name)
        writer.open(f'for (long {name} = {low}; {name} < {high}; {name}++)')


def _at_start(stage: Stage, nest: Nest) -> str:
    tests = [f'{nest.at(d)[0]} == 0' for d in stage.reduction if nest.at(d)[0] != '0']
    return ' && '.join(tests) or '1'


def _at_end(stage: Stage, nest: Nest) -> str:
    ends = {d: str(stage.sizes[d]) for d in stage.reduction}
    tests = [f'{nest.at(d)[1]} == {ends[d]}' for d in ends if nest.at(d)[1] != ends[d]]
    return ' && '.join(tests) or '1'


def _write_initial(writer: Writer, stage: Stage, nest: Nest, place: str, lane: str) -> None:
    assert stage.combiner is not None
    writer.open(f'if ({_at_start(stage, nest)})')
    _open_loops(writer, nest, stage.parallel, lane)
    writer.line(f'out[{place}] = {_IDENTITY[stage.combiner]};')
    writer.close(len(stage.parallel) + 1)


def _padding_is_neutral(stage: Stage) -> bool:
    """Whether a point that reads padding contributes nothing, so that it can be skipped."""
    if stage.is_product_sum:
        return stage.pad_value == 0
    if stage.expr == read(0):
        neutral = {'sum': 0.0, 'max': float('-inf')}
        return stage.combiner is not None and neutral[stage.combiner] == stage.pad_value
    return False


def _leaves(expression: Affine, extent: int, stage: Stage) -> bool:
    return expression.const < 0 or expression.const + expression.extent(stage.sizes) > extent


def _write_body(writer: Writer, group: Group, nest: Nest, place: str, lane: str) -> None:
    stage = group.main
    outer = [d for d in stage.parallel if d != lane]
    for name in (*outer, *stage.reduction):
        low, high = nest.at(name)
        writer.open(f'for (long {name} = {low}; {name} < {high}; {name}++)')
    low, high = nest.at(lane)
    skip = _padding_is_neutral(stage)
    rows, clips, operands = [], [], []
    for number, access in enumerate(stage.reads):
        tests = []
        for expression, extent in zip(access.index, group.tensor(access.tensor).shape, strict=True):
            if not _leaves(expression, extent, stage):
                continue
            text = total([*(scaled(n, c) for n, c in expression.terms), str(expression.const)])
            test = f'(unsigned long)({text}) < {extent}ul'
            if skip and lane in expression.names:
                clips.append((expression, extent))
            elif skip:
                rows.append(test)
            else:
                tests.append(test)
        operands.append(_element(group, access, f't{number}', tests, stage.pad_value))
    if rows:
        writer.line(f'if (!({" && ".join(rows)}))')
        writer.line('    continue;')
    writer.line(f'long low = {low}, high = {high};')
    for expression, extent in clips:
        factor = expression.coefficient(lane)
        rest = total(
            [
                *(scaled(n, c) for n, c in expression.terms if n != lane),
                str(expression.const),
            ]
        )
        writer.line(f'low = max_long(low, ceil_div(-({rest}), {factor}));')
        writer.line(f'high = min_long(high, ceil_div({extent} - ({rest}), {factor}));')
    writer.open(f'for (long {lane} = low; {lane} < high; {lane}++)')
    value = c_expr(stage.expr, operands)
    if stage.combiner:
        value = _COMBINE[stage.combiner].format(f'out[{place}]', value)
    writer.line(f'out[{place}] = {value};')
    writer.close(1 + len(outer) + len(stage.reduction))


def _element(group: Group, access: Access, name: str, tests: list[str], pad: float) -> str:
    strides, const = access_strides(group, access)
    index = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    element = f'{name}[{index}]'
    return f'({" && ".join(tests)} ? {element} : {c_float(pad)})' if tests else element
