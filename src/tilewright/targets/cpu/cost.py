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
    it, which is where another task left it; the image of a sum of products is also copied, read and
    written. A kernel costs a start for each of its parts. Tensors are priced one by one, so that a
    joined group, which has fewer of them, never costs more for what remains.
    """

    machine: Machine
    threads: int

    def __call__(self, group: Group) -> float:
        copied = group.main.reads if group.main.is_product_sum else ()
        image = {a.tensor for a in copied if group.tensor(a.tensor).role != 'constant'}
        seconds = sum(
            (3 if t.name in image else 1) * self._moved(t.bytes)
            for t in group.tensors
            if t.role != 'inner'
        )
        flops = sum(s.flops for s in group.stages)
        seconds += flops / (1e9 * self.machine.peak_gflops(self.threads))
        return seconds + CALL_S * (1 if has_front(group) else len(parts(group)))

    def _moved(self, size: int) -> float:
        """Seconds to move so many bytes once."""
        machine, threads = self.machine, self.threads
        level = next(
            (
                number
                for number in range(len(machine.caches))
                if size <= threads * machine.capacity_bytes(number, threads)
            ),
            len(machine.caches),
        )
        return size / (1e9 * machine.bandwidth_gbps(level, threads))
