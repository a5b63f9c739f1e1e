"""NaN, infinities, subnormal numbers and signed zeros through every function, on every target.

What holds is written in docs/operators.md. The oracle computes in float64; results are compared in
units of the last place, NaN by being NaN, zeros by their sign.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from special_values import EVERY, every_exponent, pairs, run, words, wrong

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.ops.elementwise import elementwise
from tilewright.ops.evaluate import evaluate
from tilewright.ops.group import Group, Tensor
from tilewright.ops.reference import reference
from tilewright.ops.stage import (
    FUNCTIONS,
    Access,
    Dim,
    Expr,
    Stage,
    call,
    cast,
    const,
    index,
    read,
    var,
    whole,
)
from tilewright.runtime.cpu.kernel import Kernel

# What a compiler's optimisations make of NaN is part of what is tested.
pytestmark = pytest.mark.usefixtures('optimised')
COMPARE = Path(__file__).parents[1] / 'clib' / 'compare.c'
COMPARE_FLAGS = ('-march=native', '-fopenmp-simd', '-fno-trapping-math')
X, Y = read(0), read(1)
OF_WHOLE_NUMBERS = frozenset({'bit_and', 'bit_or', 'bit_xor', 'bit_not', 'shl', 'shr'})
# Either zero will do: processors and languages choose differently.
EITHER_ZERO = ('max', 'min')
# Zero will do for results below the least normal number.
FLUSHED = ('exp', 'sigmoid', 'pow')
POWERS = (0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 7.0, 0.3125, -0.5, -0.75, -1.0, -2.0, -3.0)
FLOATING = {
    name: arity for name, arity in FUNCTIONS.items() if name not in {*OF_WHOLE_NUMBERS, 'cast'}
}
UNARY = {
    **{name: call(name, X) for name, arity in FLOATING.items() if arity == 1},
    'cast': cast(cast(X, 'f64'), 'f32'),
    'where': call('where', X, X, const(2.0)),
    **{f'pow {p}': call('pow', X, const(p)) for p in POWERS},
    **{f'{op} {n}': call(op, X, const(n)) for op in ('max', 'min') for n in (-2.0, 0.0, 6.0)},
}
BINARY = {name: call(name, X, Y) for name, arity in FLOATING.items() if arity == 2}
# What compilers make vectors of; the others are calls into a library, one by one.
VECTORS = frozenset(
    {
        'neg', 'exp', 'tanh', 'sigmoid', 'sqrt', 'abs', 'floor', 'ceil', 'round', 'sign', 'log',
        'max', 'min', 'where', 'cast', 'isnan', 'isinf', 'not', 'pow', 'erf',
    }
)  # fmt: skip


def is_vector(name: str) -> bool:
    return name.split()[0] in VECTORS and name != 'pow 0.3125'


def several(exprs: list[Expr], dtype: str, count: int) -> Group:
    """Out[i, j] = expression i of element j: one kernel for all of them."""
    total = exprs[-1]
    for number, expr in reversed(list(enumerate(exprs[:-1]))):
        total = call('where', call('eq', index('i'), whole(number)), expr, total)
    operands = 1 + max(read for expr in exprs for read in expr.reads())
    names = [f'In{n}' for n in range(operands)]
    stage = Stage(
        'several', (Dim('i', len(exprs)), Dim('j', count)), Access('Out', (var('i'), var('j'))),
        tuple(Access(name, (var('j'),)) for name in names), total,
    )  # fmt: skip
    out = Tensor('Out', ('i', 'j'), (len(exprs), count), 'output', dtype)
    inputs = (Tensor(name, ('j',), (count,), dtype=dtype) for name in names)
    return Group(f'several-{len(exprs)}x{count}', (*inputs, out), (stage,))


def check(target: str, table: dict[str, Expr], *given: np.ndarray) -> None:
    """Every function of a table on these arrays."""
    dtype = 'f32' if given[0].dtype == np.float32 else 'f64'
    group = several(list(table.values()), dtype, len(given[0]))
    arrays = {f'In{n}': array for n, array in enumerate(given)}
    for name, got, want in zip(table, *both(target, group, arrays), strict=True):
        right(f'{name} on {target}', got, want, given)


def both(target: str, group: Group, arrays: dict) -> tuple[np.ndarray, np.ndarray]:
    """(what the kernel gives, what is exact)"""
    with np.errstate(invalid='ignore'):  # a signalling NaN as a double
        want = reference(group, arrays)
    return run(target, group, arrays), want


def right(name: str, got: np.ndarray, want: np.ndarray, given: tuple[np.ndarray, ...]) -> None:
    """Asserts that a function of these arrays is what it should be."""
    op, target = name.split()[0], name.split()[-1]
    flushed = op in FLUSHED or (target == 'opencl' and op == 'log1p')
    ulps = 16 if target in ('opencl', 'cuda') else 5  # what OpenCL allows its functions
    bad = wrong(got, want, ulps, flushed=flushed, zeros=op not in EITHER_ZERO)
    if op == 'pow':  # 1^NaN and NaN^0 are 1, but a signalling NaN may stay
        bad &= ~(np.isnan(got) & np.any([_signals(array) for array in given], axis=0))
    assert not bad.any(), (
        f'{name} of {[words(array[bad]) for array in given]} is {words(got[bad])}, not '
        f'{want[bad][:6]}'
    )


def _signals(values: np.ndarray) -> np.ndarray:
    bit = 22 if values.dtype == np.float32 else 51
    bits = values.view(np.uint32 if bit == 22 else np.uint64)
    return np.isnan(values) & (bits >> bit & 1 == 0)


def doubles(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid='ignore'):
        return values.astype(np.float64)


def test_every_function_is_here() -> None:
    assert {name.split()[0] for name in (*UNARY, *BINARY)} | OF_WHOLE_NUMBERS == set(FUNCTIONS)


@pytest.mark.parametrize('target', EVERY)
def test_functions_that_become_vectors(target: str) -> None:
    check(target, {n: expr for n, expr in UNARY.items() if is_vector(n)}, every_exponent())


@pytest.mark.parametrize('target', EVERY)
def test_functions_of_the_library(target: str) -> None:
    check(target, {n: expr for n, expr in UNARY.items() if not is_vector(n)}, every_exponent())


@pytest.mark.parametrize('target', EVERY)
def test_functions_of_two(target: str) -> None:
    check(target, BINARY, *pairs())


@pytest.mark.parametrize('target', EVERY)
def test_functions_of_doubles(target: str) -> None:
    check(target, UNARY, doubles(every_exponent()[::3]))
    check(target, BINARY, *map(doubles, pairs()))


@pytest.mark.slow
@pytest.mark.parametrize('target', EVERY)
@pytest.mark.parametrize('name', [*UNARY, *BINARY])
def test_each_function_in_a_kernel_of_its_own(name: str, target: str) -> None:
    """As networks have it, and compilers may do other things to it than beside its like."""
    given = (every_exponent(),) if name in UNARY else pairs()
    expr = UNARY.get(name) or BINARY[name]
    group = elementwise(expr, *(array.shape for array in given), out='f32', name='function')
    names = [t.name for t in group.with_role('input')]
    right(f'{name} on {target}', *both(target, group, dict(zip(names, given, strict=True))), given)


@pytest.mark.parametrize('isa', [pytest.param(isa, marks=pytest.mark.isa) for isa in host_isas()])
def test_error_function_between_zero_and_one(isa: str) -> None:
    """Floats of either sign from 2^-14 to where it is 1: within 2 units in the last place."""
    low, high = (int(np.float32(x).view(np.uint32)) for x in (2.0**-14, 4.5))
    bits = np.random.default_rng(0).integers(low, high, 1 << 16, dtype=np.uint32)
    bits |= (np.arange(1 << 16, dtype=np.uint32) & 1) << 31
    given = bits.view(np.float32)
    group = elementwise(call('erf', X), given.shape)
    got, want = both(isa, group, {'In': given})
    assert not wrong(got, want, OWN['erf']).any()


# Functions of our own, with the most units in the last place that each may be off.
OWN = {'exp': 2, 'log': 2, 'sigmoid': 4, 'tanh': 4, 'pow 0.75': 4, 'erf': 2}
CHUNK = 1 << 17  # floats that stay in a cache while they are compared


# One erf of the standard library after the other would take an hour.
@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in OWN if name != 'erf'])
def test_all_patterns(name: str) -> None:
    """All 2^32 floats through the kernel of a function, against numpy in float64."""
    group = elementwise(UNARY[name], (CHUNK,), name='function')
    schedule = general_schedule(group, host_isas()[0], 1, 1)
    kernel = Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
    library = ctypes.CDLL(str(build(COMPARE.read_text(), COMPARE_FLAGS, name='compare')))
    floats, doubles = np.ctypeslib.ndpointer(np.float32), np.ctypeslib.ndpointer(np.float64)
    library.compare.argtypes = [floats, doubles, ctypes.c_long, ctypes.c_int, doubles]
    packed, got, worst = kernel.pack({}), np.zeros(CHUNK, np.float32), np.zeros(4)
    bits = np.arange(CHUNK, dtype=np.uint32)
    with np.errstate(all='ignore'):
        for _ in range((1 << 32) // CHUNK):
            given = bits.view(np.float32)
            kernel.run({'In': given}, packed, got)
            want = evaluate(UNARY[name], [given], ['f32'], {})
            library.compare(got, want, CHUNK, name.split()[0] in FLUSHED, worst)
            bits += np.uint32(CHUNK)
    assert worst[:3].tolist() == [0, 0, 0], 'NaN, infinities, signs of zeros'
    assert worst[3] <= OWN[name]
