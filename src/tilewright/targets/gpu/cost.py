"""What passes over a network decide by on a GPU: seconds of a group, roughly, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import gpu_bounds
from tilewright.model.gpu.time import COSTS
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.parts import parts


@dataclass(frozen=True, slots=True)
class GpuCost:
    """The bound of a group, and a launch for each of its parts; a front of a sum is none
    (ops/front.py).

    At batch 1 most kernels take a few launches' time, so that whatever saves a launch pays.
    """

    machine: GpuMachine

    def __call__(self, group: Group) -> float:
        launches = 1 if has_front(group) else len(parts(group))
        return gpu_bounds(group, self.machine).seconds + COSTS.launch_s * launches
