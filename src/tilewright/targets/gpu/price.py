"""What groups cost on a GPU, for the search for chains (search/fusion.py): predicted, not measured.

A task is priced by the search that will choose its kernels, and the answer is kept, so that those
that stay as they are cost nothing to price. Chains are many, and most are refused: the model looks
at fewer of their schedules, which makes them rather look slower than they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.registry import FALLBACK, GPU_SCHEMAS, schema_named
from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import compute_gflops, gpu_bounds
from tilewright.model.gpu.time import COSTS
from tilewright.ops.chain import is_chained
from tilewright.ops.group import Group
from tilewright.schedule.choice import Choice
from tilewright.search.fusion import Prices
from tilewright.targets.gpu.choose import choose_all, is_legal

CHAIN_TRIALS = 64  # schedules of a chain that the model looks at


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Seconds of a group's best schedule by the time model; `top` and the rest are what networks
    are searched with, so that both find the same answers.
    """

    machine: GpuMachine
    top: int
    max_rel_err: float
    algorithm: str = 'auto'

    def __call__(self, group: Group) -> float:
        """Infinite for a chain whose best kernels store its inner tensors in memory."""
        best = self._choices([group])[0][0]
        if is_chained(group) and not keeps_chains(schema_named(best.schedule.schema)):
            return math.inf
        return best.predicted_s

    def _choices(self, groups: Sequence[Group]) -> list[tuple[Choice, ...]]:
        """The choices of groups that are all chains, or all tasks as they were."""
        trials = CHAIN_TRIALS if any(map(is_chained, groups)) else None
        return choose_all(
            groups, self.machine, self.top, self.max_rel_err, trials=trials,
            algorithm=self.algorithm,
        )  # fmt: skip

    def bound(self, group: Group) -> float:
        """A launch; every sum computed once, by the fastest units that kernels of chains use; all
        but inner tensors moved once.
        """
        able = [
            kind for one in GPU_SCHEMAS.values() if keeps_chains(one) for kind in one.intrinsics
        ]
        kinds = [kind for kind in able if self.machine.has(kind)]
        peak = max(compute_gflops(self.machine, kind) for kind in kinds)
        flops = sum(stage.flops for stage in group.stages if stage.combiner)
        moved = gpu_bounds(group, self.machine)
        return COSTS.launch_s + max(flops / peak / 1e9, moved.l2_s, moved.dram_s)

    def why_not(self, group: Group) -> str:
        """Why no schema computes the group in one kernel."""
        able = [schema for schema in GPU_SCHEMAS.values() if keeps_chains(schema)]
        if any(_offers(schema, group, self.machine) for schema in able):
            return ''
        names = ', '.join(schema.name for schema in able)
        return (
            f'none of the GPU schemas that compute several stages in one kernel takes it: {names}'
        )

    @property
    def prices(self) -> Prices:
        return Prices(self, self.bound, self.why_not, self._choices)


def keeps_chains(schema: GpuSchema) -> bool:
    """Whether it computes several reducing stages in one kernel.

    The others are handed the part with the main stage, and the general one stores what lies between
    its kernels.
    """
    return schema.whole and schema is not FALLBACK


def _offers(schema: GpuSchema, group: Group, machine: GpuMachine) -> bool:
    try:
        if schema.table is not None:
            return bool(schema.table(group, 'fma'))
        proposed = schema.propose(group, machine) if schema.propose is not None else ()
        return any(is_legal(group, schedule, machine) for schedule in proposed)
    except ScheduleError:
        return False
