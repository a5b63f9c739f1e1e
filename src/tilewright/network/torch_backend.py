"""`torch.compile(module, backend='tilewright')`.

PyTorch's tracer cuts a function into graphs and hands each to this backend, with weights among the
inputs. At the first call with given shapes a graph is imported and compiled, with its weights as
constants; when weights have changed since, it is compiled again. Whatever cannot be compiled runs
as PyTorch runs it, with one warning that says why. Where gradients are wanted, forward and backward
graphs are compiled, with weights as inputs (torch_training.py).

    torch.compile(module, backend='tilewright', options={'tune': 'measure', 'threads': 2})
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tilewright.errors import InputError, TilewrightError
from tilewright.importers.torch import import_torch, import_traced
from tilewright.network.compile import compile as compile_graph
from tilewright.runtime.cpu.network import Network

MOST_SHAPES = 16  # compiled networks that one graph keeps
# What `options` may hold: whatever `compile` takes beside the network.
OPTIONS = tuple(inspect.signature(compile_graph).parameters)[1:]


def tilewright(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: [torch.fx.GraphModule] -> [callable]. `options` are those of `compile`."""
    chosen = dict(options or {})
    if mode is not None and 'tune' not in chosen:
        chosen['tune'] = 'measure' if mode.startswith('max-autotune') else 'model'
    if _wants_gradients(example_inputs):
        from tilewright.network.torch_training import training_graph

        return training_graph(
            module, example_inputs, chosen, lambda part, own: _Graph(part, (), own, traced=True)
        )
    return _Graph(module, example_inputs, chosen)


def _wants_gradients(arguments: Sequence[Any]) -> bool:
    torch: Any = import_module('torch')
    return torch.is_grad_enabled() and any(
        isinstance(a, torch.Tensor) and a.requires_grad for a in arguments
    )


class _Weight:
    """A weight as it was: which tensor, at which address, written to how often."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.state = weakref.ref(tensor), self._state(tensor)

    def is_still(self, tensor: Any) -> bool:
        """Not its `id`: a tensor that replaces another may get that of the one before."""
        return self.tensor() is tensor and self.state == self._state(tensor)

    @staticmethod
    def _state(tensor: Any) -> tuple[int, int]:
        plain = str(tensor.layout) == 'torch.strided'  # others have no address
        version = 0 if tensor.is_inference() else tensor._version
        return tensor.data_ptr() if plain else 0, version


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A network for one set of shapes, and which weights it was made from.

    weights  each of them as it was
    given    numbers of the arguments that are its inputs
    results  for each result the number of the argument that it is, or None
    """

    network: Network
    weights: tuple[_Weight, ...]
    given: tuple[int, ...]
    results: tuple[int | None, ...]


class _Graph:
    """One graph of PyTorch's tracer, compiled for every set of shapes that it is called with."""

    def __init__(
        self, module: Any, examples: Sequence[Any], options: Mapping[str, Any], traced: bool = False
    ) -> None:
        """`traced`: of ATen operators already, and all that it is given are inputs."""
        self.torch: Any = import_module('torch')
        self.module, self.options, self.traced = module, options, traced
        self.fixed = tuple(
            number for number, given in enumerate(examples) if self._is_weight(given)
        )
        self.compiled: OrderedDict[tuple, _Compiled] = OrderedDict()
        self.eager = False

    def _is_weight(self, given: Any) -> bool:
        """Parameters, and buffers of modules, which the tracer marks."""
        utils = import_module('torch._dynamo.utils')
        return isinstance(given, self.torch.nn.Parameter) or (
            isinstance(given, self.torch.Tensor)
            and utils.get_static_address_type(given) is not None
        )

    def __call__(self, *arguments: Any) -> Any:
        if self.eager or _wants_gradients(arguments):
            return self.module(*arguments)
        key = tuple(
            (tuple(a.shape), a.dtype, a.device.type) if isinstance(a, self.torch.Tensor) else a
            for number, a in enumerate(arguments)
            if number not in self.fixed
        )
        weights = [arguments[number] for number in self.fixed]
        found = self.compiled.get(key)
        if found is None or not all(map(_Weight.is_still, found.weights, weights)):
            try:
                found = self._compile(arguments, tuple(map(_Weight, weights)))
            except TilewrightError as reason:
                self.eager = True
                warnings.warn(
                    f'a graph of {len(self.module.graph.nodes)} nodes runs in PyTorch instead: '
                    f'{reason}',
                    stacklevel=2,
                )
                return self.module(*arguments)
            self.compiled[key] = found
            if len(self.compiled) > MOST_SHAPES:
                self.compiled.popitem(last=False)
        return self._run(found, arguments)

    def _compile(self, arguments: Sequence[Any], weights: tuple[_Weight, ...]) -> _Compiled:
        unknown = sorted(self.options.keys() - OPTIONS)
        if unknown:
            raise InputError(
                f'options has {unknown[0]!r}, which is not known; known are {", ".join(OPTIONS)}'
            )
        foreign = [a for a in arguments if isinstance(a, self.torch.Tensor) and not _on_cpu(a)]
        if foreign:
            raise TilewrightError(f'it has tensors on {foreign[0].device}; only the CPU is known')
        graph = (
            import_traced(self.module)
            if self.traced
            else import_torch(
                self.module,
                example_inputs=tuple(arguments),
                constants={number: arguments[number] for number in self.fixed},
            )
        )
        given = tuple(
            number
            for number, argument in enumerate(arguments)
            if number not in self.fixed and isinstance(argument, self.torch.Tensor)
        )
        names = [value.name for value in graph.inputs]
        results = tuple(
            given[names.index(value)] if value in names else None for _, value in graph.outputs
        )
        return _Compiled(compile_graph(graph, **self.options), weights, given, results)

    def _run(self, found: _Compiled, arguments: Sequence[Any]) -> tuple[Any, ...]:
        network = found.network
        arrays = {
            value.name: arguments[number].detach().numpy()
            for value, number in zip(network.inputs, found.given, strict=True)
        }
        answers = network.run(arrays).values()
        return tuple(
            self.torch.from_numpy(answer) if number is None else arguments[number]
            for answer, number in zip(answers, found.results, strict=True)
        )


def _on_cpu(tensor: Any) -> bool:
    return tensor.device.type == 'cpu'
