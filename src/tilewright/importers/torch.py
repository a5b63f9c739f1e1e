"""PyTorch modules and exported programs as graphs.

    torch.nn.Module + example inputs, torch.export.ExportedProgram  --import_torch-->  Graph

Goes in: a module for inference. PyTorch's own exporter traces it and brings it to ATen's core
operators, with a few kept whole that say more than their decomposition. Comes out: a graph with the
semantics of ONNX; aten_*.py has one function for each operator. What is not supported is one error
that lists all of it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.errors import InputError, MissingError, ModelError
from tilewright.graph.graph import DTYPES, Graph, Value
from tilewright.graph.training import TrainedGraph
from tilewright.importers import (
    aten_attention,
    aten_elementwise,
    aten_embedding,
    aten_recurrent,
    aten_shapes,
    aten_training,
    aten_windows,
    aten_writes,
)
from tilewright.importers.aten_call import Call, Emitter, Handler, UnsupportedError, type_of
from tilewright.importers.shapes import checked_shape, given_shapes
from tilewright.importers.torch_export import decomposed, exported, first_line

_TABLES = (
    aten_attention, aten_elementwise, aten_embedding, aten_recurrent, aten_shapes, aten_training,
    aten_windows, aten_writes,
)  # fmt: skip
HANDLERS: dict[str, Handler] = {
    f'aten.{name}': handler for table in _TABLES for name, handler in table.HANDLERS.items()
}


def import_torch(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    constants: Mapping[int, Any] | None = None,
) -> Graph:
    """[torch.nn.Module, ExportedProgram] -> [Graph]

    shapes          parameter of `forward` -> its shape: float32 images that the module is traced on
    example_inputs  tensors, arrays or numbers that it is traced on, instead of `shapes`
    constants       number of an input -> its tensor, which is then fixed: weights, say
    """
    torch = _torch()
    if isinstance(model, torch.export.ExportedProgram):
        name, program = 'the exported program', decomposed(torch, model)
    else:
        name = type(model).__name__
        if not isinstance(model, torch.nn.Module):
            raise ModelError(f'{name} is neither a torch.nn.Module nor an ExportedProgram')
        inputs = _examples(torch, model, shapes, example_inputs)
        program = exported(torch, model, inputs, name)
    return _Importer(torch, program, name, dict(constants or {})).graph()


def import_training(
    module: Any, loss: Callable[..., Any] | None, example_inputs: Sequence[Any]
) -> TrainedGraph:
    """[torch.nn.Module in training mode, loss(outputs, target)] -> [TrainedGraph]

    The last of the example inputs is the target. Without a loss, all of them are the module's, and
    it returns a loss itself. Parameters and buffers have the names of its state dict.
    """
    torch, name = _torch(), type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f'{name} is not a torch.nn.Module')

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any) -> Any:
            return (
                self.module(*given) if loss is None else loss(self.module(*given[:-1]), given[-1])
            )

    before = {m: m.training for m in module.modules()}
    inputs = _examples(torch, module, None, example_inputs)
    program = exported(torch, WithLoss().train(), inputs, name, training=True)
    for part, mode in before.items():
        part.training = mode
    return _Importer(torch, program, name, {}).trained()


def import_traced(module: Any) -> Graph:
    """[torch.fx.GraphModule of ATen operators, without state] -> [Graph]: what AOTAutograd traces.

    It is not exported again: that cannot trace operators which are functional already.
    """
    signature = SimpleNamespace(
        buffers_to_mutate={}, user_inputs_to_mutate={}, inputs_to_parameters={},
        inputs_to_buffers={}, inputs_to_lifted_tensor_constants={},
    )  # fmt: skip
    program = SimpleNamespace(
        graph=module.graph, graph_signature=signature, state_dict={}, constants={}
    )
    return _Importer(_torch(), program, type(module).__name__, {}).graph()


def torch_loss(name: str) -> Callable[..., Any]:
    """A loss of PyTorch by the name that it has for graphs."""
    named = {'cross_entropy': 'cross_entropy', 'mse': 'mse_loss', 'l1': 'l1_loss'}
    if name not in named:
        raise InputError(f'loss is {name!r}; choose one of {", ".join(named)}, or give a function')
    return getattr(_torch().nn.functional, named[name])


def tensor_of(array: np.ndarray) -> Any:
    """A copy of an array as a tensor."""
    return _torch().from_numpy(np.array(array))


def dim_ranges(model: Any) -> dict[str, tuple[int | range, ...]] | None:
    """Shapes of an exported program whose sizes are `Dim`s, with a range for each; else None."""
    torch = _torch()
    if not isinstance(model, torch.export.ExportedProgram):
        return None
    shapes = {
        name: tuple(_size_range(model, name, size) for size in value.shape)
        for name, value in _user_inputs(torch, model).items()
    }
    found = any(isinstance(size, range) for shape in shapes.values() for size in shape)
    return shapes if found else None


def _size_range(program: Any, name: str, size: Any) -> int | range:
    if isinstance(size, int):
        return size
    bounds = program.range_constraints.get(size.node.expr)
    try:
        return range(max(1, int(bounds.lower)), int(bounds.upper) + 1)
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ModelError(
            f'size {size} of {name!r} in the exported program has no largest value; export it with '
            f'Dim(name, max=..), or give shapes={{{name!r}: (..)}}'
        ) from None


def _user_inputs(torch: Any, program: Any) -> dict[str, Any]:
    """The tensors that an exported program is called with, by name."""
    wanted = set(program.graph_signature.user_inputs)
    nodes = (n for n in program.graph.nodes if n.op == 'placeholder' and n.name in wanted)
    return {n.name: n.meta['val'] for n in nodes if isinstance(n.meta.get('val'), torch.Tensor)}


def at_sizes(
    model: Any, shapes: Mapping[str, tuple[int, ...]], example_inputs: Sequence[Any] | None = None
) -> tuple[Any, None, tuple[Any, ...]]:
    """What `import_torch` is given to trace a module, or a program with `Dim`s, at these shapes.

    Types are those of `example_inputs`, or of the program; else float32.
    """
    torch = _torch()
    if isinstance(model, torch.export.ExportedProgram):
        like, module = _user_inputs(torch, model), model.module()
        names = list(like)
        for part in module.modules():
            part.training = False
    else:
        module, names = model, _parameters(model)
        examples = () if example_inputs is None else _examples(torch, model, None, example_inputs)
        like = dict(zip(names, examples, strict=False))
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise ModelError(
            f'shapes gives {unknown[0]!r}; the inputs of the module are {", ".join(names)}'
        )
    return module, None, tuple(
        torch.zeros(shapes[name], dtype=getattr(like.get(name), 'dtype', torch.float32))
        if name in shapes
        else like[name]
        for name in names
        if name in shapes or name in like
    )  # fmt: skip


def run_torch(
    model: Any,
    arrays: Sequence[np.ndarray],
    shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Sequence[Any] | None = None,
) -> list[np.ndarray]:
    """What PyTorch itself computes for the tensors of an imported model, in their order."""
    torch = _torch()
    if isinstance(model, torch.export.ExportedProgram):
        runs, examples = model.module(), tuple(map(torch.from_numpy, arrays))
        training = []
    else:
        runs, examples = model, _examples(torch, model, shapes, example_inputs)
        training = [m for m in model.modules() if m.training]
    leaves, form = import_module('torch.utils._pytree').tree_flatten(examples)
    left = list(arrays)
    given = [
        torch.from_numpy(np.array(left.pop(0))).to(leaf.device)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]
    try:
        for part in training:
            part.training = False
        with torch.no_grad():
            results = runs(*import_module('torch.utils._pytree').tree_unflatten(given, form))
    except Exception as error:  # whatever the module's own code raises
        raise ModelError(f'PyTorch cannot run the module: {first_line(error)}') from None
    finally:
        for part in training:
            part.training = True
    found, _ = import_module('torch.utils._pytree').tree_flatten(results)
    return [tensor.detach().cpu().numpy() for tensor in found]


def _torch() -> Any:
    try:
        return import_module('torch')
    except ImportError:
        raise MissingError(
            "importing PyTorch modules needs PyTorch: pip install 'tilewright[torch]'"
        ) from None


def _examples(
    torch: Any,
    module: Any,
    shapes: Mapping[str, Sequence[int]] | None,
    example_inputs: Sequence[Any] | None,
) -> tuple[Any, ...]:
    if example_inputs is not None:
        if isinstance(example_inputs, np.ndarray | torch.Tensor):
            example_inputs = (example_inputs,)
        if not isinstance(example_inputs, tuple | list):
            raise ModelError(
                f'example_inputs is a {type(example_inputs).__name__}; give a tuple of what '
                f'{type(module).__name__}.forward is called with, in its order'
            )
        return tuple(
            torch.from_numpy(np.ascontiguousarray(given))
            if isinstance(given, np.ndarray)
            else given
            for given in example_inputs
        )
    wanted = _parameters(module)
    given = given_shapes(shapes)
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given]
    if unknown or missing:
        name = (unknown or missing)[0]
        raise ModelError(
            f'{type(module).__name__}.forward takes {", ".join(wanted) or "nothing"}; '
            f'{"there is no" if unknown else "there is nothing for"} {name!r}: give '
            f'example_inputs=(tensor, ..), or shapes={{{(missing or wanted or [name])[0]!r}: (..)}}'
        )
    what = f'of {type(module).__name__}.forward'
    return tuple(
        torch.zeros(checked_shape(given[name], f'parameter {name!r} {what}')) for name in wanted
    )


def _parameters(module: Any) -> list[str]:
    """Names of what a module must be called with."""
    return [
        p.name
        for p in inspect.signature(module.forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


_DETACHED = ('aten.detach.default', 'aten.alias.default')  # the latter by decompositions


class _Importer:
    """The state of one import: what every node of the program became."""

    def __init__(self, torch: Any, program: Any, name: str, fixed: dict[int, Any]) -> None:
        self.torch, self.program, self.name, self.fixed = torch, program, name, fixed
        self.emitter = Emitter()
        self.values: dict[Any, Any] = {}
        self.inputs: list[Value] = []
        self.outputs: list[tuple[str, str]] = []
        self.unsupported: dict[tuple[str, str], list[str]] = {}
        self.state: dict[str, str] = {}  # placeholder -> the input that stands for it in training
        self.learns: set[Any] = set()  # in training, nodes that follow from parameters

    def trained(self) -> TrainedGraph:
        """The graph of a module with its loss, whose parameters and buffers are inputs."""
        signature, state = self.program.graph_signature, self.program.state_dict
        moved = signature.buffers_to_mutate  # result -> buffer
        kept = {name: state[name] for name in signature.inputs_to_parameters.values()}
        learned = {name for name, tensor in kept.items() if tensor.requires_grad}
        kept |= {name: state[name] for name in moved.values() if name in state}
        places = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.state = {place: name for place, name in places.items() if name in kept}
        self.emitter.taken |= {name.removeprefix('module.') for name in kept}
        graph = self._read({place: tensor for place, tensor in self._given(signature).items()
                            if place not in self.state})  # fmt: skip
        short = {name: name.removeprefix('module.') for name in kept}
        arrays = {
            short[name]: tensor.detach().cpu().numpy().copy() for name, tensor in kept.items()
        }
        results = list(graph.outputs)
        after = dict(zip(moved.values(), (value for _, value in results), strict=False))
        if len(results) != len(moved) + 1:
            raise ModelError(f'{self.name} has {len(results) - len(moved)} results; a loss is one')
        parameters = {short[name]: arrays[short[name]] for name in kept if name in learned}
        return TrainedGraph(
            replace(graph, outputs=(('loss', results[-1][1]),)), parameters, results[-1][1],
            {name: array for name, array in arrays.items() if name not in parameters},
            {short[name]: value for name, value in after.items() if name in kept},
        )  # fmt: skip

    def graph(self) -> Graph:
        signature = self.program.graph_signature
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        if changed:
            raise ModelError(
                f'{self.name} changes {changed[0]!r} when it is called; only modules that compute '
                f'results from inputs are supported, such as those in evaluation mode'
            )
        return self._read(self._given(signature))

    def _read(self, given: Mapping[str, Any]) -> Graph:
        nodes = list(self.program.graph.nodes)
        self.emitter.taken |= {node.name for node in nodes if node.op == 'placeholder'}
        place, results = 0, []
        for node in nodes:
            if node.op == 'placeholder':
                place += self._placeholder(node, given, place)
            elif node.op == 'call_function':
                self._call(node)
            elif node.op == 'output':
                found = node.args[0]
                results = list(found) if isinstance(found, list | tuple) else [found]
            else:
                self._refuse(node, f'{node.op}', '')
        self._check()
        self._results(results)
        emitter = self.emitter
        return Graph(
            self.name, tuple(self.inputs), tuple(self.outputs), tuple(emitter.nodes),
            emitter.constants,
        )  # fmt: skip

    def _given(self, signature: Any) -> dict[str, Any]:
        """placeholder -> the tensor that the program holds for it."""
        state, more = self.program.state_dict, self.program.constants
        found = {key: state[name] for key, name in signature.inputs_to_parameters.items()}
        for key, name in signature.inputs_to_buffers.items():
            found[key] = state[name] if name in state else more[name]
        for key, name in signature.inputs_to_lifted_tensor_constants.items():
            found[key] = more[name]
        return found

    def _placeholder(self, node: Any, given: Mapping[str, Any], place: int) -> int:
        """An input, or a constant; comes out: 1 if it is an input of the module."""
        tensor = given.get(node.name)
        if node.name in self.state:
            name = self.state[node.name].removeprefix('module.')
            self.values[node] = kind = type_of(name, node.meta['val'])
            self.inputs.append(kind)
            if self.program.state_dict[self.state[node.name]].requires_grad:
                self.learns.add(node)
            return 0
        is_input = tensor is None
        if is_input:
            tensor = self.fixed.get(place)
        try:
            if tensor is not None:
                kind = type_of(node.name, tensor)
                # A copy: whoever trains the module further does not change the graph.
                array = np.array(tensor.detach().cpu().numpy(), DTYPES[kind.dtype])
                self.emitter.constants[node.name] = array
                self.values[node] = kind
            elif isinstance(node.meta.get('val'), self.torch.Tensor):
                self.values[node] = kind = type_of(node.name, node.meta['val'])
                self.inputs.append(kind)
        except UnsupportedError as reason:
            self._refuse(node, 'input', str(reason))
        return int(is_input)

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            found = self.values.get(node.args[0])
            if isinstance(found, tuple):
                self.values[node] = found[node.args[1]]
            if node.args[0] in self.learns:
                self.learns.add(node)
            return
        name = str(node.target)
        handler = HANDLERS.get(name)
        if handler is None:
            # Checks of sizes, which are all known here, have no result that anyone reads.
            if node.users or not name.startswith(('aten.sym_', 'aten._assert')):
                self._refuse(node, name, '')
            return
        if any(self._unknown(argument) for argument in _nodes(node)):
            return
        try:
            call = Call(self.emitter, node, _bound(node), self.values)
            self.values[node] = self._empty(node) or handler(call)
            if self.learns:
                self._without_gradient(node, name, call)
        except UnsupportedError as reason:
            self._refuse(node, name, str(reason))

    def _without_gradient(self, node: Any, name: str, call: Call) -> None:
        """Give rows of padding no gradient; raises UnsupportedError where PyTorch stops or scales
        one in another way.
        """
        follows = any(argument in self.learns for argument in _nodes(node))
        if follows:
            self.learns.add(node)
        if name in _DETACHED and follows:
            raise UnsupportedError(
                'of what parameters change (detach), where a gradient would have to stop'
            )
        if name != 'aten.embedding.default' or not follows:
            return
        if call['scale_grad_by_freq']:
            raise UnsupportedError('with scale_grad_by_freq')
        if call['padding_idx'] >= 0:
            table, padding = node.args[0], call['padding_idx']
            held = self.state.get(getattr(table, 'name', ''))
            if held is None or self.program.state_dict[held][padding].count_nonzero():
                raise UnsupportedError('with a padding_idx whose row is not zero')
            found, chosen = self.values[node], call.cast(call.value('indices'), 'i64')
            other = call.emit('Equal', chosen, call.number(padding, 'i64'))
            spread = call.reshaped(Value(other, chosen.shape, 'bool'), (*chosen.shape, 1))
            zero = call.number(0, found.dtype)
            self.values[node] = call.made('Where', found, spread, zero, found)

    def _empty(self, node: Any) -> Value | tuple[Value, ...] | None:
        """The results of a call if none has any elements: there is nothing to compute."""
        found = node.meta['val']
        results = found if isinstance(found, list | tuple) else [found]
        if not results or any(not self._is_empty(result) for result in results):
            return None
        kinds = [type_of(node.name, result) for result in results]
        made = tuple(
            replace(kind, name=self.emitter.constant(np.zeros(kind.shape, DTYPES[kind.dtype])))
            for kind in kinds
        )
        return made if isinstance(found, list | tuple) else made[0]

    def _is_empty(self, result: Any) -> bool:
        """Sizes that follow from data are none that could be asked."""
        if not isinstance(result, self.torch.Tensor):
            return False
        return any(isinstance(size, int) and size == 0 for size in result.shape)

    def _unknown(self, node: Any) -> bool:
        return isinstance(node.meta.get('val'), self.torch.Tensor) and node not in self.values

    def _refuse(self, node: Any, name: str, reason: str) -> None:
        self.unsupported.setdefault((name, reason), []).append(node.name)

    def _check(self) -> None:
        if self.unsupported:
            items = [
                f'{len(nodes)} x {op}{" " * bool(reason)}{reason} (first: {nodes[0]!r})'
                for (op, reason), nodes in self.unsupported.items()
            ]
            raise ModelError(f'{self.name} contains what is not supported: {"; ".join(items)}')

    def _results(self, results: Sequence[Any]) -> None:
        """Outputs by number; the only one is called 'output'."""
        for number, node in enumerate(results):
            name = 'output' if len(results) == 1 else f'output_{number}'
            value = self.values.get(node) if node is not None else None
            if not isinstance(value, Value):
                raise ModelError(
                    f'{self.name} returns {node!r} as result {number}; only tensors are supported'
                )
            self.outputs.append((name, value.name))


def _bound(node: Any) -> dict[str, Any]:
    """Arguments by their names in the schema, with its defaults."""
    arguments = node.target._schema.arguments
    found = {a.name: a.default_value for a in arguments if a.has_default_value()}
    found |= {a.name: given for a, given in zip(arguments, node.args, strict=False)}
    return found | dict(node.kwargs)


def _nodes(node: Any) -> Iterable[Any]:
    return node.all_input_nodes
