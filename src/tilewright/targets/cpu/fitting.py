"""Kernels whose weights fit: time against memory, over all groups of a network.

Goes in: a few choices for every group, best first, and the bytes that all packed weights may take.
Comes out: the choices that remain, of which the first are to be used. A Winograd kernel holds its
weights transformed, several times as many as there were, and where a network is large that is more
memory than anybody expects. Starting from the fastest of each, the exchange that costs least time
for each byte it saves is made until all fit, or nothing more can be saved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tilewright.graph.program import Program
from tilewright.ops.group import Group
from tilewright.schedule.choice import Choice
from tilewright.schedule.schedule import Schedule
from tilewright.store import choices
from tilewright.targets.cpu.choose import is_legal, source_of
from tilewright.targets.cpu.kernels import distinct

LEAST_BYTES = 240 << 20
FACTOR = 2.2
Size = Callable[[Group, Schedule], int]
Offer = Callable[[Sequence[Group]], Sequence[Sequence[Choice]]]


def weight_limit(program: Program) -> int:
    """Bytes that the packed weights of a network may take: 240 MiB, or 2.2 times its own."""
    return max(LEAST_BYTES, int(FACTOR * constant_bytes(program)))


def constant_bytes(program: Program) -> int:
    """Bytes of a network's constants, as they are before kernels pack them."""
    return sum(array.nbytes for array in program.constants.values())


def fit(
    program: Program,
    chosen: Mapping[str, Sequence[Choice]],
    limit_bytes: int,
    size: Size | None = None,
    offer: Offer | None = None,
) -> dict[str, tuple[Choice, ...]]:
    """For every group the choices that may be used, the one to use first.

    `offer` is asked for more choices, of groups whose weights grew, where they do not fit.
    """
    size = size or packed_bytes
    groups = distinct(program)
    copies = _copies(program)
    at = dict.fromkeys(groups, 0)
    bytes_of = {digest: [size(groups[digest], chosen[digest][0].schedule)] for digest in groups}
    total = sum(copies[digest] * found[0] for digest, found in bytes_of.items())
    if total <= limit_bytes:
        return {digest: tuple(found) for digest, found in chosen.items()}
    if offer is not None:
        grown = [d for d in groups if bytes_of[d][0] > 1.5 * _own_bytes(groups[d])]
        more = dict(zip(grown, offer([groups[d] for d in grown]), strict=True))
        chosen = {d: (*found, *more.get(d, ())) for d, found in chosen.items()}
    chosen = {
        digest: tuple(c for c in found if is_legal(groups[digest], c.schedule))
        for digest, found in chosen.items()
    }
    bytes_of = {
        digest: [size(groups[digest], choice.schedule) for choice in chosen[digest]]
        for digest in groups
    }
    calls = Counter(task.group.digest for task in program.tasks)
    while total > limit_bytes:
        swaps = []
        for digest, found in chosen.items():
            now = at[digest]
            for other in range(len(found)):
                saved = copies[digest] * (bytes_of[digest][now] - bytes_of[digest][other])
                if saved > 0:
                    lost = calls[digest] * (found[other].predicted_s - found[now].predicted_s)
                    swaps.append((lost / saved, digest, other, saved))
        if not swaps:
            break
        _, digest, other, saved = min(swaps)
        at[digest] = other
        total -= saved
    return {
        digest: (
            found[at[digest]],
            *(
                choice
                for number, choice in enumerate(found)
                if number != at[digest] and bytes_of[digest][number] <= bytes_of[digest][at[digest]]
            ),
        )
        for digest, found in chosen.items()
    }


def _own_bytes(group: Group) -> int:
    return sum(tensor.bytes for tensor in group.with_role('constant'))


def _copies(program: Program) -> Counter[str]:
    """How many sets of weights each group has: tasks that share theirs count once."""
    sets = {
        (task.group.digest, tuple(task.operands[t.name] for t in task.group.with_role('constant')))
        for task in program.tasks
    }
    return Counter(digest for digest, _ in sets)


def packed_bytes(group: Group, schedule: Schedule) -> int:
    """Bytes of a kernel's packed constants: what the generated source says of itself."""
    key = choices.key_of({'packed': group.digest, 'schedule': schedule.digest})
    kept = choices.recall(key)
    if isinstance(kept, int):
        return kept
    found = re.search(r'tw_packed_bytes\(void\) \{ return (\d+);', source_of(group, schedule))
    assert found is not None, 'every kernel has tw_packed_bytes'
    choices.keep(key, int(found[1]))
    return int(found[1])
