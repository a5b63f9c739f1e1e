"""What a schema makes of a group: buffers, kernels that run once ahead, kernels of every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.kernels.gpu.language import Kernel
from tilewright.ops.group import Group
from tilewright.ops.parts import depends_on_inputs


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


def with_own_dims(group: Group) -> Group:
    """The group with a name of its own for every dimension of a tensor, as arguments need it."""
    if all(len(set(t.dims)) == len(t.dims) for t in group.tensors):
        return group
    tensors = tuple(
        replace(t, dims=tuple(f'd{axis}' for axis in range(len(t.dims))))
        if len(set(t.dims)) < len(t.dims)
        else t
        for t in group.tensors
    )
    return replace(group, tensors=tensors)


def joined(group: Group, modules: Sequence[Module]) -> Module:
    """Modules of a group's parts as one, each tensor a single buffer."""
    if len(modules) == 1:
        return modules[0]
    buffers: dict[str, Buffer] = {}
    steps: list[Step] = []
    ahead: list[Step] = []
    for module, moving in zip(modules, depends_on_inputs(group), strict=True):
        buffers |= {buffer.name: buffer for buffer in module.buffers}
        ahead += module.ahead
        (steps if moving else ahead).extend(module.steps)
    return Module(group, tuple(buffers.values()), tuple(steps), tuple(ahead))
