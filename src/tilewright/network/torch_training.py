"""`torch.compile(module, backend='tilewright')` where gradients are wanted.

Goes in: a graph of PyTorch's tracer. AOTAutograd makes a forward and a backward graph of it, of
ATen's core operators, without mutation. Of each, the nodes that the importer knows are joined into
as few parts as possible, and every part is compiled at its first call, with weights as inputs,
since they change. What is left (random numbers, operators that nobody lowers) runs in PyTorch
between them, and a warning lists it; loops, optimisers and everything else stay as they are.
"""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tilewright.importers.torch import HANDLERS

# Drawn from PyTorch's generator, whose numbers are not ours to draw.
_THEIRS = ('aten.native_dropout.default',)
Run = Callable[[Any, Mapping[str, Any]], Callable[..., Any]]


def training_graph(
    module: Any, example_inputs: Sequence[Any], options: Mapping[str, Any], run: Run
) -> Callable[..., Any]:
    """[GraphModule] -> [callable that gradients flow through]; `run` compiles one part."""
    common: Any = import_module('torch._dynamo.backends.common')
    decompositions = import_module('torch._decomp').core_aten_decompositions()

    def compiler(graph: Any, _: Sequence[Any]) -> Callable[..., Any]:
        found = _in_parts(graph, lambda part: run(part, options))
        return import_module('functorch.compile').make_boxed_func(found.forward)

    made = common.aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions
    )
    return made(module, example_inputs)


def _in_parts(graph: Any, compiled: Callable[[Any], Callable[..., Any]]) -> Any:
    """The graph with a call in the place of each part that we compute."""
    partitioner: Any = import_module('torch.fx.passes.infra.partitioner')
    support: Any = import_module('torch.fx.passes.operator_support')
    nn: Any = import_module('torch.nn')

    class Known(support.OperatorSupportBase):
        def is_node_supported(self, _: Any, node: Any) -> bool:
            return node.op == 'call_function' and _is_known(node)

    class Compiled(nn.Module):
        def __init__(self, part: Any) -> None:
            super().__init__()
            self.run = compiled(part)
            self.alone = not isinstance(_result(part), list | tuple)

        def forward(self, *arguments: Any) -> Any:
            found = self.run(*arguments)
            return found[0] if self.alone and isinstance(found, tuple) else found

    left = Counter(
        str(node.target)
        for node in graph.graph.nodes
        if node.op == 'call_function' and not _is_known(node)
    )
    if left:
        listed = ', '.join(f'{count} x {name}' for name, count in left.items())
        warnings.warn(f'of a graph in training these run in PyTorch: {listed}', stacklevel=2)
    joined = partitioner.CapabilityBasedPartitioner(
        graph, Known(), allows_single_node_partition=True
    ).partition_and_fuse()
    for name, part in list(joined.named_children()):
        setattr(joined, name, Compiled(part))
    return joined


def _result(part: Any) -> Any:
    (last,) = (node for node in part.graph.nodes if node.op == 'output')
    return last.args[0]


def _is_known(node: Any) -> bool:
    if node.target is operator.getitem:
        return _is_known(node.args[0])
    return str(node.target) in HANDLERS and str(node.target) not in _THEIRS
