"""If, Loop and Scan: they are written out (graph/control.py) before anything is lowered."""

from __future__ import annotations

from tilewright.graph.lowering.reader import ANY, NodeReader, Operator
from tilewright.graph.lowering.result import Result, Unsupported


def _inside(node: NodeReader) -> Result:
    raise Unsupported('as one task')


OPERATORS: dict[str, Operator] = {
    'If': Operator(_inside, ANY, (0,), 'or both branches alike'),
    'Loop': Operator(_inside, ANY, (0, 1), 'conditions that follow from constants'),
    'Scan': Operator(_inside, ANY, (), 'opset 8 without lengths'),
}
