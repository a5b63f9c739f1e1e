"""Every operator that is supported. A new one is a function in a family, and a row of its table."""

from __future__ import annotations

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
