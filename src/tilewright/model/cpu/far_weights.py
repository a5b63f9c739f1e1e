"""What a kernel waits for weights that come from memory, as they do in a network of many.

Goes in: a group, a schedule, a machine. Comes out: seconds beyond the prediction, whose caches are
warm. A network that has more weights than the last cache holds finds none of them there from one
call to the next, and Winograd's algorithm has several times as many: a small image has few tiles to
multiply each of them with, so that more products may take less time than more weights.

    fetch   the weights' bytes / what micro-kernels get of memory's bandwidth, of one core or of all
    late    what is left of it once the products of first runs (model/cpu/winograd_time.py) of the
            first block of tiles are done

Kernels that compute directly, with fewer weights, wait for all of `fetch`.
"""

from __future__ import annotations

from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.winograd_time import cycles, work_of
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Of the bandwidth that a loop of loads reaches: in chains of equal 3x3 layers whose weights are far
# Winograd kernels of 9 to 19 MB of weights got 20.5 to 20.9 GB/s where such a loop gets 27 (two
# cores of a Cascade Lake); direct kernels of ResNet-50 took `fetch` longer than alone.
REACHED = 0.77


def are_far(weight_bytes: int, machine: Machine) -> bool:
    """Whether no cache keeps so many bytes from one call of a network to the next."""
    return weight_bytes > machine.caches[-1].usable_bytes


def late_seconds(group: Group, schedule: Schedule, machine: Machine) -> float:
    """[Group, Schedule, Machine] -> [seconds]"""
    if schedule.schema == 'winograd':
        return _late_points(group, schedule, machine)
    weights = sum(t.bytes for t in group.with_role('constant'))
    return weights / _memory(machine, schedule.threads)


def _late_points(group: Group, schedule: Schedule, machine: Machine) -> float:
    work, threads = work_of(group, schedule), schedule.threads
    if work.moving:
        return 0.0
    done = cycles(work, machine, threads)
    shape = work.shape
    own = 4 * shape.weights * shape.c * work.part[1] * work.part[2]  # of a thread
    every = 4 * shape.weights * shape.c * shape.g * shape.k
    fetch = max(own / _memory(machine, 1), every / _memory(machine, threads))
    cycle_s = ISAS[schedule.isa].flops_per_cycle * threads / (1e9 * machine.peak_gflops(threads))
    # Further blocks of tiles find weights where the first has left them.
    read = sum(words for _, words in done.streams)
    lead = sum(lead for lead, _ in done.streams) * own / (4 * read)
    return max(0.0, fetch - cycle_s * lead)


def _memory(machine: Machine, threads: int) -> float:
    """Bytes a second from memory."""
    return 1e9 * REACHED * machine.bandwidth_gbps(len(machine.caches), threads)
