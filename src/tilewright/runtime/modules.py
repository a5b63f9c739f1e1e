"""A module of GPU kernels on a device: buffers allocated, kernels compiled, constants prepared.

Goes in: a `Module` (codegen/gpu/module.py), a device, the constants. Comes out: a `Runner`, called
with numpy arrays by tensor name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.codegen.gpu.module import Module, Step
from tilewright.errors import ArrayError
from tilewright.runtime.device import NUMPY, Call, Device, NDArray, Program


class Runner:
    """One module, ready to be called; not for several threads at once."""

    def __init__(
        self, module: Module, device: Device, constants: Mapping[str, np.ndarray],
        programs: Sequence[Program] | None = None,
    ) -> None:  # fmt: skip
        """`programs` are the module's kernels if they were compiled before, in their order."""
        self.module, self.device = module, device
        if programs is None:
            programs = [device.compile(kernel) for kernel in module.kernels]
        self.arrays: dict[str, NDArray] = {}
        for buffer in module.buffers:
            array = device.empty(buffer.dims, buffer.sizes, buffer.dtype)
            if buffer.zeroed:
                device.write(array, np.zeros(buffer.sizes, NUMPY[buffer.dtype]))
            self.arrays[buffer.name] = array
        for tensor in module.group.with_role('constant'):
            self._write(tensor.name, constants)
        count = len(module.ahead)
        for step, program in zip(module.ahead, programs[:count], strict=True):
            device.launch(self._call(step, program))
        self.calls = [
            self._call(step, program)
            for step, program in zip(module.steps, programs[count:], strict=True)
        ]

    def _call(self, step: Step, program: Program) -> Call:
        return Call(program, {name: self.arrays[buffer] for name, buffer in step.buffers})

    def _write(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        array = self.arrays[name]
        if name not in values:
            raise ArrayError(f'{self.module.group.label}: no values were given for {name}')
        value = np.asarray(values[name])
        if value.shape != array.sizes or value.dtype.kind not in 'fiu':
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
