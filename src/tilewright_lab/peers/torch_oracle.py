"""What the tensors of an operator list should hold, by PyTorch in float64.

It computes from kinds and numbers alone and sees none of our stages, so that it checks them too.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.errors import MissingError, SpecError
from tilewright.ops.pointwise import LEAKY_SLOPE
from tilewright_lab.compare.operator_lists import Arrays, Operator, OperatorList, Weights, values_by


def torch_values(
    network: OperatorList, inputs: Arrays, weights: Weights
) -> Iterator[tuple[str, np.ndarray]]:
    """(tensor, float64 values) of every tensor, once it is complete."""
    try:
        torch = importlib.import_module('torch')
    except ImportError:
        raise MissingError("this oracle needs PyTorch: pip install 'tilewright[torch]'") from None

    def answer(operator: Operator, given: list[np.ndarray]) -> np.ndarray:
        constants = {
            name: torch.from_numpy(np.asarray(values, np.float64))
            for name, values in weights.get(operator.name, {}).items()
        }
        first, *others = (torch.from_numpy(np.ascontiguousarray(values)) for values in given)
        with torch.no_grad():
            return _result(torch, operator, first, others, constants).numpy()

    return values_by(network, inputs, answer)


def _result(
    torch: Any, operator: Operator, x: Any, others: list[Any], constants: dict[str, Any]
) -> Any:
    functional = torch.nn.functional
    n: dict[str, Any] = dict(operator.numbers)
    pool = {
        'stride': n.get('stride'),
        'padding': n.get('pad', 0),
        'ceil_mode': n.get('ceil', False),
    }
    kernel, bias = constants.get('Ker'), constants.get('Bias')
    if operator.kind == 'conv2d':
        stride, pad, groups = n.get('stride', 1), n.get('pad', 0), n.get('groups', 1)
        y = functional.conv2d(x, kernel, bias, stride, pad, n.get('dilation', 1), groups)
        return activated(functional, y, n.get('activation'))
    if operator.kind == 'fully_connected':
        y = functional.linear(x.flatten(1), kernel, bias)
        return activated(functional, y, n.get('activation'))
    if operator.kind == 'max_pool2d':
        return functional.max_pool2d(x, n['window'], **pool)
    if operator.kind == 'average_pool2d':
        counted = n.get('count_include_pad', True)
        return functional.avg_pool2d(x, n['window'], **pool, count_include_pad=counted)
    if operator.kind == 'lrn':
        return functional.local_response_norm(x, n['size'], n['alpha'], n['beta'], n.get('k', 1.0))
    if operator.kind == 'softmax':
        return functional.softmax(x.reshape(n['shape']), n.get('axis', 1))
    if operator.kind == 'activate':
        return activated(functional, x, n['name'])
    if operator.kind == 'add':
        return torch.add(x, others[0])
    raise SpecError(f'{operator.name}: PyTorch was not told what {operator.kind} is')


def activated(functional: Any, y: Any, name: str | None) -> Any:
    """An activation of ours by PyTorch's functions."""
    if name is None:
        return y
    known = {'relu': functional.relu, 'relu6': functional.relu6, 'silu': functional.silu}
    if name == 'leaky_relu':
        return functional.leaky_relu(y, LEAKY_SLOPE)
    return known[name](y) if name in known else getattr(y, name)()
