"""What the recurrence schema decides before a line is written: blocks of units, places in memory.

Goes in: a group and a schedule. Comes out: `RecurrencePlan`. Weights are packed so that a block of
units reads one run of memory:

    packed[d][block][tile of gates][stream][k][vector of the stream]     units behind the last are
                                                                         zero

A few streams are read side by side where prefetchers follow each and have more under way
(`Isa.streams`).

Weights that are constant are packed ahead, others at the start of every call, into scratch. States
that steps hand on lie in scratch twice, [parity][d][n][unit]: a step reads one and writes the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.abi import aligned
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.phases import Phase, Product, StepPlan, step_plan
from tilewright.schedule.schedule import Schedule

LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class RecurrencePlan:
    """All that code is written from."""

    group: Group
    schedule: Schedule
    steps: StepPlan

    @property
    def dtype(self) -> str:
        return self.group.output.dtype

    @property
    def lanes(self) -> int:
        return ISAS[self.schedule.isa].vector_bytes // DTYPES[self.dtype]

    @property
    def unit(self) -> int:
        """Units of a block."""
        return self.schedule.reg.tile['h']

    @property
    def batch_tile(self) -> int:
        return self.schedule.reg.tile['n']

    @property
    def apart(self) -> bool:
        """Whether one direction follows the other, so that caches hold more of its weights."""
        return self.steps.directions > 1 and self.schedule.levels[-1].tile['d'] == 1

    @property
    def rounds(self) -> int:
        """Phases of all steps, between which threads wait for each other."""
        turns = self.steps.directions if self.apart else 1
        return turns * self.steps.steps * len(self.steps.phases)

    def blocks(self, phase: Phase) -> int:
        """Blocks of one direction."""
        return -(-phase.width // self.unit)

    def gate_tile(self, product: Product) -> int:
        """Gates whose sums are in registers at once: a divisor of all."""
        most = self.schedule.reg.tile['g']
        return max(g for g in range(1, product.gates + 1) if product.gates % g == 0 and g <= most)

    def streams(self, product: Product) -> int:
        """Runs of memory that the sums of a tile of gates read side by side."""
        vectors = self.gate_tile(product) * self.unit // self.lanes
        most = ISAS[self.schedule.isa].streams
        return max(s for s in range(1, most + 1) if vectors % s == 0)

    def packed_elements(self, phase: Phase, product: Product) -> int:
        items = self.steps.directions * self.blocks(phase)
        return items * product.units * product.gates * self.unit

    @cached_property
    def weights(self) -> dict[str, tuple[Phase, Product]]:
        return {p.weights: (phase, p) for phase in self.steps.phases for p in phase.products}

    @property
    def is_large(self) -> bool:
        """Whether the second cache of most machines does not hold a thread's weights, so that
        they are asked for ahead of time.
        """
        elements = sum(self.packed_elements(*found) for found in self.weights.values())
        return elements * DTYPES[self.dtype] > LARGE_BYTES * self.schedule.threads

    def row(self, tensor: str) -> int:
        """Elements from one sequence of a batch to the next, of a tensor in scratch."""
        return -(-self.steps.width(tensor) // self.lanes) * self.lanes

    @cached_property
    def constants(self) -> tuple[Mapping[str, int], int]:
        """Where constants lie in what is packed, in floats, and how many that are."""
        return self._places(t.name for t in self.group.with_role('constant'))

    @cached_property
    def scratch(self) -> tuple[Mapping[str, int], int]:
        """Where states, values between phases and weights that are not constant lie in scratch."""
        moving = [n for n in self.weights if self.group.tensor(n).role == 'input']
        return self._places([*self.steps.carried, *self.steps.kept, *moving])

    def _places(self, names) -> tuple[Mapping[str, int], int]:
        places, offset = {}, 0
        for name in names:
            places[name] = offset
            offset += aligned(self._elements(name) * DTYPES[self.group.tensor(name).dtype] // 4 + 1)
        return places, offset

    def _elements(self, name: str) -> int:
        if name in self.weights:
            return self.packed_elements(*self.weights[name])
        tensor = self.group.tensor(name)
        if tensor.role in ('input', 'constant'):
            return tensor.size
        copies = 2 if name in self.steps.carried else 1
        return copies * self.steps.directions * self.steps.batch * self.row(name)


def plan_recurrence(group: Group, schedule: Schedule) -> RecurrencePlan:
    """[Group, Schedule] -> [RecurrencePlan]; ScheduleError where the schedule is not legal."""
    stage = group.main
    if set(schedule.reg.tile) != set(stage.sizes):
        raise ScheduleError(f'{group.label}: the schedule does not tile {sorted(stage.sizes)}')
    steps = step_plan(group)
    made = RecurrencePlan(group, schedule, steps)
    if made.unit % made.lanes:
        raise ScheduleError(
            f'{group.label}: blocks of {made.unit} units; give whole vectors of {made.lanes}'
        )
    others = [d for d, _ in schedule.parallel if d != 'h']
    if others:
        raise ScheduleError(f'{group.label}: {others} cannot be cut between threads, only h can')
    write = steps.final.write
    if any(e.const or [c for _, c in e.terms] != [1] for e in write.index):
        raise ScheduleError(
            f'{group.label}: it writes a part of its result; give it one of its own'
        )
    return made
