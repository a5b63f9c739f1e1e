"""Training: a whole step as one call.

    step = tw.compile_training(module, 'cross_entropy', tw.SGD(0.1, momentum=0.9), (x, y))
    for x, y in batches:
        loss = step(x, y)
    module.load_state_dict(step.state_dict())

Goes in: a network, a loss, an optimiser. Comes out: `TrainingStep`, which holds parameters, the
optimiser's slots, running statistics and counters, and replaces them at every call: forward, loss,
backward and updates are one program (graph/training.py), compiled as any network is. On a CPU state
lies in two sets of arrays that take turns, since a kernel may read a parameter while its successor
is written; on a GPU it stays on the device, and is changed in place (device_state.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import ArrayError, CheckError, InputError
from tilewright.files import path_of, replacing
from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.result import part_written
from tilewright.graph.optimizer import SGD, Adam, Optimizer
from tilewright.graph.training import (
    LOSS,
    LOSSES,
    NEXT,
    RATE,
    STEP,
    TrainedGraph,
    step_program,
    trainable,
)
from tilewright.network.compile import compile, is_module, read
from tilewright.network.device_state import DeviceState
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.network_arrays import by_position, new_array

Loss = str | Callable[..., Any] | None

# The most that a product of a step on a GPU is expected to be off by: gradients add up what many
# layers are off by, and are to stay within 1e-5 (docs/training.md).
GPU_LIMIT = 3e-6


def compile_training(
    network: Any,
    /,
    loss: Loss,
    optimizer: Any,
    example_inputs: Sequence[Any] = (),
    *,
    parameters: Sequence[str] | None = None,
    check_nan: bool = False,
    **options: Any,
) -> TrainingStep:
    """A training step that is ready to run.

    network  a torch.nn.Module, or whatever `compile` reads: its float constants are learned then.
    loss     'cross_entropy', 'mse' or 'l1', of the first output and a target, which is the last
             input of a step; for a module any function of PyTorch's, loss(output, target). None:
             the network returns its loss.
    optimizer  tw.SGD, tw.Adam or tw.AdamW, or one of PyTorch's of these kinds, whose numbers are
             taken.
    example_inputs  what a module is traced with: its inputs, then the target.
    parameters  names of the constants that are learned; None: all. Of a module those that require
             gradients.
    check_nan  raise a CheckError at the step whose loss is not finite, with the task that made it.
    options  of `compile`: target, tune, threads, algorithm, .. With memory='2GB' what the backward
             pass reads of the forward pass is kept as far as that goes, and else computed again.
             max_rel_err is 3e-6 on a GPU where nothing else is said.
    """
    if is_module(network):
        if parameters is not None:
            raise InputError('parameters= is for graphs; of a module set requires_grad instead')
        trained = _of_module(network, loss, example_inputs)
    else:
        if callable(loss):
            raise InputError(f'loss= of a graph is one of {", ".join(LOSSES)}, or None')
        graph = read(network, options.pop('shapes', None), None, options.pop('constants', None))
        trained = trainable(graph, loss, parameters)
    return TrainingStep(trained, optimizer_of(optimizer), check_nan, options)


def _of_module(module: Any, loss: Loss, examples: Sequence[Any]) -> TrainedGraph:
    from tilewright.importers.torch import import_training, torch_loss

    return import_training(module, torch_loss(loss) if isinstance(loss, str) else loss, examples)


def optimizer_of(given: Any) -> Optimizer:
    """The rule that a caller names: one of ours, or one of PyTorch's with the same numbers."""
    if isinstance(given, SGD | Adam):
        return given
    kind, groups = type(given).__name__, getattr(given, 'param_groups', None)
    if kind not in ('SGD', 'Adam', 'AdamW') or not groups:
        raise InputError(f'optimizer is a {kind}; give tw.SGD, tw.Adam or tw.AdamW')
    numbers = {k: v for k, v in groups[0].items() if k != 'params'}
    if any({k: v for k, v in g.items() if k != 'params'} != numbers for g in groups[1:]):
        raise InputError(f'{kind} has groups of parameters with different numbers; give one group')
    asked = [w for w in ('dampening', 'amsgrad', 'maximize') if numbers.get(w)]
    if asked:
        raise InputError(f'{kind} with {asked[0]}={numbers[asked[0]]} is not supported')
    lr, decay = float(numbers['lr']), float(numbers['weight_decay'])
    if kind == 'SGD':
        return SGD(lr, float(numbers['momentum']), decay, bool(numbers['nesterov']))
    first, second = numbers['betas']
    return Adam(lr, (float(first), float(second)), numbers['eps'], decay, kind == 'AdamW')


