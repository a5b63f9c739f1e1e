"""Shows that a memory plan computes what its program means, or says where it does not.

Goes in: blocks of memory, and events (tasks, kernels, copies) in an order in which they may run,
each with the earlier ones that it waits for and the bytes that it reads and writes. Comes out:
nothing, or a `PlanError`. It knows nothing of how a plan was made: no lives, no levels.

What events mean is what they compute one after the other, with every value in memory of its own. A
plan is right if every read `r` finds the bytes of the writer `w` that it means there:

    w is among what r waits for, directly or through others;
    whatever else writes one of these bytes has ended before w begins, or begins after r has ended;
    r looks where w wrote.

Where one of these does not hold, there is an order that the waits allow in which r sees other
bytes: no plan that is right is refused. A kernel may read what it writes (sums are kept in memory),
so that every writer also counts as a reader of its own bytes.

Bytes are intervals. A value is cut where any access to it begins or ends; that an event writes a
piece is one bit, and all that has ended before an event one number. The writes that overlap a piece
are those that begin before its end, less those that end before its beginning: two prefixes of
sorted lists. So the time grows with the number of accesses, not with pairs of them or with bytes.
What a branch of a concatenation writes in every image of a batch is one piece that repeats.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from tilewright.errors import PlanError

REMEDY = (
    'this is a mistake of tilewright, not of the model: report it, and compile with passes=() or '
    'for another target'
)


class Region(NamedTuple):
    """Bytes behind a pointer: `run` of them from `start` on, repeated.

    levels   (bytes from one to the next, how many), the outermost first; none: one run
    """

    start: int
    run: int
    levels: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        end = self.start + self.run
        for step, count in self.levels:
            end += step * (count - 1)
        return end

    def runs(self) -> Iterator[tuple[int, int]]:
        """All runs as (first byte, the one behind the last)."""
        starts = [self.start]
        for step, count in self.levels:
            starts = [start + step * turn for start in starts for turn in range(count)]
        return ((start, start + self.run) for start in starts)


class Access(NamedTuple):
    """What an event reads or writes through one pointer.

    value   whose bytes are meant; whatever tells values apart
    first   the byte of the value that the pointer points at
    block   the number of the block that it points into
    at      at which byte of that
    region  what is touched, from the pointer on
    align   bytes: what `at` has to be a multiple of
    label   the value in messages
    """

    value: Hashable
    first: int
    block: int
    at: int
    region: Region
    align: int
    label: str


class Event(NamedTuple):
    """Something that runs: its name in messages, and the numbers of events that it waits for."""

    name: str
    reads: Sequence[Access]
    writes: Sequence[Access]
    after: Sequence[int]


class Block(NamedTuple):
    """Memory of its own: 'the arena', an array of the caller."""

    name: str
    bytes: int


def chain(number: int) -> tuple[int, ...]:
    """What an event waits for that runs behind the one before it."""
    return (number - 1,) if number else ()


def prove(network: str, blocks: Sequence[Block], events: Sequence[Event]) -> None:
    """Raise PlanError unless every read of every event finds what it means, whatever the order."""
    _Proof(network, blocks, events).check()


@dataclass(slots=True)
class _Piece:
    """Bytes of one value that every access to it touches all or none of.

    writers, readers   (number of the event, byte of the block that byte 0 of the value is, block)
    """

    region: Region
    label: str
    writers: list[tuple[int, int, int]]
    readers: list[tuple[int, int, int]]


class _Write(NamedTuple):
    """One event that writes one piece, which lies from byte `first` to `end` of a block."""

    piece: _Piece
    event: int
    base: int
    block: int
    first: int
    end: int


class _Proof:
    def __init__(self, network: str, blocks: Sequence[Block], events: Sequence[Event]) -> None:
        self.network, self.blocks, self.events = network, blocks, events

    def check(self) -> None:
        self._check_waits()
        self._check_places()
        self.writes: list[_Write] = []
        self.bits = [0] * len(self.events)  # of all writes of an event
        pieces = list(self._pieces())
        firsts = [self._number(piece) for piece in pieces]
        firsts.append(len(self.writes))
        self._order()
        self._sort()
        for piece, (first, end) in zip(pieces, itertools.pairwise(firsts), strict=True):
            if end != first + 1 or not self._is_fine(piece, first):
                self._check_piece(piece, range(first, end))

    def _check_waits(self) -> None:
        for number, event in enumerate(self.events):
            for other in event.after:
                if not 0 <= other < number:
                    self._refuse(
                        f'{event.name} waits for event {other}, which is not one of the {number} '
                        f'before it'
                    )

    def _check_places(self) -> None:
        """Everything lies inside its memory, at an address that kernels can take."""
        sizes = [block.bytes for block in self.blocks]
        seen: set[int] = set()
        for event in self.events:
            for access in (*event.reads, *event.writes):
                if id(access) in seen:
                    continue
                seen.add(id(access))
                _, _, number, at, region, align, label = access
                if not region.run:
                    continue
                if not 0 <= number < len(sizes):
                    self._refuse(f'{event.name} needs {label}, which is in no memory')
                if at + region.start < 0 or at + region.end > sizes[number]:
                    self._refuse(
                        f'{event.name} needs {label} at '
                        f'{_bytes(at + region.start, at + region.end)} of '
                        f'{self.blocks[number].name}, which has {sizes[number]} bytes'
                    )
                if at % align:
                    self._refuse(
                        f'{event.name} needs {label} at a multiple of {align} bytes, and it lies '
                        f'at byte {at} of {self.blocks[number].name}'
                    )

    def _pieces(self) -> Iterator[_Piece]:
        touched: dict[Hashable, list[tuple[int, bool, Access]]] = {}
        for number, event in enumerate(self.events):
            for written, accesses in ((False, event.reads), (True, event.writes)):
                for access in accesses:
                    if access.value in touched:
                        touched[access.value].append((number, written, access))
                    elif access.region.run:
                        touched[access.value] = [(number, written, access)]
        for listed in touched.values():
            one = listed[0][2]
            for _, _, access in listed:
                if access is not one and (access.first, access.region) != (one.first, one.region):
                    yield from _cut(listed)
                    break
            else:
                yield _whole(listed)

    def _number(self, piece: _Piece) -> int:
        """Give every writer of a piece its bit; the first of them."""
        count, region = len(self.writes), piece.region
        writers = piece.writers if len(piece.writers) < 2 else dict.fromkeys(piece.writers)
        for event, base, block in writers:
            self.bits[event] |= 1 << len(self.writes)
            first, end = base + region.start, base + region.end
            self.writes.append(_Write(piece, event, base, block, first, end))
        return count

    def _order(self) -> None:
        """For each event the writes that have ended when it begins, and that begin when it has
        ended.
        """
        self.before = [0] * len(self.events)
        self.behind = [0] * len(self.events)
        for number, event in enumerate(self.events):
            seen = 0
            for other in event.after:
                seen |= self.before[other] | self.bits[other]
            self.before[number] = seen
        for number in range(len(self.events) - 1, -1, -1):
            seen = self.behind[number] | self.bits[number]
            for other in self.events[number].after:
                self.behind[other] |= seen

    def _sort(self) -> None:
        """By block: beginnings of writes with all that begin before each, and the same of ends."""
        bits: dict[int, list[int]] = {}
        for bit, write in enumerate(self.writes):
            bits.setdefault(write.block, []).append(bit)
        self.begun, self.ended = {}, {}
        for block, own in bits.items():
            if len(own) > 1:
                self.begun[block] = _prefixes([(self.writes[bit].first, bit) for bit in own])
                self.ended[block] = _prefixes([(self.writes[bit].end, bit) for bit in own])

    def _overlapping(self, write: _Write) -> int:
        """All other writes that touch bytes between the first and the last of this one.

        Its own bit may be among them.
        """
        if write.block not in self.begun:
            return 0
        starts, begun = self.begun[write.block]
        ends, ended = self.ended[write.block]
        return begun[bisect_left(starts, write.end)] & ~ended[bisect_right(ends, write.first)]

    def _is_fine(self, piece: _Piece, bit: int) -> bool:
        """Whether all is well with a piece that one event writes, as nearly all are."""
        write = self.writes[bit]
        where, late = (write.base, write.block), self.behind[write.event]
        for event, base, block in piece.readers:
            if not self.before[event] >> bit & 1 or (base, block) != where:
                return False
            late &= self.behind[event]
        allowed = self.before[write.event] | late | 1 << bit
        return not self._overlapping(write) & ~allowed

    def _check_piece(self, piece: _Piece, bits: range) -> None:
        """Each reader sees the last writer before it, and nobody comes between the two."""
        versions = {bit: [self.writes[bit].event] for bit in bits}
        reading = {event for event, _, _ in piece.readers}
        for event, base, block in piece.readers:
            meant = next((b for b in reversed(bits) if self.writes[b].event < event), None)
            where = _bytes(piece.region.start, piece.region.end)
            if meant is None:
                self._refuse(
                    f'{self.events[event].name} reads {where} of {piece.label}, which nothing has '
                    f'written before'
                )
            write = self.writes[meant]
            if not self.before[event] >> meant & 1:
                self._refuse(
                    f'{self.events[event].name} reads {where} of {piece.label} and does not wait '
                    f'for {self.events[write.event].name}, which writes them'
                )
            if (write.base, write.block) != (base, block):
                self._refuse(
                    f'{self.events[event].name} reads {where} of {piece.label} in '
                    f'{self._place(piece, base, block)}, but {self.events[write.event].name} '
                    f'writes them to {self._place(piece, write.base, write.block)}'
                )
            versions[meant].append(event)
        own = (1 << bits.stop) - (1 << bits.start)
        for bit, readers in versions.items():
            write = self.writes[bit]
            if bit > bits.start and write.event not in reading:
                self._refuse(
                    f'{self.events[self.writes[bit - 1].event].name} and '
                    f'{self.events[write.event].name} both write '
                    f'{_bytes(piece.region.start, piece.region.end)} of {piece.label}'
                )
            self._check_version(bit, write, readers, own)

    def _check_version(self, bit: int, write: _Write, readers: list[int], own: int) -> None:
        """Nobody overwrites what `write` wrote, from its beginning until its readers have ended."""
        late = self.behind[write.event]
        for event in readers:
            late &= self.behind[event]
        others = self._overlapping(write) & ~own & ~(self.before[write.event] | late)
        while others:
            found = (others & -others).bit_length() - 1
            others &= others - 1
            self._check_pair(write, found, readers)
        rest = own & ~(1 << bit) & ~self.before[write.event]
        if rest:
            for event in readers:
                found = rest & ~self.behind[event]
                while found:
                    other = (found & -found).bit_length() - 1
                    found &= found - 1
                    if self.writes[other].event != event:  # what it reads itself, it may change
                        self._check_pair(write, other, [event])

    def _check_pair(self, write: _Write, bit: int, readers: list[int]) -> None:
        """Refuse if both have a byte in common."""
        other = self.writes[bit]
        shared = _common(write, other)
        if shared is None:
            return
        unsafe = [e for e in readers if not self.behind[e] >> bit & 1]
        event = other.event if other.event in unsafe else unsafe[-1]
        name, hurt = self.events[other.event].name, write.piece.label
        where = f'{_bytes(*shared)} of {self.blocks[write.block].name}'
        if event == other.event:
            self._refuse(
                f'{name} overwrites {where}, which hold {hurt}, while it needs them itself'
            )
        if event == write.event:
            self._refuse(
                f'{name} may write {where} while {self.events[event].name} computes {hurt} there'
            )
        self._refuse(
            f'{name} may overwrite {where}, which hold {hurt}, before {self.events[event].name} '
            f'has read them'
        )

    def _place(self, piece: _Piece, base: int, block: int) -> str:
        start, end = base + piece.region.start, base + piece.region.end
        return f'{_bytes(start, end)} of {self.blocks[block].name}'

    def _refuse(self, why: str) -> NoReturn:
        raise PlanError(f'{self.network}: its memory plan is wrong: {why}; {REMEDY}')


def _prefixes(marks: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """(positions in order, for each number of them the bits of so many)."""
    marks.sort()
    sums, seen = [0], 0
    for _, bit in marks:
        seen |= 1 << bit
        sums.append(seen)
    return [position for position, _ in marks], sums


def _bytes(first: int, end: int) -> str:
    return f'bytes {first} to {end - 1}'


def _common(one: _Write, other: _Write) -> tuple[int, int] | None:
    """The first bytes that both write; None where one lies in gaps of the other."""
    if _take_turns(one, other):
        return None
    a, b = list(_runs(one)), list(_runs(other))
    i = j = 0
    while i < len(a) and j < len(b):
        first, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if first < end:
            return first, end
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return None


def _take_turns(one: _Write, other: _Write) -> bool:
    """Whether both repeat by the same step, at places of it that have nothing in common."""
    (a, b) = one.piece.region, other.piece.region
    if not a.levels or not b.levels or a.levels[0][0] != b.levels[0][0]:
        return False
    step, origin = a.levels[0][0], one.base + a.start
    taken: list[tuple[int, int]] = []
    for base, region in ((one.base, a), (other.base, b)):
        for start, end in _one_turn(region).runs():
            first = (base + start - origin) % step
            taken.append((first, first + end - start))
    taken.sort()
    apart = all(end <= first for (_, end), (first, _) in itertools.pairwise(taken))
    return apart and taken[-1][1] <= step + taken[0][0]


def _runs(write: _Write) -> Iterator[tuple[int, int]]:
    return ((write.base + a, write.base + b) for a, b in write.piece.region.runs())


def _whole(listed: Sequence[tuple[int, bool, Access]]) -> _Piece:
    """A value whose accesses all touch the same bytes, as one piece."""
    one = listed[0][2]
    region = one.region._replace(start=one.first + one.region.start) if one.first else one.region
    piece = _Piece(region, one.label, [], [])
    for number, written, access in listed:
        who = (number, access.at - access.first, access.block)
        (piece.writers if written else piece.readers).append(who)
    return piece


def _cut(listed: Sequence[tuple[int, bool, Access]]) -> Iterator[_Piece]:
    """A value in pieces, each with all accesses to it."""
    pieces, touched = _refined([access for _, _, access in listed])
    for (number, written, access), own in zip(listed, touched, strict=True):
        who = (number, access.at - access.first, access.block)
        for piece in own:
            (piece.writers if written else piece.readers).append(who)
    yield from pieces


def _refined(accesses: Sequence[Access]) -> tuple[list[_Piece], list[list[_Piece]]]:
    """The pieces of a value, and for each access those that it touches.

    Accesses that repeat (channels of every image of a batch) are cut once for all their turns, if
    nothing else touches a part of the turns; else every turn is cut by itself.
    """
    turns = _turns(accesses)
    cuts: set[int] = set()
    within: dict[int, list[tuple[int, Region]]] = {}
    for number, access in enumerate(accesses):
        first, region = access.first, access.region
        if region.levels and first in turns:
            step, count = turns[first]
            cuts |= {first, first + step * count}
            within.setdefault(first, []).append((number, _one_turn(region)))
        else:
            cuts.update(first + edge for run in region.runs() for edge in run)
    edges = sorted(cuts)
    label, made = accesses[0].label, []
    touched: list[list[_Piece]] = [[] for _ in accesses]
    for first, end in itertools.pairwise(edges):
        if first not in turns:
            made.append([_Piece(Region(first, end - first), label, [], [])])
            continue
        made.append([])
        for region, numbers in _shared(within[first], turns[first][0]):
            levels = (turns[first], *region.levels)
            piece = _Piece(Region(first + region.start, region.run, levels), label, [], [])
            made[-1].append(piece)
            for number in numbers:
                touched[number].append(piece)
    for access, own in zip(accesses, touched, strict=True):
        first, region = access.first, access.region
        if not region.levels or first not in turns:
            for a, b in region.runs():
                low, high = bisect_left(edges, first + a), bisect_left(edges, first + b)
                own += itertools.chain.from_iterable(made[low:high])
    return list(itertools.chain.from_iterable(made)), touched


def _one_turn(region: Region) -> Region:
    return region._replace(levels=region.levels[1:])


def _shared(
    listed: Sequence[tuple[int, Region]], step: int
) -> Iterator[tuple[Region, tuple[int, ...]]]:
    """The parts of a turn, each with the numbers of the accesses that touch all of it.

    Parts of the same accesses at equal distances (every second element of a row, of every second
    row) are one.
    """
    edges = {0, step}
    for _, region in listed:
        edges.update(edge for run in region.runs() for edge in run)
    points = sorted(edges)
    numbers: list[tuple[int, ...]] = [()] * (len(points) - 1)
    for number, region in listed:
        for a, b in region.runs():
            for place in range(bisect_left(points, a), bisect_left(points, b)):
                numbers[place] += (number,)
    alike: dict[tuple, list[int]] = {}
    for place, own in enumerate(numbers):
        alike.setdefault((own, points[place + 1] - points[place]), []).append(points[place])
    for (own, run), starts in alike.items():
        levels = _levels(starts)
        if levels is not None:
            yield Region(starts[0], run, levels), own
        else:
            yield from ((Region(start, run), own) for start in starts)


def _levels(starts: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
    """Places in order as levels of a region; None where they are not at equal distances, nor equal
    groups of such places at equal distances, and so on.
    """
    if len(starts) == 1:
        return ()
    apart = starts[1] - starts[0]
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    count = next((n for n, gap in enumerate(gaps, 1) if gap != apart), len(starts))
    group = [place - starts[0] for place in starts[:count]]
    firsts = starts[::count]
    if [first + place for first in firsts for place in group] != list(starts):
        return None
    outer = _levels(firsts)
    return None if outer is None else (*outer, (apart, count))


def _turns(accesses: Sequence[Access]) -> dict[int, tuple[int, int]]:
    """first byte -> (bytes of a turn, turns) of what repeats; nothing where it cannot be folded."""
    found: dict[int, tuple[int, int]] = {}
    for access in accesses:
        if access.region.levels:
            turn = _turn(access)
            if turn is None or found.setdefault(access.first, turn) != turn:
                return {}
    spans = sorted((first, first + step * count) for first, (step, count) in found.items())
    if any(end > first for (_, end), (first, _) in itertools.pairwise(spans)):
        return {}
    for access in accesses:
        if not access.region.levels:
            a = access.first + access.region.start
            b = a + access.region.run
            if any(a < end and first < b and not (a <= first and end <= b) for first, end in spans):
                return {}
    return found


def _turn(access: Access) -> tuple[int, int] | None:
    """(bytes of a turn, turns) of a region that repeats; None where one reaches into the next."""
    region = access.region
    fits = region.start >= 0 and _one_turn(region).end <= region.levels[0][0]
    return region.levels[0] if fits else None
