"""What `plan.build` returns: a kernel bound to its constants, called with numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.errors import ArrayError
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.cpu.calls import Results
from tilewright.runtime.cpu.kernel import Kernel, as_operand


def made_of(group: Group, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Constants as kernels take them, of those that a caller gives (`Group.given`)."""
    made = dict(constants)
    for name, source in group.given:
        if name in made:
            (tensor,) = source.with_role('input')
            array = as_operand(replace(tensor, name=name), made[name])
            made[name] = reference(source, {tensor.name: array}).astype(NUMPY[tensor.dtype])
    return made


class Bound:
    """A group with those of its constants that were given ahead; the others come with each call."""

    def __init__(self, group: Group, constants: Mapping[str, np.ndarray]) -> None:
        self.group = group
        self._inputs = [t.name for t in group.with_role('input')]
        wanted = {t.name for t in group.with_role('constant')}
        unknown = set(constants) - wanted
        if unknown:
            raise ArrayError(
                f'{group.label} has no constant {sorted(unknown)}; it takes {sorted(wanted)}'
            )
        self._constants = made_of(group, constants)
        self._missing = sorted(wanted - set(constants))

    def _check(self, inputs: Sequence[np.ndarray], constants: Mapping[str, np.ndarray]) -> None:
        """Raise unless a call has every input, and exactly the constants that are missing."""
        if len(inputs) != len(self._inputs):
            raise ArrayError(
                f'{self.group.label} takes {len(self._inputs)} inputs ({", ".join(self._inputs)}), '
                f'got {len(inputs)}'
            )
        if sorted(constants) != self._missing:
            raise ArrayError(
                f'{self.group.label} was built without {self._missing}, called with '
                f'{sorted(constants)}; pass exactly the constants that were not built in'
            )


class BuiltGroup(Bound):
    """A compiled group. `conv(x)` allocates the result, `conv(x, out=y)` writes into y.

    Constants given at construction are packed once. Those that are not must come with every call,
    by name, and are packed again each time. Calls from several threads run side by side. Arrays
    that are ready are used where they are, also those that have the buffer protocol, `__array__` or
    DLPack alone. Memory of results that nobody holds any more is used for the next ones.
    """

    def __init__(self, kernel: Kernel, group: Group, constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(group, constants)
        self._kernel = kernel
        self._packed = None if self._missing else kernel.pack(self._constants)
        self._calls = None if self._packed is None else kernel.calls(self._packed)
        self._new = Results(group.output.shape, NUMPY[group.output.dtype]).new

    def __call__(
        self, *inputs: np.ndarray, out: np.ndarray | None = None, **constants: np.ndarray
    ) -> np.ndarray:
        """Inputs in group order; constants that were not built in, by name."""
        result = self._new() if out is None else out
        if self._calls is not None and not constants and self._calls.run((*inputs, result)):
            return result
        self._check(inputs, constants)
        named = dict(zip(self._inputs, inputs, strict=True))
        if self._calls is not None and self._packed is not None:
            with self._calls.held() as context:
                self._kernel.run(named, self._packed, result, context)
        else:
            packed = self._kernel.pack({**self._constants, **made_of(self.group, constants)})
            self._kernel.run(named, packed, result)
        return result

    def __repr__(self) -> str:
        return f'<built {self.group.label}, {self._kernel.parts} threads>'