class TrainingStep:
    """A compiled step and its state. `step(x, y)` trains on a batch and returns its loss.

    `lr` may be set between calls. Calls from several threads are not for one step.
    """

    def __init__(
        self, trained: TrainedGraph, optimizer: Optimizer, check_nan: bool, options: Mapping
    ) -> None:
        program, state = step_program(trained, optimizer)
        self.name, self.lr, self.check_nan = program.name, float(optimizer.lr), check_nan
        self.inputs = trained.data
        self.parameters, self.buffers = tuple(trained.parameters), tuple(trained.buffers)
        limit = {} if options.get('target', 'cpu') == 'cpu' else {'max_rel_err': GPU_LIMIT}
        self.network = compile(program, **{**limit, **options})
        values = {v.name.removesuffix(NEXT): v for v in self.network.outputs}
        self._loss = new_array(values[LOSS])
        if isinstance(self.network, GpuNetwork):
            self._state = DeviceState(self.network, state)
            return
        self._state = {name: _placed(values[name], a) if name in values else np.array(a)
                       for name, a in state.items()}  # fmt: skip
        self._next = {name: new_array(values[name]) for name in state if name in values}

    def __call__(self, *arrays: Any, **named: Any) -> float:
        """One step on a batch: inputs in order, the target last, or by name."""
        given = self._given(arrays, named)
        if isinstance(self._state, DeviceState):
            return self._on_device(self._state, given)
        given |= self._state
        made = {f'{name}{NEXT}': array for name, array in self._next.items()}
        self.network.run(given, {**made, LOSS: self._loss})
        if self.check_nan and not np.isfinite(self._loss):
            self._blame(given)
        for name, array in self._next.items():
            self._next[name], self._state[name] = self._state[name], array
        return float(self._loss)

    def _on_device(self, state: DeviceState, given: Mapping[str, np.ndarray]) -> float:
        before = dict(state) if self.check_nan else {}
        self._loss = state.step(given)
        if self.check_nan and not np.isfinite(self._loss):
            try:
                state.write(before)
                self._blame({**given, **before})
            finally:
                state.write(before)  # tasks one by one have changed it
        return float(self._loss)

    def _given(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, np.ndarray]:
        given = by_position(self.name, self.inputs, [_array(a) for a in arrays])
        given |= {name: _array(array) for name, array in named.items()}
        return given | {RATE: np.array([self.lr], np.float32)}

    def profile(self, *arrays: Any, calls: int = 20) -> Any:
        """The time of every task of a step on a batch; the state stays as it is."""
        given = self._given(arrays, {}) | dict(self._state)
        return self.network.profile(*(given[v.name] for v in self.network.inputs), calls=calls)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return int(self._state[STEP][0])

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name, as tensors for a module's load_state_dict."""
        from tilewright.importers.torch import tensor_of

        return {name: tensor_of(self._state[name]) for name in (*self.parameters, *self.buffers)}

    def arrays(self) -> dict[str, np.ndarray]:
        """All that a step changes, by name: copies."""
        return {name: array.copy() for name, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Parameters and buffers from a module's state dict, or any of `arrays`."""
        if strict and (missing := [n for n in self.parameters if n not in state]):
            raise ArrayError(f'{self.name}: the state lacks {missing[0]!r}')
        for name, given in state.items():
            if name not in self._state:
                if strict:
                    raise ArrayError(f'{self.name} keeps no {name!r}')
                continue
            array, own = _array(given), self._state[name]
            if array.shape != own.shape:
                raise ArrayError(f'{name!r} has shape {array.shape}; it must be {own.shape}')
            if isinstance(self._state, DeviceState):
                self._state.write({name: array})
            else:
                own[...] = array

    def save(self, path: str | os.PathLike[str]) -> None:
        """A checkpoint: all of the state, written whole or not at all."""
        with replacing(path_of('path', path)) as file, open(file, 'wb') as target:
            np.savez(target, **self._state, **{RATE: np.array([self.lr])})  # pyright: ignore

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint: the next steps give the numbers that they would have given."""
        try:
            with np.load(path_of('path', path), allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f'{path} is not a checkpoint: {error}') from None
        rate = found.pop(RATE, None)
        if rate is None or set(found) != set(self._state):
            raise InputError(f'{path} is a checkpoint of another network or optimiser')
        self.load_state_dict(found)
        self.lr = float(rate[0])

    def _blame(self, given: Mapping[str, np.ndarray]) -> None:
        """The step again, task by task, up to the first that makes what is not finite."""
        found, number = self.name, self.steps + 1
        with contextlib.closing(self.network.step_by_step(given)) as moments:
            next(moments)
            for task, read_value in zip(self.network.tasks, moments, strict=False):
                array = read_value(task.result)[part_written(task.group)]
                if array.dtype.kind == 'f' and not np.isfinite(array).all():
                    found = f'{task.name} ({", ".join(task.origin)})'
                    break
        raise CheckError(
            f'{self.name}: the loss of step {number} is {float(self._loss)}, which first '
            f'appears in {found}; the state is that before the step: lower lr from {self.lr}, or '
            f'look at the inputs'
        )

    def __repr__(self) -> str:
        return (
            f'<training step of {self.name}: {len(self.parameters)} parameters, {self.steps} steps>'
        )


def _array(given: Any) -> np.ndarray:
    """An array, of a tensor too."""
    return given.detach().cpu().numpy() if hasattr(given, 'detach') else np.asarray(given)


def _placed(value: Any, array: np.ndarray) -> np.ndarray:
    made = new_array(value)
    made[...] = array.astype(DTYPES[value.dtype])
    return made
