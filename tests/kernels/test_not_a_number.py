"""NaN of any bits goes through activations behind products, in every schema."""

from __future__ import annotations

import numpy as np
import pytest
from sampling import covering
from special_values import NANS

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.compiler import build
from tilewright.machine.isa import ISAS, best_isa
from tilewright.machine.measure import load_machine
from tilewright.ops.compose import append
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.reference import reference
from tilewright.ops.stage import Expr, call, const, read
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import rank_schema

# What a compiler's optimisations make of NaN is part of what is tested.
pytestmark = pytest.mark.usefixtures('optimised')
CLIP = call('min', call('max', read(0), const(0.0)), const(6.0))
GELU = call(
    'mul',
    call('mul', read(0), const(0.5)),
    call('add', call('erf', call('mul', read(0), const(0.5**0.5))), const(1.0)),
)


@pytest.fixture(scope='module')
def machine():
    return load_machine(measure=False)[0]


EXP = call('exp', call('mul', read(0), const(0.01)))
LEAKY = call('where', call('lt', read(0), const(0.0)), call('mul', read(0), const(0.1)), read(0))
BEHIND = {'clip': CLIP, 'leaky': LEAKY, 'exp': EXP, **ACTIVATIONS}
CONVOLUTIONS = {
    'outer': conv2d(c=5, h=6, w=7, k=9, r=1, s=1, bias=True),
    'winograd': conv2d(c=5, h=12, w=12, k=9, r=3, s=3, pad=1, bias=True),
    'stencil': conv2d(c=4, h=9, w=9, k=4, r=3, s=3, pad=1, groups=4, bias=True),
}
if ISAS[best_isa()].rows_emit:
    CONVOLUTIONS['pixels'] = conv2d(c=5, h=6, w=7, k=9, r=3, s=3, pad=1, bias=True)


def followed(schema: str, expr: Expr) -> Group:
    conv = CONVOLUTIONS[schema]
    joined = append(conv, elementwise(expr, conv.output.shape, name='then'), 'In')
    assert joined is not None
    return joined.group


def chosen(schema: str, group: Group, machine) -> Schedule:
    return rank_schema(SCHEMAS[schema], group, machine, 1, 1, 1e-3)[0].schedule


def run(group: Group, schedule: Schedule, arrays: dict[str, np.ndarray]) -> np.ndarray:
    kernel = Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
    out = np.zeros(group.output.shape, np.float32)
    kernel.run(arrays, kernel.pack(arrays), out)
    return out


@pytest.mark.parametrize(('schema', 'name'), covering(CONVOLUTIONS, BEHIND))
def test_nan_goes_through(schema, name, machine, whole_numbers):
    group = followed(schema, BEHIND[name])
    arrays = whole_numbers(group, 0)
    image = arrays['In'].reshape(-1)
    image[3 : 3 + len(NANS)] = NANS
    image[-1] = NANS[-1]
    with np.errstate(invalid='ignore'):
        want = reference(group, arrays)
    got = run(group, chosen(schema, group, machine), arrays)
    assert np.isnan(want).any()
    assert np.isnan(got[np.isnan(want)]).all()
    sound = ~np.isnan(got)
    assert sound.any()
    np.testing.assert_allclose(got[sound], want[sound], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('expr', [GELU, LEAKY], ids=['gelu', 'leaky'])
@pytest.mark.parametrize('schema', CONVOLUTIONS)
def test_any_function_may_follow(schema, expr, machine, whole_numbers):
    group = followed(schema, expr)
    arrays = whole_numbers(group, 1)
    got = run(group, chosen(schema, group, machine), arrays)
    want = reference(group, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
