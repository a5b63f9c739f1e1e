"""Every operator that is supported: what importers, lowering, errors and docs/operators.md know.

One of the package's own is a function in a family, and a row of its table. Others are registered
from outside, by one call: a name and a domain as ONNX files have them, and an `Operator`, whose
function reads the node's attributes and returns what a group (ops/) computes of its inputs.
tests/extend/test_operator.py is an example.
"""

from __future__ import annotations

from tilewright.graph.lowering import (
    attention,
    control,
    convolution,
    elementwise,
    gathers,
    matmul,
    moving,
    normalisation,
    patterns,
    pooling,
    quantized,
    recurrent,
    reduce,
    resize,
    shape,
    training,
)
from tilewright.graph.lowering.reader import Operator
from tilewright.registry import Registry

FAMILIES: dict[str, dict[str, Operator]] = {
    'Convolution': convolution.OPERATORS,
    'Pooling': pooling.OPERATORS,
    'Normalisation': normalisation.OPERATORS,
    'Matrix products': matmul.OPERATORS,
    'Quantisation': quantized.OPERATORS,
    'Recurrent layers': recurrent.OPERATORS,
    'Attention': attention.OPERATORS,
    'Element by element': elementwise.OPERATORS,
    'Softmax': reduce.SOFTMAX,
    'Reductions': reduce.OPERATORS,
    'Shapes': {**shape.OPERATORS, **moving.OPERATORS, **patterns.OPERATORS},
    'Gathers': gathers.OPERATORS,
    'Resizing': resize.OPERATORS,
    'Control flow': control.OPERATORS,
    'Training': training.OPERATORS,
}
OPERATORS: Registry[Operator] = Registry(
    'an operator',
    {name: operator for family in FAMILIES.values() for name, operator in family.items()},
)


def register(
    name: str, operator: Operator, *, domain: str = '', family: str = 'Registered'
) -> Operator:
    """Add an operator that ONNX files may contain; `family` is the table that lists it."""
    key = _key(name, domain)
    OPERATORS.register(operator, key)
    FAMILIES.setdefault(family, {})[key] = operator
    return operator


def unregister(name: str, *, domain: str = '') -> None:
    """Take back an operator that was registered."""
    key = _key(name, domain)
    OPERATORS.unregister(key)
    for family in [f for f, operators in FAMILIES.items() if key in operators]:
        del FAMILIES[family][key]
        if not FAMILIES[family]:
            del FAMILIES[family]


def _key(name: str, domain: str) -> str:
    """What graphs call it: importers write other domains than ONNX's in front."""
    return name if domain in ('', 'ai.onnx') else f'{domain}::{name}'
