"""What groups cost on a CPU, for the search for chains (search/fusion.py): predicted, not measured.

A group is priced by the search that will choose its kernel, and the answer is kept, so that tasks
that stay as they are cost nothing to price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import bound_times
from tilewright.ops.group import Group
from tilewright.search.fusion import Prices
from tilewright.targets.cpu.choose import choose_all


@dataclass(frozen=True, slots=True)
class CpuPrice:
    """Seconds of a group's best schedule; `top` and the rest are what networks are searched with,
    so that both find the same answers.
    """

    machine: Machine
    threads: int
    top: int
    max_rel_err: float
    algorithm: str = 'auto'

    def __call__(self, group: Group) -> float:
        return self._choices([group])[0]

    def _choices(self, groups: Sequence[Group]) -> list[float]:
        found = choose_all(
            groups, self.machine, self.threads, self.top, self.max_rel_err,
            algorithm=self.algorithm,
        )  # fmt: skip
        return [choices[0].predicted_s for choices in found]

    def bound(self, group: Group) -> float:
        """Every sum computed once, at peak, and every tensor moved once that is not an inner one.

        Nothing is taken off for Winograd: kernels of chains compute directly.
        """
        flops = sum(stage.flops for stage in group.stages if stage.combiner)
        times = bound_times(flops, group.compulsory_bytes, self.machine, self.threads)
        return max(times.values())

    def why_not(self, group: Group) -> str:
        """Why no schema keeps the group's inner tensors in a cache.

        Schemas of last resort do not count: they store each tensor as a whole.
        """
        isa = ISAS[self.machine.isa]
        reason = 'no CPU schema keeps inner tensors in a cache'
        for schema in SCHEMAS.values():
            if schema.last_resort or 'cache' not in schema.storage:
                continue
            why = schema.lacks(group, isa, (isa.dtype, isa.accumulation)) or schema.why_not(group)
            if not why:
                return ''
            reason = why
        return reason

    @property
    def prices(self) -> Prices:
        return Prices(self, self.bound, self.why_not, self._choices)
