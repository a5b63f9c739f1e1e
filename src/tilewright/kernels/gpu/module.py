"""What a schema makes of a group: buffers, kernels that run once ahead, kernels of every call."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.gpu.language import Kernel
from tilewright.ops.group import Group


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a module: a tensor of the group, or what the schema needs beside.

    zeroed   has to hold zeros before the first call; kernels leave zeros behind
    """

    name: str
    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str = 'f32'
    zeroed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel whose arguments are buffers, (argument, buffer) each."""

    kernel: Kernel
    buffers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, kernel: Kernel, **other: str) -> Step:
        """Arguments are buffers of their own names, but for those given."""
        return cls(kernel, tuple((a.name, other.get(a.name, a.name)) for a in kernel.args))


@dataclass(frozen=True, slots=True)
class Module:
    """A group in kernels. `ahead` turns constants into what `steps` read, once."""

    group: Group
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    ahead: tuple[Step, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step.kernel for step in (*self.ahead, *self.steps))


def tensor_buffers(group: Group) -> tuple[Buffer, ...]:
    """Buffers of all tensors but inner ones."""
    return tuple(
        Buffer(t.name, t.dims, t.shape, t.dtype) for t in group.tensors if t.role != 'inner'
    )
