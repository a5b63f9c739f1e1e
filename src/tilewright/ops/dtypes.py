"""Types of elements, and the type that an expression over them has.

Goes in: the dtypes of what is read. Comes out: the dtype in which C and the reference compute, so
that whole numbers stay exact and floats stay floats:

    reads have the dtype of their tensor; a cast has the one that it names
    constants, whole numbers and iterators take the dtype of what they are combined with
    mixed dtypes are computed in one that holds both
    comparisons, logic, isnan and isinf are 'bool': 0 or 1

The value is converted to the dtype of the written tensor as it is stored; a combiner works in that
dtype. f16 and bf16 are types of storage alone: what is read of them is float32, and so are sums of
them (`computed`), so that a value is rounded once, where it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

try:  # numpy has no bf16 of its own; the package comes with onnx
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

if TYPE_CHECKING:
    from tilewright.ops.stage import Expr

# Types of storage, and what rounding to them is off by, as a share of a value.
HALVES: dict[str, float] = {'f16': 2.0**-11, 'bf16': 2.0**-8}
# What people call a precision -> the dtype that values are stored as.
PRECISIONS = {'fp32': 'f32', 'fp16': 'f16', 'bf16': 'bf16'}
NUMPY: dict[str, Any] = {
    'f32': np.float32,
    'f64': np.float64,
    'i64': np.int64,
    'i32': np.int32,
    'i16': np.int16,
    'i8': np.int8,
    'u64': np.uint64,
    'u32': np.uint32,
    'u16': np.uint16,
    'u8': np.uint8,
    'bool': np.bool_,
    'f16': np.float16,
    **({'bf16': bfloat16} if bfloat16 is not None else {}),
}
COMPUTED = tuple(name for name in NUMPY if name not in HALVES)  # what expressions work in
DTYPES = {name: np.dtype(kind).itemsize for name, kind in NUMPY.items()}  # bytes of an element
FLOATS = ('f32', 'f64')
TRUTHS = frozenset({'eq', 'lt', 'le', 'gt', 'ge', 'and', 'or', 'xor', 'not', 'isnan', 'isinf'})
# Functions with a meaning for floats alone; whole numbers are converted first.
SMOOTH = frozenset(
    {
        'exp', 'expm1', 'tanh', 'sigmoid', 'sqrt', 'log', 'log1p', 'erf', 'sin', 'cos', 'tan',
        'asin', 'acos', 'atan', 'sinh', 'cosh', 'asinh', 'acosh', 'atanh',
    }
)  # fmt: skip
# What a constant and a whole number are until something gives them a dtype.
_WEAK = {'const': 'some float', 'whole': 'some int', 'index': 'some int'}


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype in HALVES


def holds_floats(array: np.ndarray) -> bool:
    """Whether the elements of an array are floats of any type; numpy's own letters know no bf16."""
    return array.dtype.kind == 'f' or array.dtype == NUMPY.get('bf16')


def computed(dtype: str) -> str:
    """The dtype in which values of a dtype are computed with."""
    return 'f32' if dtype in HALVES else dtype


def limits(dtype: str) -> tuple[int, int]:
    """The least and the largest whole number of an integer dtype."""
    if dtype == 'bool':
        return 0, 1
    found = np.iinfo(NUMPY[dtype])
    return int(found.min), int(found.max)


def promote(dtypes: Iterable[str]) -> str:
    """The smallest dtype of ours that holds values of all of these."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    if found & set(FLOATS):
        wide = any(DTYPES[d] > 2 for d in found - {'f32'})
        return 'f64' if wide else 'f32'
    bits = max(8 * DTYPES[d] * (2 if d[0] == 'u' else 1) for d in found)
    signed = any(d[0] == 'i' for d in found)
    if signed:
        return f'i{min(bits, 64)}'
    return f'u{8 * max(DTYPES[d] for d in found)}'


def dtype_of(expr: Expr, reads: Sequence[str]) -> str:
    """The dtype of an expression's value; `reads` are the dtypes of what it reads."""
    return settled(_weak_dtype(expr, reads))


def operand_dtype(expr: Expr, reads: Sequence[str]) -> str:
    """The dtype to which a function's arguments are brought (the last two of `where`)."""
    args = expr.args[1:] if expr.op == 'where' else expr.args
    joined = settled(_join([_weak_dtype(a, reads) for a in args]))
    if expr.op in SMOOTH and joined not in FLOATS:
        return 'f64'
    if joined == 'bool' and expr.op not in TRUTHS and expr.op != 'where':
        return 'i32'
    return joined


def settled(dtype: str) -> str:
    """What nothing gave a dtype is an ordinary float or a wide whole number."""
    return {'some float': 'f32', 'some int': 'i64'}.get(dtype, dtype)


def _weak_dtype(expr: Expr, reads: Sequence[str]) -> str:
    if expr.op == 'read':
        return computed(reads[int(expr.value)])
    if expr.op in _WEAK:
        return _WEAK[expr.op]
    if expr.op == 'cast':
        return computed(expr.name)
    if expr.op in TRUTHS:
        return 'bool'
    args = expr.args[1:] if expr.op == 'where' else expr.args
    joined = _join([_weak_dtype(a, reads) for a in args])
    if expr.op in SMOOTH and joined not in (*FLOATS, 'some float'):
        return 'some float' if joined == 'some int' else 'f64'
    return 'i32' if joined == 'bool' and expr.op != 'where' else joined


def _join(found: Sequence[str]) -> str:
    strong = [d for d in found if not d.startswith('some')]
    if not strong:
        return 'some float' if 'some float' in found else 'some int'
    joined = promote(strong)
    if 'some float' in found and joined not in FLOATS:
        return 'f64'
    return 'i64' if joined == 'bool' and 'some int' in found else joined
