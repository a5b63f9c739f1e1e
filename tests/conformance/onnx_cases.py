"""ONNX's own node tests: which of them concern us, which are left out, and the page that says so.

A case concerns us if all its operators are supported. It is left out only because of the types of
its values or because it trains; `why_not` finds that from the model alone, not from what our code
says.
"""

from __future__ import annotations

import fcntl
import pickle
import textwrap
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy
import onnx
from onnx import AttributeProto, TensorProto
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tilewright.graph.lowering.operators import FAMILIES, OPERATORS
from tilewright.graph.lowering.reader import ANY, FLOATS, NUMBERS, WHOLE, Operator
from tilewright.graph.lowering.types import ELEMENT_TYPES

# Every reason to leave out a case. Nothing else may fail.
REASONS = {
    'float16': 'half precision: no kernels are generated for f16',
    'bfloat16': 'half precision: no kernels are generated for bf16',
    'float8': 'storage formats of accelerators (8 and 4 bits), for which there are no kernels',
    'int4': 'whole numbers of 4 and 2 bits, for which there are no kernels',
    'string': 'texts are no numbers',
    'sequence': 'sequences and optional values are no tensors',
    'training': 'dropout that draws: its generator is not the one of the case',
}
# The importer turns these into others (importers/onnx_opsets.py).
REWRITTEN = {'Constant', 'Upsample'}


# Beside what pytest itself keeps between runs.
KEPT = Path(__file__).parents[2] / '.pytest_cache' / 'onnx-node-cases'


@cache
def all_cases() -> dict[str, TestCase]:
    """Every node test by name.

    ONNX computes them anew in each process, which takes 15 seconds: one process does it, and the
    others, and later runs, read what it wrote.
    """
    path = KEPT / f'onnx-{onnx.__version__}-numpy-{numpy.__version__}.pickle'
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix('.tmp')
            unfinished.write_bytes(pickle.dumps(_generated()))
            unfinished.rename(path)
    return pickle.loads(path.read_bytes())


