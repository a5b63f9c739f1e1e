"""A module of GPU kernels on a device: buffers allocated, kernels compiled, constants prepared.

Goes in: a `Module` (kernels/gpu/module.py), a device, the constants. Comes out: a `Runner`, called
with numpy arrays by tensor name.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Container, Mapping, Sequence

import numpy as np

from tilewright.errors import ArrayError, TilewrightError
from tilewright.kernels.gpu.module import Module, Step
from tilewright.ops.dtypes import holds_floats
from tilewright.runtime.callable import Bound
from tilewright.runtime.gpu.device import NUMPY, Call, Device, NDArray, Program


def allocate(device: Device, module: Module, present: Container[str] = ()) -> dict[str, NDArray]:
    """Buffers of a module, but for those `present`; zeros where it wants them, or none at all."""
    made: dict[str, NDArray] = {}
    try:
        for buffer in module.buffers:
            if buffer.name not in present:
                made[buffer.name] = device.empty(buffer.dims, buffer.sizes, buffer.dtype)
                if buffer.zeroed:
                    device.write(made[buffer.name], np.zeros(buffer.sizes, NUMPY[buffer.dtype]))
    except TilewrightError:
        for array in made.values():
            device.free(array)
        raise
    return made


def calls_of(
    steps: Sequence[Step], programs: Sequence[Program], arrays: Mapping[str, NDArray]
) -> list[Call]:
    """Steps with their programs, bound to arrays by the names of their buffers."""
    return [
        Call(program, {name: arrays[buffer] for name, buffer in step.buffers})
        for step, program in zip(steps, programs, strict=True)
    ]


def _give_back(device: Device, arrays: Sequence[NDArray], programs: Sequence[Program]) -> None:
    """Memory and code of a runner; a device that has gone wrong keeps them."""
    with contextlib.suppress(TilewrightError):
        for array in arrays:
            device.free(array)
        for program in programs:
            device.unload(program)


class Runner:
    """One module, ready to be called; not for several threads at once.

    Its memory is given back when it is closed (also by a `with` statement), or when nobody holds it
    any more. Programs that were given stay whose they were.
    """

    def __init__(
        self, module: Module, device: Device, constants: Mapping[str, np.ndarray],
        programs: Sequence[Program] | None = None,
    ) -> None:  # fmt: skip
        """`programs` are the module's kernels if they were compiled before, in their order."""
        self.module, self.device = module, device
        own: list[Program] = []
        if programs is None:
            compiled = {kernel: device.compile(kernel) for kernel in dict.fromkeys(module.kernels)}
            own, programs = [*compiled.values()], [compiled[k] for k in module.kernels]
        self.arrays = allocate(device, module)
        self.close = weakref.finalize(self, _give_back, device, [*self.arrays.values()], own)
        self.close.atexit = False  # a driver may have ended before we do
        for tensor in module.group.with_role('constant'):
            self._write(tensor.name, constants)
        count = len(module.ahead)
        for call in calls_of(module.ahead, programs[:count], self.arrays):
            device.launch(call)
        self.calls = calls_of(module.steps, programs[count:], self.arrays)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        array = self.arrays[name]
        if name not in values:
            raise ArrayError(f'{self.module.group.label}: no values were given for {name}')
        value = np.asarray(values[name])
        known = value.dtype.kind in 'fiub' or holds_floats(value)
        if value.shape != array.sizes or not known:
            raise ArrayError(
                f'{self.module.group.label}: {name} is {":".join(array.dims)} with sizes '
                f'{array.sizes}, but an array {value.dtype} {value.shape} was passed'
            )
        self.device.write(array, np.ascontiguousarray(value, NUMPY[array.dtype]))

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        for tensor in self.module.group.with_role('input'):
            self._write(tensor.name, inputs)
        self.run()
        return self.arrays[self.module.group.output.name].numpy()

    def run(self) -> None:
        """All kernels on what the buffers hold."""
        for call in self.calls:
            self.device.launch(call)
        self.device.synchronize()

    def time(self, repeats: int) -> list[float]:
        return self.device.time(self.calls, repeats)


class BuiltModule(Bound):
    """What `plan.build` returns for a GPU: called like a `BuiltGroup`, `conv(x)` or with `out=`.

    Constants that were given are prepared once. Those that were not must come with every call, by
    name, and everything is prepared again each time.
    """

    def __init__(
        self, module: Module, device: Device, constants: Mapping[str, np.ndarray]
    ) -> None:  # fmt: skip
        super().__init__(module.group, constants)
        self.module, self.device = module, device
        self._programs = [device.compile(kernel) for kernel in module.kernels]
        self._runner = None if self._missing else self._prepared({})

    def _prepared(self, constants: Mapping[str, np.ndarray]) -> Runner:
        return Runner(
            self.module, self.device, {**self._constants, **constants}, self._programs
        )  # fmt: skip

    def __call__(
        self, *inputs: np.ndarray, out: np.ndarray | None = None, **constants: np.ndarray
    ) -> np.ndarray:
        """Inputs in group order; constants that were not built in, by name."""
        self._check(inputs, constants)
        given = dict(zip(self._inputs, inputs, strict=True))
        if self._runner is not None:
            result = self._runner(**given)
        else:
            with self._prepared(constants) as runner:
                result = runner(**given)
        if out is None:
            return result
        if out.shape != result.shape or out.dtype != result.dtype:
            raise ArrayError(
                f'{self.group.label}: out is {out.dtype} {out.shape}; give an array '
                f'{result.dtype} {result.shape}'
            )
        out[...] = result
        return out
