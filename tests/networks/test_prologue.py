"""Element-wise work in front of a convolution: joined, generated, and the same results."""

from __future__ import annotations

import graphs
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse
from tilewright.graph.prologue import put_before
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.isa import ISAS, host_isas
from tilewright.network.compile import prepare
from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.ops.elementwise import elementwise
from tilewright.ops.flatten import flatten
from tilewright.ops.front import has_front, put_in_front, without_front
from tilewright.ops.group import Group
from tilewright.ops.stage import call, const, read
from tilewright.schedule.schedule import Level, Schedule

SCALED = call('max', call('add', call('mul', read(0), read(1)), read(2)), const(0.0))


def free(_) -> float:
    return 0.0


def normalised(shape: tuple[int, ...]) -> Group:
    """max(In0 * In1[c] + In2[c], 0)"""
    channels = (shape[1], 1, 1)
    roles = ['input', 'constant', 'constant']
    return elementwise(SCALED, shape, channels, channels, roles=roles, name='norm')


def fronted(**sizes) -> Group:
    conv = conv2d(**sizes)
    made = put_in_front(normalised(conv.tensor('In').shape), conv, 'In')
    assert made is not None
    return made.group


def schedule_of(group: Group, isa: str, pixels: dict[str, int], parallel=(), pack='l1') -> Schedule:
    stage = flatten(group).main
    reg = dict.fromkeys(stage.sizes, 1) | pixels | {'k': ISAS[isa].lanes}
    whole, order = whole_tile(stage, reg), register_order(stage)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole))
    return Schedule('outer', isa, 'k', levels, parallel, pack)


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('pixels', [5, 8, 13])
def test_kernels_apply_it_while_they_copy(stride, pixels, check):
    group = fronted(c=5, h=3, w=pixels, k=19, r=1, s=1, stride=stride, bias=True, activation='relu')
    tile = {'hw': 4} if stride == 1 else {'w': 3}
    for isa in dict.fromkeys(('portable', host_isas()[0])):
        check(group, schedule_of(group, isa, tile, (('k', 2),)))


@pytest.mark.parametrize('strip', [1, 2, 3, 6, 7])
def test_strips_of_any_length_are_computed_in_vectors(strip, check):
    """A last vector that leaves elements out, and a function that goes lane by lane."""
    conv = conv2d(c=5, h=3, w=9, k=19, r=1, s=1)
    image = conv.tensor('In').shape
    smooth = call('tanh', call('max', call('mul', read(0), read(1)), const(-0.5)))
    before = elementwise(smooth, image, (5, 1, 1), roles=['input', 'constant'], name='smooth')
    made = put_in_front(before, conv, 'In')
    assert made is not None
    for isa in dict.fromkeys(('portable', host_isas()[0])):
        schedule = schedule_of(made.group, isa, {'hw': strip})
        assert ('front_strip' in generate(made.group, schedule)) == (strip > 1)
        check(made.group, schedule)


def test_the_schedule_is_that_of_the_products_alone():
    group = fronted(c=4, h=5, w=5, k=8, r=1, s=1, bias=True)
    alone = conv2d(c=4, h=5, w=5, k=8, r=1, s=1)
    assert core(group).digest == core(alone).digest
    assert without_front(alone) is alone
    assert flatten(group).main.sizes == flatten(alone).main.sizes


def test_what_cannot_be_in_front():
    conv = conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1)
    assert put_in_front(normalised((1, 4, 6, 6)), conv, 'In') is None  # a window
    conv = conv2d(c=4, h=6, w=6, k=4, r=1, s=1)
    by_pixel = elementwise('mul', (1, 4, 6, 6), (6, 6), roles=['input', 'constant'])
    assert put_in_front(by_pixel, conv, 'In') is None  # a number that changes along rows
    two = elementwise('add', (1, 4, 6, 6), (1, 4, 6, 6))
    assert put_in_front(two, conv, 'In') is None  # two images
    assert not has_front(conv)


def test_kernels_that_do_not_copy_refuse():
    group = fronted(c=4, h=5, w=5, k=8, r=1, s=1)
    with pytest.raises(ScheduleError, match='must pack'):
        generate(group, schedule_of(group, 'portable', {'hw': 4}, pack=''))


def pre_activation(batch: int = 1, image: int = 5, channels: int = 8):
    nodes = [
        graphs.node('BatchNormalization', 'x s m u v', 'n', epsilon=1e-3),
        graphs.node('Relu', 'n', 'r'),
        graphs.node('Conv', 'r w', 'c'),
        graphs.node('Relu', 'c', 'y'),
    ]
    return graphs.graph(
        {'x': (batch, 6, image, image)}, 'y', nodes, w=graphs.floats(channels, 6, 1, 1),
        s=graphs.floats(6, seed=3), m=graphs.floats(6, seed=4), u=graphs.floats(6, seed=5),
        v=np.abs(graphs.floats(6, seed=6)) + 0.5,
    )  # fmt: skip


def test_normalisation_and_activation_join_the_convolution_behind_them():
    program = fuse(graphs.lowered(pre_activation()), free)
    assert len(program.tasks) == 2
    joined = put_before(program, free)
    (task,) = joined.tasks
    assert has_front(task.group)
    assert task.origin == ('BatchNormalization_n', 'Relu_r', 'Conv_c', 'Relu_y')
    inputs = graphs.inputs_of(program)
    want = evaluate(program, inputs)['y']
    np.testing.assert_allclose(evaluate(joined, inputs)['y'], want, rtol=1e-5, atol=1e-5)


def test_nothing_is_joined_where_it_costs_more_or_is_read_elsewhere():
    program = fuse(graphs.lowered(pre_activation()), free)

    def dear(group: Group) -> float:
        return float(len(group.stages) ** 2)

    assert put_before(program, dear).tasks == program.tasks
    nodes = [
        graphs.node('Relu', 'x', 'r'),
        graphs.node('Conv', 'r w', 'c'),
        graphs.node('Add', 'c r', 'y'),
    ]
    made = graphs.graph({'x': (1, 4, 5, 5)}, 'y', nodes, w=graphs.floats(4, 4, 1, 1))
    program = graphs.lowered(made)
    assert put_before(program, free).tasks == program.tasks


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.filterwarnings('ignore:.*nominal figures')
def test_a_network_with_it(batch):
    made = pre_activation(batch, image=12, channels=32)  # large enough for kernels with registers
    x = graphs.floats(batch, 6, 12, 12, seed=9)
    network = tw.compile(made)
    (kernel,) = network.kernels.values()
    assert SCHEMAS[kernel.schedule.schema].front
    want = evaluate(prepare(made, passes=()), {'x': x})['y']
    np.testing.assert_allclose(network(x), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_the_general_schema_computes_it_part_by_part(check):
    group = fronted(c=3, h=4, w=5, k=6, r=1, s=1)
    check(group, general_schedule(group, 'portable', 1, 1))