def _generated() -> dict[str, TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # ONNX warns about its own data
        return {case.name: case for case in load_model_tests(kind='node')}


@cache
def our_cases() -> dict[str, TestCase]:
    """Those in which every operator is one of ours."""
    return {
        name: case
        for name, case in sorted(all_cases().items())
        if {node.op_type for node in case.model.graph.node} <= {*OPERATORS, *REWRITTEN}
        and not any(node.domain for node in case.model.graph.node)
    }


def unsupported() -> Counter[str]:
    """Operators of the default domain that are not ours -> cases in which they occur."""
    found: Counter[str] = Counter()
    for case in all_cases().values():
        found.update({node.op_type for node in case.model.graph.node if not node.domain})
    return Counter({op: n for op, n in found.items() if op not in {*OPERATORS, *REWRITTEN}})


def operator_of(case: TestCase) -> str:
    """The operator that a case is about: in an expanded function it has many."""
    nodes = case.model.graph.node
    return nodes[0].op_type if len({node.op_type for node in nodes}) == 1 else ''


def why_not(case: TestCase) -> str | None:
    """The first of `REASONS` that applies."""
    graph = case.model.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.WhichOneof('value') != 'tensor_type':
            return 'sequence'
    found = [_reason(number) for number in _element_types(case) if number not in ELEMENT_TYPES]
    found += ['float16'] * (TensorProto.FLOAT16 in set(_element_types(case)))
    if found:
        return min(found, key=list(REASONS).index)
    return 'training' if _trains(case) else None


def _reason(number: int) -> str:
    name = TensorProto.DataType.Name(number).lower()
    if 'float' in name:
        return 'bfloat16' if name == 'bfloat16' else 'float8'
    return 'int4' if 'int' in name else 'string'


def _element_types(case: TestCase) -> Iterator[int]:
    graph = case.model.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        yield info.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield tensor.data_type
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t.data_type
            if attribute.name in ('to', 'dtype') and attribute.type == AttributeProto.INT:
                yield attribute.i


def _trains(case: TestCase) -> bool:
    for node in case.model.graph.node:
        if node.op_type == 'Dropout' and len(node.input) > 2:
            names = [info.name for info in case.model.graph.input]
            return bool(case.data_sets[0][0][names.index(node.input[2])])
    return False


def page() -> str:
    """docs/operators.md"""
    passed, left_out = defaultdict(int), defaultdict(Counter)
    mixed = Counter()
    for case in our_cases().values():
        reason = why_not(case)
        operator = operator_of(case)
        if not operator:
            mixed[reason] += 1
        elif reason:
            left_out[operator][reason] += 1
        else:
            passed[operator] += 1
    total = sum(passed.values()) + mixed[None]
    rest = sum(sum(c.values()) for c in left_out.values()) + sum(mixed.values()) - mixed[None]
    lines = [*_HEAD.splitlines(), '', f'In all {total} node cases pass, and {rest} are left out.',
             *_TORCH.splitlines(), '']  # fmt: skip
    for family, operators in FAMILIES.items():
        titles = '| operator | elements | known ahead; forms | cases | left out |'
        lines += [f'## {family}', '', titles, '|---|---|---|---|---|']
        for name, operator in sorted(operators.items()):
            out = ', '.join(f'{n} {reason}' for reason, n in sorted(left_out[name].items()))
            lines.append(
                f'| {name} | {_dtypes(operator)} | {_forms(operator)} | {passed[name]} | {out} |'
            )
        lines.append('')
    lines += [*_SPECIAL.splitlines(), '']
    lines += ['## Cases that are left out', '',
              f'{total} cases pass, {mixed[None]} of them functions that the standard expands into '
              f'several of these operators; {rest} are left out, for no other reasons than these:',
              '', '| reason | cases | why |', '|---|---|---|']  # fmt: skip
    reasons = Counter(filter(None, map(why_not, our_cases().values())))
    lines += [f'| {name} | {reasons[name]} | {text} |' for name, text in REASONS.items()]
    others = ', '.join(f'{name} {count}' for name, count in sorted(unsupported().items()))
    lines += ['', '## Operators that are not supported', '', *_OTHERS.splitlines(), '']
    lines += textwrap.wrap(others, 100, break_on_hyphens=False)
    return '\n'.join(lines) + '\n'


def _dtypes(operator: Operator) -> str:
    words = {FLOATS: 'floats', NUMBERS: 'numbers', WHOLE: 'whole numbers', ANY: 'all'}
    some = 'all' if set(ANY) <= set(operator.dtypes) else ', '.join(operator.dtypes)
    return words.get(operator.dtypes, some)


def _forms(operator: Operator) -> str:
    known = f'inputs {", ".join(map(str, operator.known))}' if operator.known else ''
    return '; '.join(filter(None, (known, operator.forms)))


_HEAD = """\
# Operators

What network files may contain: ONNX's default domain from opset 7 on (`importers/onnx_opsets.py`
brings older forms to opset 21). A model with anything else gets one message that lists all of it.
Operators of other domains, or others of ONNX's, are added by one registration
(`tests/extend/test_operator.py` is the recipe).
This page is written by `pytest tests/conformance --update-golden` from the tables that the code
uses and from ONNX's own node tests, all of which run in `tests/conformance/test_onnx_backend.py`.

Elements: *floats* are f32 and f64, *whole numbers* i8 to i64 and u8 to u64, *numbers* both, *all*
also bool. Contractions have their fast schemas in f32. Weights in f16 may be converted by a Cast.

*Known ahead*: these inputs decide shapes or positions, so they must be constants, follow from
shapes, or be fixed by `constants=` of the importer. Sizes are static; `shapes=` fixes those that a
file leaves open. Other inputs may be constant or computed, weights too.

*Cases*: node tests of the operator alone that pass; *left out*: those that do not run, and why, see
the end of the page."""

_TORCH = """\
Beside them stand the 2,496 distinct samples that PyTorch 2.13 has (OpInfo) of 18 convolutions and
poolings, and 97 calls that have to be refused ([torch.md](torch.md)): some samples of each operator
in every run of the tests, all of them by `pytest -m slow`."""

_SPECIAL = """\
## Special values

NaN, infinities, subnormal numbers and zeros of either sign go through every function and reduction
as in numpy: `test_special_values.py` and `test_special_reductions.py` in `tests/kernels` compare
them on every instruction set, and on every device that a machine has. What there is to know
beside that:

- *NaN* of any bits, signalling or not, gives NaN; the bits of the result are open. `1 ^ NaN` and
  `NaN ^ 0` are 1, with a signalling NaN perhaps NaN.
- *Max, Min, Clip, Relu, ReduceMax, ReduceMin, MaxPool* are NaN where an operand is, wherever it
  stands. In ONNX Runtime some of them depend on where it stands.
- *ArgMax, ArgMin, Hardmax, the Indices of MaxPool* take NaN for the extreme, the first one, with
  `select_last_index` the last: as numpy and PyTorch do, but for PyTorch's poolings, which take the
  last. The place always lies inside the axis, never in the padding.
- *TopK*: NaN is larger than any number, and comes first among the largest, as in numpy and PyTorch.
- *Softmax, LogSoftmax*: a row with NaN or inf in it, or of -inf alone, is NaN. In Attention a row
  that sees nothing, of -inf alone, is 0.
- *Signs of zeros* are kept, but a maximum or minimum of 0 and -0 is either of them, and a sum that
  is zero may have either sign.
- *Subnormal numbers* are read and written as they are. In f32 Exp, Sigmoid, constant negative
  powers and what is made of them may be 0 where the result would be below 1.2e-38. CUDA and OpenCL
  kernels are compiled without options that flush or relax anything; but OpenCL devices need not
  have subnormal numbers in f32, and PoCL's Log1p is 0 for the least of them.
- *Casts* of NaN, infinities and numbers out of range to whole numbers give anything.
- *Conv, MatMul, Gemm*: NaN in an image or in weights reaches all that depends on it. By Winograd's
  algorithm and by FFT NaN also reaches the rest of a tile, by Strassen's algorithm the results that
  are made of the same sums ([strassen.md](strassen.md)), and infinities become NaN; so they do by
  matrix instructions of GPUs, which take a float in parts. Padding times a weight that is not
  finite is NaN or nothing."""

_OTHERS = """\
`--fallback onnxruntime` ([networks.md](networks.md)) runs those that it has: scatters, If and Loop
that depend on values of the call, results of a size that depends on data, and of convolutions and
poolings `DeformConv`, `MaxUnpool` and `RoiAlign`, which gather and scatter by computed places. With
the number of node tests in which each occurs:"""
