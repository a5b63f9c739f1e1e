"""What `plan.build` returns: a kernel bound to its constants, called with numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.errors import ArrayError
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.cpu.kernel import Kernel, aligned_empty, as_operand


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
    by name, and are packed again each time. Calls from several threads take turns.
    """

    def __init__(self, kernel: Kernel, group: Group, constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(group, constants)
        self._kernel = kernel
        self._packed = None if self._missing else kernel.pack(self._constants)

    def __call__(
        self, *inputs: np.ndarray, out: np.ndarray | None = None, **constants: np.ndarray
    ) -> np.ndarray:
        """Inputs in group order; constants that were not built in, by name."""
        packed = self._packed
        if (
            packed is not None
            and out is not None
            and not constants
            and self._kernel.run_again(inputs, packed, out)
        ):
            return out
        self._check(inputs, constants)
        if packed is None:
            packed = self._kernel.pack({**self._constants, **made_of(self.group, constants)})
        if out is None:
            out = aligned_empty(self.group.output.shape, NUMPY[self.group.output.dtype])
        self._kernel.run(dict(zip(self._inputs, inputs, strict=True)), packed, out)
        return out

    def __repr__(self) -> str:
        return f'<built {self.group.label}, {self._kernel.parts} threads>'
