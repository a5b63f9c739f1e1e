"""Every function behind every GPU schema, against the reference; NaN goes through a clip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from special_values import NANS

import tilewright as tw
from tilewright.kernels.gpu.generate import generate
from tilewright.machine.gpu import known_gpu
from tilewright.ops.compose import append
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.moving import transpose
from tilewright.ops.reference import reference
from tilewright.ops.stage import FUNCTIONS, Expr, call, cast, const, read
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import is_legal

TILED = {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
BLOCK = {'kb': 8, 'stages': 2, 'split': 1, 'joint': 0, 'bk': 16, 'tk': 16}
PATCH = {'bn': 1, 'bh': 4, 'bw': 4, **BLOCK}
CNNOPT = {'rk': 1, 'ry': 2, 'rx': 4, 'tk': 8, 'ty': 2, 'tx': 2, 'wk': 2, 'wy': 1, 'wx': 1,
          'cb': 2, 'stages': 2}  # fmt: skip
SCHEDULES = {
    'depthwise': GpuSchedule.of('depthwise', th=2, tw=4, bh=2, bw=2, bp=4, shared=1),
    'general': GpuSchedule.of('general', threads=64),
    'patch': GpuSchedule.of('patch', 'mma_tf32x3', **PATCH, tp=16),
    'patch/wgmma': GpuSchedule.of('patch', 'wgmma_tf32x3', **PATCH, tp=64),
    'patch/mixed': GpuSchedule.of('patch', 'wgmma_tf32_bf16', **PATCH, tp=64),
    'rs': GpuSchedule.of('rs', **CNNOPT, split=1, join=2),
    'rs/atomics': GpuSchedule.of('rs', **CNNOPT, split=2, join=0),
    's/second pass': GpuSchedule.of('s', **CNNOPT, split=2, join=1),
    'strip': GpuSchedule.of('strip', 'mma_tf32x3', bp=32, **BLOCK, tp=16),
    'tiled': GpuSchedule.of('tiled', **TILED),
    'tiled/mma': GpuSchedule.of('tiled', 'mma_tf32x3', **(TILED | {'tk': 16, 'tp': 16})),
    'transposed': GpuSchedule.of('transposed', side=8, rows=4),
    'winograd': GpuSchedule.of('winograd', m=2, **TILED),
}
# NVRTC takes seconds for all functions, and test_gpu_coverage.py compiles every schema.
FEW = ('general', 'transposed', 'winograd')
VALUE, OTHER = read(0), read(1)
# Between 0 and 1, where all functions are defined, and none is steep.
SHARE = call(
    'add',
    call('mul', call('sigmoid', call('mul', VALUE, const(0.1))), const(0.8)),
    const(0.1),
)
ABOVE = call('add', SHARE, const(1.0))
WHOLE = cast(call('mul', VALUE, const(3.0)), 'i32')


def added(*terms: Expr) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = call('add', total, term)
    return total


SMOOTH = added(
    *(call(name, SHARE) for name in ('exp', 'expm1', 'tanh', 'sqrt', 'log', 'log1p', 'erf', 'sin')),
    *(call(name, SHARE) for name in ('cos', 'tan', 'asin', 'acos', 'atan', 'sinh', 'cosh')),
    *(call(name, SHARE) for name in ('asinh', 'atanh', 'neg', 'abs')),
    call('acosh', ABOVE), call('pow', ABOVE, SHARE), call('pow', SHARE, const(1.5)),
    call('div', SHARE, ABOVE), call('sub', VALUE, SHARE),
)  # fmt: skip
STEPS = added(
    *(call(name, call('mul', VALUE, const(2.0))) for name in ('floor', 'ceil', 'round', 'sign')),
    call('max', VALUE, OTHER), call('min', VALUE, OTHER), call('mod', VALUE, OTHER),
    call('fmod', VALUE, OTHER), call('max', VALUE, const(-0.5)), call('min', VALUE, const(0.5)),
)  # fmt: skip
LESS, MORE = call('lt', VALUE, OTHER), call('gt', VALUE, const(0.25))
TRUTHS = added(
    *(
        call('where', test, VALUE, const(float(number)))
        for number, test in enumerate(
            (
                LESS, call('le', VALUE, OTHER), MORE, call('ge', VALUE, OTHER),
                call('eq', VALUE, VALUE), call('and', LESS, MORE), call('or', LESS, MORE),
                call('xor', LESS, MORE), call('not', LESS), call('isnan', VALUE),
                call('isinf', call('div', VALUE, const(0.0))),
            )
        )
    )
)  # fmt: skip
BITS = cast(
    added(
        *(call(name, WHOLE, cast(OTHER, 'i32')) for name in ('bit_and', 'bit_or', 'bit_xor')),
        call('bit_not', WHOLE), call('shl', WHOLE, cast(const(2.0), 'i32')),
        call('shr', WHOLE, cast(const(1.0), 'i32')), call('mod', WHOLE, cast(const(3.0), 'i32')),
    ),
    'f32',
)  # fmt: skip
ALL = added(SMOOTH, STEPS, TRUTHS, BITS)


def problem(name: str) -> Group:
    if name == 'transposed':
        return transpose((3, 9, 10), (0, 2, 1))
    if name == 'depthwise':
        return tw.conv2d(c=5, h=7, w=8, k=5, r=3, s=3, groups=5, pad=1, bias=True)
    return tw.conv2d(c=8, h=7, w=8, k=18, r=3, s=3, pad=1, bias=True)


def followed(name: str, expr: Expr) -> Group:
    """The problem of a schema with an expression behind it, on its result and another tensor."""
    group = problem(name)
    shape = group.output.shape
    shapes = [shape] * (1 + max(expr.reads()))
    joined = append(group, elementwise(expr, *shapes, name='then'), 'In0' if shapes[1:] else 'In')
    assert joined is not None
    return joined.group


def answers(group: Group, schedule: GpuSchedule, on: Device, arrays: dict) -> np.ndarray:
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, schedule), on, constants) as runner:
        return runner(**{t.name: arrays[t.name] for t in group.with_role('input')})


def test_every_function_is_here() -> None:
    assert set(ALL.functions()) == set(FUNCTIONS)


@pytest.mark.parametrize(
    ('name', 'on'), [*((name, 'host') for name in SCHEDULES), ('tiled', 'opencl')]
)
def test_every_function_behind_every_schema(name: str, on: str) -> None:
    group = followed(name, ALL)
    arrays = random_arrays(group, 1)
    got = answers(group, SCHEDULES[name], device(on), arrays)
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize('name', SCHEDULES)
def test_nan_goes_through_a_clip(name: str) -> None:
    clip = call('min', call('max', VALUE, const(0.0)), const(6.0))
    group = followed(name, clip)
    arrays = random_arrays(group, 7)
    first = group.with_role('input')[0].name
    arrays[first].reshape(-1)[[*range(3, 3 + len(NANS)), -1]] = [*NANS, NANS[-1]]
    nan_comes_out(name, group, arrays)


@pytest.mark.parametrize('name', [name for name in SCHEDULES if name != 'transposed'])
@pytest.mark.parametrize('pattern', [NANS[2], NANS[5]], ids=['signalling', 'all bits'])
def test_nan_comes_out_of_weights(name: str, pattern: np.float32) -> None:
    """They are packed ahead, by some schemas in parts of fewer bits."""
    group = problem(name)
    arrays = random_arrays(group, 7)
    arrays['Ker'][2, ..., 1, 1] = pattern  # a tap that never is on the padding
    nan_comes_out(name, group, arrays)


def nan_comes_out(name: str, group: Group, arrays: dict) -> None:
    with np.errstate(invalid='ignore'):
        want = reference(group, arrays)
    got = answers(group, SCHEDULES[name], device('host'), arrays)
    assert np.isnan(want).any()
    assert np.isnan(got[np.isnan(want)]).all()
    sound = ~np.isnan(got)
    assert sound.any()
    assert np.abs(got[sound] - want[sound]).max() <= 1e-5


@pytest.mark.parametrize('name', ['tiled', 'transposed'])
def test_dimensions_may_be_called_like_functions(name: str) -> None:
    group = followed(name, SMOOTH)
    names = dict(zip(('h', 'w', 'd1', 'd2'), ('exp', 'sqrt', 'log', 'erf'), strict=True))
    arrays = random_arrays(group, 2)
    called = renamed(group, names)
    got = answers(called, SCHEDULES[name], device('host'), arrays)
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def renamed(group: Group, names: dict[str, str]) -> Group:
    """The same group with other names of its iterators."""

    def index(affine):
        return replace(affine, terms=tuple((names.get(n, n), c) for n, c in affine.terms))

    def access(item):
        return replace(item, index=tuple(map(index, item.index)))

    stages = tuple(
        replace(
            stage,
            dims=tuple(replace(d, name=names.get(d.name, d.name)) for d in stage.dims),
            write=access(stage.write),
            reads=tuple(map(access, stage.reads)),
        )
        for stage in group.stages
    )
    return replace(group, stages=stages)


@needs_nvrtc
@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=[pytest.mark.slow] * (n not in FEW)) for n in SCHEDULES]
)
def test_nvrtc_compiles_every_function(name: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubins

    architecture = 'sm_90a' if name in ('patch/mixed', 'patch/wgmma') else 'sm_90'
    kernels = generate(followed(name, ALL), SCHEDULES[name]).kernels
    binary, _, _ = compile_cubins(kernels, architecture)
    assert binary.startswith(b'\x7fELF')


@pytest.mark.parametrize('name', SCHEDULES)
def test_networks_may_take_it(name: str) -> None:
    assert is_legal(followed(name, ALL), SCHEDULES[name], known_gpu('h200'))
