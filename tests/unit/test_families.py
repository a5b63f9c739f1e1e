"""Ranges, families of programs and sources of many sizes, without a compiler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.cli.compile import read_shapes
from tilewright.errors import ArrayError, InputError, ModelError
from tilewright.graph.family import families
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import lower
from tilewright.graph.program import Program
from tilewright.graph.ranges import Ranges, find_ranges, spread
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.nest import EVERY
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.outer.space import assemble
from tilewright.kernels.cpu.sized import SizedSource, read_source
from tilewright.ops.matmul import matmul


def test_a_range_is_read_as_the_command_line_writes_it():
    shapes = read_shapes(['x=1:8,3,64:640:32'])
    assert shapes == {'x': (range(1, 9), 3, range(64, 641, 32))}
    ranges = find_ranges(shapes)
    assert ranges is not None
    assert str(ranges) == 'x[1:8,3,64:640:32]'
    assert Ranges.from_json(ranges.to_json()) == ranges
    with pytest.raises(InputError, match='cannot be read'):
        read_shapes(['x=1:2:3:4'])


def test_equal_ranges_of_two_inputs_are_one_size():
    words = range(1, 9)
    ranges = find_ranges({'ids': (1, words), 'mask': (1, words), 'x': (words, words)})
    assert ranges is not None
    assert ranges.box == (words, words)
    shapes = {'ids': (1, 4), 'mask': (1, 4), 'x': (4, 7)}
    assert ranges.point_of('net', shapes) == (4, 7)
    assert ranges.at((4, 7)) == shapes
    with pytest.raises(ArrayError, match='vary together'):
        ranges.point_of('net', shapes | {'mask': (1, 5)})


@pytest.mark.parametrize(
    ('box', 'most'), [((range(1, 513),), 10), ((range(1, 5), range(1, 10)), 9)]
)
def test_some_points_of_a_box_hold_its_ends(box, most):
    some = spread(box, most)
    assert len(some) <= most + 1
    assert tuple(s[0] for s in box) in some
    assert tuple(s[-1] for s in box) in some


def convolved(n: int, h: int, w: int) -> Program:
    """A convolution with stride 2, and the mean of what comes out."""
    nodes = (
        Node('Conv', 'conv', ('x', 'k'), ('c',), {'strides': (2, 2), 'pads': (1, 1, 1, 1)}),
        Node('GlobalAveragePool', 'mean', ('c',), ('y',), {}),
    )
    kernel = np.ones((4, 3, 3, 3), np.float32)
    inputs = (Value('x', (n, 3, h, w)),)
    return lower(Graph('test', inputs, (('y', 'y'), ('c', 'c')), nodes, {'k': kernel}))


def test_a_family_has_the_programs_of_all_its_points():
    box = (range(1, 5), range(16, 65, 16), range(16, 81, 16))
    (family,) = families(lambda point: convolved(*point), box)
    for point in ((1, 16, 16), (3, 48, 32), (2, 32, 80), (4, 64, 80)):
        right, made = convolved(*point), family.at(point)
        assert made.values == right.values
        assert [t.group for t in made.tasks] == [t.group for t in right.tasks]
    with pytest.raises(ModelError, match='is not a point'):
        family.at((1, 17, 16))


def test_a_few_sizes_are_one_family():
    """Two points do not tell a step from its square, and three are all looked at."""
    for sizes in (range(16, 33, 16), range(16, 49, 16)):
        (family,) = families(lambda point: convolved(1, 16, *point), (sizes,))
        assert family.at((32,)).values == convolved(1, 16, 32).values


def test_sizes_that_no_polynomial_gives_are_refused():
    with pytest.raises(ModelError, match='unevenly; give a narrower range'):
        families(lambda point: convolved(1, 16, *point), (range(16, 200),))


def test_sources_of_two_sizes_become_one_that_knows_both():
    """Numbers that vary are read from the array; each size gets exactly its own back."""
    made = []
    for rows in (7, 20):
        group = matmul(m=rows, n=8, k=3)
        made.append(read_source(generate(group, general_schedule(group, 'portable', 1, 1))))
    assert made[0].form == made[1].form
    sized = SizedSource.of(made)
    assert sized.places
    assert 'tw_n[1]' in sized.source
    assert 'const long *sizes;' in sized.source
    for source in made:
        numbers = sized.numbers(source)
        assert numbers is not None
        assert numbers[0] == source.scratch_bytes
        again = [0] * len(source.numbers)
        for at, number in sized.fixed:
            again[at] = number
        for number, places in zip(numbers[1:], sized.places, strict=True):
            for at in places:
                again[at] = number
        assert tuple(again) == source.numbers
    other = SizedSource.of(made[:1])
    assert other.numbers(made[1]) is None


@pytest.mark.parametrize(
    ('line', 'numbers'),
    [
        ('for (long i_1 = 0; i_1 < 100; i_1++)', (0, 100)),
        ('x2[12] += 3.5f * vec4 + 0x10ul;', (12,)),
        ('const float mean = 16.0f * 0.0025f;', (16, 400)),
        ('"ldr q3, [%[a], #48]\\n\\t" /* */', ()),
        ('#pragma unroll 4', ()),
        ('y = __builtin_shufflevector(*(v *)(a + 7), z, 2, 3, 4, 5) + b[9];', (7, 9)),
        ('p = 64ul * 1e-3f + 100000000.0f;', (64,)),
    ],
)
def test_whole_numbers_of_a_line_are_found_and_others_are_not(line, numbers):
    """A number in a name, a lane or an instruction that became an element would not compile."""
    text = _SOURCE.format(line)
    found = read_source(text)
    assert found.numbers == numbers
    assert found.frame.count('\0') == len(numbers)
    assert SizedSource.of([found]).source.count(line.replace('/* */', '')) == 1


_SOURCE = """/* a head */
long tw_parts(void) {{ return 1; }}
long tw_scratch_bytes(void) {{ return 0; }}
long tw_packed_bytes(void) {{ return 0; }}
void tw_part(const tw_args *args, long part) {{
    {}
}}
"""


def test_every_tail_makes_one_form_of_all_remainders():
    forms: dict[bool, set[str]] = {False: set(), True: set()}
    for every in forms:
        for rows in range(13, 19):
            group = matmul(m=rows, n=32, k=8)
            names = list(group.main.sizes)
            vector = names[1]
            reg = {names[0]: 4, vector: 8, names[2]: 1}
            whole = dict(group.main.sizes) | {vector: 32}
            schedule = assemble(
                group, 'portable', vector, reg, (whole,), (tuple(names),), (), 'l1'
            )  # fmt: skip
            options = ((f'{EVERY}{names[0]}', 1),) if every else ()
            text = generate(group, replace(schedule, options=options))
            forms[every].add(read_source(text).form)
    assert len(forms[True]) == 1 < len(forms[False])
