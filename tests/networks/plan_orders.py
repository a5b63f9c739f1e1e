"""What a plan does, found by running it: tags instead of numbers, in every order that matters.

An event begins and ends. As it begins it spoils what it is going to write, as it ends it writes;
what it reads, and what it is about to write, has to be as it was in between. Memory is cut where
any access begins or ends, and each cell holds the tag of what was written there last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.memory import Memory
from tilewright.graph.memory_proof import box
from tilewright.graph.program import Program
from tilewright.graph.proof import Access, Event, Region


class Simulator:
    """Events as lists of (cell, tag) that they read and write."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        edges: dict[int, set[int]] = {}
        for access in _all(events):
            for a, b in access.region.runs():
                edges.setdefault(access.block, set()).update((access.at + a, access.at + b))
        self.edges = {block: sorted(found) for block, found in edges.items()}
        self.writers: dict[Hashable, list[tuple[int, Access]]] = {}
        for number, event in enumerate(events):
            for access in event.writes:
                self.writers.setdefault(access.value, []).append((number, access))
        self.writes = [list(self._cells(e.writes)) for e in events]
        self.reads = [self._meant(n) for n in range(len(events))]

    def _cells(self, accesses: Sequence[Access]) -> Iterator[tuple[tuple, tuple]]:
        """((block, first byte of a cell), (value, byte of the value)) of all that is touched."""
        for access in accesses:
            edges = self.edges[access.block]
            for a, b in access.region.runs():
                for at in edges[edges.index(access.at + a) : edges.index(access.at + b)]:
                    yield (access.block, at), (access.value, at - access.at + access.first)

    def _meant(self, number: int) -> list[tuple[tuple, tuple]]:
        """What an event reads, with the writer that is meant: the last one before it."""
        found = []
        for cell, (value, byte) in self._cells(self.events[number].reads):
            who = self.writers.get(value, ())
            writer = max((n for n, a in who if n < number and _covers(a, byte)), default=None)
            found.append((cell, (value, byte, writer)))
        return found

    def is_wrong(self) -> bool:
        """Whether some event reads something else than it means, in some order."""
        return any(self._fails(order) for order in dict.fromkeys(self.orders()))

    def is_wrong_in_a_row(self) -> bool:
        """The same of one order: that in which events are given."""
        return self._fails(list(itertools.product(range(len(self.events)), (0, 1))))

    def orders(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """(event, 0: begins, 1: ends): for every two, one goes last and the other next to last."""
        moments = list(itertools.product(range(len(self.events)), (0, 1)))
        needs = {
            (n, turn): {(n, 0)} if turn else {(other, 1) for other in self.events[n].after}
            for n, turn in moments
        }
        yield tuple(moments)
        for last, late in itertools.permutations(moments, 2):
            order: list[tuple[int, int]] = []
            done: set[tuple[int, int]] = set()
            while len(order) < len(moments):
                ready = [m for m in moments if m not in done and needs[m] <= done]
                ready.sort(key=lambda m: (m == last) * 2 + (m == late))
                order.append(ready[0])
                done.add(ready[0])
            yield tuple(order)

    def _fails(self, order: Sequence[tuple[int, int]]) -> bool:
        memory: dict[tuple, tuple] = {}
        for number, ends in order:
            own = {tag for _, tag in self.writes[number]}
            for cell, (value, byte, writer) in self.reads[number]:
                if ends and (value, byte) in own:  # it may change what it reads
                    continue
                if writer is None or memory.get(cell) != (value, byte, writer):
                    return True
            for cell, tag in self.writes[number]:
                if ends and memory[cell] != (*tag, number, 'half'):
                    return True
                if not ends:
                    memory[cell] = (*tag, number, 'half')
            if ends:
                memory |= {cell: (*tag, number) for cell, tag in self.writes[number]}
        return False


def _covers(access: Access, byte: int) -> bool:
    return any(a <= byte - access.first < b for a, b in access.region.runs())


def _all(events: Sequence[Event]) -> Iterator[Access]:
    for event in events:
        yield from event.reads
        yield from event.writes


class Replay:
    """A program run on tags, one task after the other, in the memory that a plan gives it.

    A tag is for a word of four bytes, which everything in these programs consists of.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        numbers = {value: number for number, value in enumerate(program.values, 1)}
        self.tags = {}
        for value, kind in program.values.items():
            assert np.dtype(DTYPES[kind.dtype]).itemsize == 4
            root, first = program.place(value)
            self.tags[value] = np.arange(math.prod(kind.shape)) + first + (numbers[root] << 32)

    def is_wrong(self, memory: Memory) -> bool:
        """Whether some task, or the caller in the end, finds other bytes than it means."""
        try:
            return self._run(memory)
        except (IndexError, KeyError):  # outside, or nowhere
            return True

    def _run(self, memory: Memory) -> bool:
        program, tags = self.program, self.tags
        given = [('input', name) for name in program.inputs]
        given += [('constant', name) for name in program.constants]
        arrays = {('arena', ''): np.zeros(memory.arena_bytes // 4, np.int64)}
        arrays |= {('output', name): np.zeros_like(tags[value]) for name, value in program.outputs}
        arrays |= {(kind, name): tags[name].copy() for kind, name in given}

        def found(value: str) -> np.ndarray:
            place = memory.places[value]
            array, (first, rest) = arrays[place.kind, place.name], divmod(place.offset, 4)
            if rest or not 0 <= first <= array.size - tags[value].size:
                raise IndexError
            return array[first : first + tags[value].size]

        for task in program.tasks:
            # Constants are packed ahead.
            reads = [task.operands[tensor.name] for tensor in task.group.with_role('input')]
            if any((found(value) != tags[value]).any() for value in reads):
                return True
            target, tag = found(task.result), tags[task.result]
            whole = Region(0, 4 * target.size)
            for first, end in (box(task.group) if task.writes_part else whole).runs():
                target[first // 4 : end // 4] = tag[first // 4 : end // 4]
            if any((found(value) != tags[value]).any() for value in reads):
                return True
        for name, value in memory.copies:
            arrays['output', name][:] = found(value)
        wanted = [('output', name, value) for name, value in program.outputs]
        wanted += [(kind, name, name) for kind, name in given]
        return any((arrays[kind, name] != tags[value]).any() for kind, name, value in wanted)
