"""What passes over a network decide by on a CPU: seconds of a group, roughly, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.machine.machine import Machine
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.parts import parts

CALL_S = 1e-6  # starting a kernel's threads


@dataclass(frozen=True, slots=True)
class CpuCost:
    """Seconds that a group takes, roughly: what passes decide by. Microseconds to ask.

    Arithmetic at peak, and every tensor moved once at the speed of the innermost cache that holds
    them all, which is where another task left them; the image of a sum of products is also copied,
    read and written. A kernel costs a start for each of its parts.
    """

    machine: Machine
    threads: int

    @property
    def words(self) -> str:
        """What words of integer products hold: what quantised tensors had best be stored as."""
        return self.machine.dot.dtype if self.machine.dot else ''

    def __call__(self, group: Group) -> float:
        machine, threads = self.machine, self.threads
        moved = group.compulsory_bytes
        level = next(
            (
                number
                for number in range(len(machine.caches))
                if moved <= threads * machine.capacity_bytes(number, threads)
            ),
            len(machine.caches),
        )
        if group.main.is_product_sum:
            read = [group.tensor(access.tensor) for access in group.main.reads]
            moved += 2 * sum(t.bytes for t in read if t.role != 'constant')
        seconds = moved / (1e9 * machine.bandwidth_gbps(level, threads))
        seconds += sum(s.flops for s in group.stages) / (1e9 * machine.peak_gflops(threads))
        return seconds + CALL_S * (1 if has_front(group) else len(parts(group)))
