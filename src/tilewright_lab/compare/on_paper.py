"""A network for a GPU that is not here: chosen, bound to memory and compiled, but not run.

Goes in: a program, a GPU. Comes out: the network on a device that runs nothing. What was chosen and
compiled lies in the cache, where a compilation on the GPU itself finds it: the model times nothing,
so that both choose the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.levels import by_levels
from tilewright.graph.passes import GPU_PASSES, apply_passes, passes_of
from tilewright.graph.program import Program
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.language import Kernel
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.machine.nvidia import nvidia_gpu
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.gpu.device import Call, Device, NDArray, Resources
from tilewright.runtime.gpu.device import Program as Compiled
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.targets.gpu.assemble import bound, chosen_by_model
from tilewright.targets.gpu.code import Code, cubins
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.site import KEPT

_TOLD = ('warp', 'registers', 'shared_bytes', 'shared_bytes_per_block', 'threads',
         'threads_per_block', 'blocks', 'l2_bytes', 'global_gbps')  # fmt: skip


class Paper(Device):
    """A CUDA device on which nothing runs; `kernels` are those that it was to compile."""

    name, dialect = 'paper', CUDA

    def __init__(self, machine: GpuMachine) -> None:
        self.machine = machine
        self.kernels: dict[Kernel, None] = {}

    @property
    def architecture(self) -> str:
        major, minor = self.machine.capability
        return f'sm_{major}{minor}' + ('a' if (major, minor) == (9, 0) else '')

    def compile(self, kernel: Kernel) -> Compiled:
        self.kernels[kernel] = None
        return Compiled(kernel, '', Resources(), None)

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        return NDArray(tuple(dims), tuple(sizes), dtype, self, None)

    def part(
        self, whole: NDArray, offset: int, dims: Sequence[str], sizes: Sequence[int], dtype: str
    ) -> NDArray:
        return self.empty(dims, sizes, dtype)

    def write(self, array: NDArray, values: np.ndarray) -> None:
        return

    def download(self, array: NDArray) -> np.ndarray:
        return np.zeros(array.sizes, np.float32)

    def launch(self, call: Call) -> None:
        return

    def synchronize(self) -> None:
        return

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        return [0.0] * repeats

    def built(self) -> dict[Kernel, Code]:
        """Machine code of all kernels, which is kept in the cache."""
        return cubins(self.kernels, self.architecture)


def as_driver_says(name: str) -> GpuMachine:
    """A known GPU of NVIDIA's as its driver describes it: what is chosen is kept under that."""
    known = known_gpu(name)
    told = {field: getattr(known, field) for field in _TOLD}
    return nvidia_gpu(
        f'NVIDIA {name.upper()}', known.capability, known.multiprocessors, known.clock_ghz, **told
    )


def on_paper(
    program: Program, machine: GpuMachine, max_rel_err: float = DEFAULT_LIMIT
) -> tuple[GpuNetwork, Paper]:
    """What `tilewright.compile` makes of a program on such a GPU, without other options."""
    wanted = passes_of(None, None, 'cuda')
    program = by_levels(apply_passes(program, wanted, GpuCost(machine), GPU_PASSES))
    groups = {task.group.digest: task.group for task in program.tasks}
    chosen = chosen_by_model(groups, machine, KEPT, max_rel_err)
    paper = Paper(machine)
    best = {digest: found[0] for digest, found in chosen.items()}
    return bound(program, best, paper, max_rel_err), paper
