"""Every operator that is supported: what importers, lowering, errors and docs/operators.md know.

One of the package's own is a function in a family, and a row of its table. Others are registered
from outside, by one call: a name and a domain as ONNX files have them, and an `Operator`, whose
function reads the node's attributes and returns what a group (ops/) computes of its inputs.
tests/extend/test_operator.py is an example.
"""

from __future__ import annotations

from tilewright.errors import InputError
from tilewright.graph.lowering import (
    convolution,
    elementwise,
    gathers,
    matmul,
    moving,
    normalisation,
    patterns,
    pooling,
    reduce,
    resize,
    shape,
)
from tilewright.graph.lowering.reader import Operator

FAMILIES: dict[str, dict[str, Operator]] = {
    'Convolution': convolution.OPERATORS,
    'Pooling': pooling.OPERATORS,
    'Normalisation': normalisation.OPERATORS,
    'Matrix products': matmul.OPERATORS,
    'Element by element': elementwise.OPERATORS,
    'Softmax': reduce.SOFTMAX,
    'Reductions': reduce.OPERATORS,
    'Shapes': {**shape.OPERATORS, **moving.OPERATORS, **patterns.OPERATORS},
    'Gathers': gathers.OPERATORS,
    'Resizing': resize.OPERATORS,
}
OPERATORS: dict[str, Operator] = {
    name: operator for family in FAMILIES.values() for name, operator in family.items()
}
_OWN = frozenset(OPERATORS)


def register(
    name: str, operator: Operator, *, domain: str = '', family: str = 'Registered'
) -> Operator:
    """Add an operator that ONNX files may contain; `family` is the table that lists it."""
    key = _key(name, domain)
    if key in OPERATORS:
        raise InputError(f'there is an operator {key!r} already; unregister that one first')
    OPERATORS[key] = FAMILIES.setdefault(family, {}).setdefault(key, operator)
    return operator


def unregister(name: str, *, domain: str = '') -> None:
    """Take back an operator that was registered."""
    key = _key(name, domain)
    if key not in OPERATORS or key in _OWN:
        raise InputError(f'the operator {key!r} was not registered; only such can be taken back')
    del OPERATORS[key]
    for family in [f for f, operators in FAMILIES.items() if key in operators]:
        del FAMILIES[family][key]
        if not FAMILIES[family]:
            del FAMILIES[family]


def _key(name: str, domain: str) -> str:
    """What graphs call it: importers write other domains than ONNX's in front."""
    return name if domain in ('', 'ai.onnx') else f'{domain}::{name}'
