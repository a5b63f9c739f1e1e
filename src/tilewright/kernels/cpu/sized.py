"""Kernels that take sizes when they are called: one translation unit for many sizes of a group.

Goes in: the C that `generate` writes for one schedule at several sizes of a group. Sources that
differ by whole numbers inside functions alone have one *form*; numbers that differ among its sizes
are read from an array, `tw_n`, which the caller's arguments point at. Comes out: a `SizedSource`,
and for each size the numbers that it is called with.

    for (long i = 0; i < 100; i++)  and  .. i < 384; ..      ->    .. i < tw_n[0]; ..

So a kernel of any size computes exactly what `generate` says, and no schema knows of it. What is
part of the form: names (which micro-kernels a tail needs), text of the assembler, lanes that a
shuffle picks, and all that lies outside functions but for tables and rows of zeros: of those the
kernel has the longest, and sizes use its beginning. Functions that need numbers are handed the
array as their first argument.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.abi import SHARED
from tilewright.kernels.cpu.scratch import rooms

# Strings, pragmas and fractions are skipped, and digits inside words do not begin a number; group 1
# is a whole number, which may be written as an unsigned one or as a float that holds it exactly.
# Group 2 is a fraction: 1 / 400 of a mean.
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|#[^\n]*|(?<![\w.])(?:0[xX][0-9a-fA-F]+\w*'
    r'|(\d+)(?:(?=ul\b)|(?=\.0f\b)(?<!\d{8})|(?![\w.]))'
    r'|((?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?)\w*|\d+\w*)',
    re.DOTALL,
)
_GAP = '\0'  # where a number stood
_INVERSE = '\x01'  # behind a number whose inverse is meant, as a float
_SUFFIXES = (('ul', ''), ('.0f', '(float)'))  # behind a number, and before what replaces it
_COMMENT = re.compile(r'/\*.*?\*/', re.DOTALL)
_SHUFFLE = '__builtin_shufflevector('
_BRACKETS = re.compile(r'[()]')
_LANES = re.compile(r'(?:, -?\d+)+\)$')
LANES_TEXT = 128  # characters that the lanes of a shuffle take, at most
# Beginnings of the longest are those of every size: tables of positions, rows of zeros.
_TABLE = re.compile(r'^(static const int \w+)\[\] = \{([-\d, ]*)\};$', re.M)
_NO_ZEROS = re.compile(r'^(static const float \w+)\[\];$', re.M)
_ZEROS = re.compile(r'^(static const float \w+)\[(\d+)\];$', re.M)
_FUNCTION = re.compile(r'^[A-Za-z_][^\n]*\b(\w+)\([^()\n]*\) \{\n.*?^\}\n', re.M | re.S)
_SIZE = re.compile(
    r'^long (tw_parts|tw_scratch_bytes|tw_packed_bytes)\(void\) \{ return (\d+); \}$', re.M
)
_LAST_FIELD = 'char *scratch;'
_ENTRIES = ('tw_part', 'tw_pack')


@dataclass(frozen=True, slots=True)
class SizedCall:
    """What a library for many sizes is told of one of them.

    packing   what tells apart how constants are packed
    shared    whether parts share what they work in
    """

    numbers: tuple[int, ...]
    parts: int
    scratch_bytes: int
    packed_bytes: int
    packing: str
    shared: bool = False

    @property
    def scratch(self) -> tuple[int, int]:
        """What `Scratch` takes: (rooms, bytes of one)."""
        return rooms(self.parts, self.scratch_bytes, self.shared)


@dataclass(frozen=True)
class SourceAtSize:
    """One generated source, its numbers taken out.

    frame    the text with gaps where the numbers stood
    parts, scratch_bytes, packed_bytes    what its three size functions return
    packing  hash of all that `tw_pack` does: equal ones pack the same constants alike
    tables, zeros    what its tables hold, and how long its rows of zeros are
    """

    frame: str
    numbers: tuple[int, ...]
    parts: int
    scratch_bytes: int
    packed_bytes: int
    packing: str
    tables: tuple[tuple[int, ...], ...] = ()
    zeros: tuple[int, ...] = ()

    @cached_property
    def form(self) -> str:
        """Hash of what sources that may share a kernel have in common."""
        return _hash(self.frame)

    @cached_property
    def array(self) -> np.ndarray:
        """Its numbers, to be compared at once."""
        return np.array(self.numbers, np.int64)

    def call(self, numbers: tuple[int, ...]) -> SizedCall:
        """What a kernel is told to compute as this source does."""
        return SizedCall(
            numbers, self.parts, self.scratch_bytes, self.packed_bytes, self.packing,
            SHARED in self.frame,
        )  # fmt: skip


def read_source(text: str) -> SourceAtSize:
    """[C source] -> its form and its numbers."""
    text = text[text.index('*/') + 2 :]  # the first comment names sizes, for people
    outside: list[str] = []
    frames: list[str] = []
    numbers: list[int] = []
    functions: dict[str, str] = {}
    done = 0
    for function in _FUNCTION.finditer(text):
        functions[function[1]], frame, found = _frame(function[0])
        outside.append(text[done : function.start()])
        frames.append(frame)
        numbers += found
        done = function.end()
    outside.append(text[done:])
    around = _COMMENT.sub('', _GAP.join(outside))  # they name sizes, too
    sizes = {name: int(value) for name, value in _SIZE.findall(around)}
    if len(sizes) != 3:
        raise ScheduleError('a source without its three size functions cannot be shared by sizes')
    around = _SIZE.sub(r'long \1(void) { return -1; }', around)
    tables = tuple(
        tuple(int(v) for v in found[2].split(',') if v.strip()) for found in _TABLE.finditer(around)
    )
    zeros = tuple(int(found[2]) for found in _ZEROS.finditer(around))
    first, *rest = _ZEROS.sub(r'\1[];', _TABLE.sub(r'\1[] = {};', around)).split(_GAP)
    pairs = itertools.chain.from_iterable(zip(frames, rest, strict=True))
    return SourceAtSize(
        ''.join((first, *pairs)), tuple(numbers), sizes['tw_parts'], sizes['tw_scratch_bytes'],
        sizes['tw_packed_bytes'], _packing(functions), tables, zeros,
    )  # fmt: skip


@lru_cache(maxsize=1 << 12)
def _frame(function: str) -> tuple[str, str, tuple[int, ...]]:
    """The text without comments, the same with gaps, and its numbers. Most functions are the same
    at many sizes.
    """
    text = _COMMENT.sub('', function)
    lines = list(map(_line, text.split('\n')))
    numbers = itertools.chain.from_iterable([found for _, found in lines])
    return text, '\n'.join([frame for frame, _ in lines]), tuple(numbers)


@lru_cache(maxsize=1 << 16)
def _line(text: str) -> tuple[str, tuple[int, ...]]:
    """The same of a line; a few thousand lines make up the sources of all sizes."""
    parts: list[str] = []
    numbers: list[int] = []
    done, constant = 0, _lanes(text)
    for token in _TOKEN.finditer(text):
        start, whole = token.start(), token[1]
        if whole is not None and not any(start in lanes for lanes in constant):
            number, mark = int(whole), _GAP
        elif token[2] and (number := _inverse_of(token[0])):
            mark = _GAP + _INVERSE
        else:
            continue
        parts += (text[done:start], mark)
        numbers.append(number)
        done = token.end()
    return ''.join((*parts, text[done:])), tuple(numbers)


def _inverse_of(text: str) -> int:
    """n where this is how `1 / n` is written as a float; else 0."""
    value = float(text.rstrip('f'))
    number = round(1 / value) if 1e-7 < value < 1 else 0
    return number if number and text == _inverse(number) else 0


def _inverse(number: int) -> str:
    return f'{1 / number}f'


def _lanes(line: str) -> list[range]:
    """Where the lanes stand that shuffles pick, which C wants to be constant."""
    found: list[range] = []
    start = line.find(_SHUFFLE)
    while start >= 0:
        end = _closed(line, start + len(_SHUFFLE))
        picked = _LANES.search(line, max(start, end - LANES_TEXT), end)
        if picked:
            found.append(range(*picked.span()))
        start = line.find(_SHUFFLE, start + 1)
    return found


def _closed(text: str, start: int) -> int:
    """The place behind the bracket that closes one before `start`."""
    depth = 1
    for bracket in _BRACKETS.finditer(text, start):
        depth += 1 if bracket[0] == '(' else -1
        if not depth:
            return bracket.end()
    return len(text)


def _packing(functions: Mapping[str, str]) -> str:
    """`tw_pack` and every function that it calls, and those call."""
    wanted, reached = ['tw_pack'], {}
    while wanted:
        name = wanted.pop()
        if name in functions and name not in reached:
            reached[name] = functions[name]
            wanted += re.findall(r'\b\w+(?=\()', functions[name])
    return _hash('\0'.join(reached[name] for name in sorted(reached)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SizedSource:
    """The kernel of one form.

    fixed    position of a number -> the number, where all sizes have the same
    places   for each number that a caller gives, the positions that it stands at
    scratch  bytes of each part, where all sizes have the same: a compiler does not vectorise loops
             that read scratch memory at a distance that it does not know
    tables, zeros    the longest of each
    """

    frame: str
    fixed: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, ...], ...]
    scratch: int | None = None
    tables: tuple[tuple[int, ...], ...] = ()
    zeros: tuple[int, ...] = ()

    @classmethod
    def of(cls, members: Sequence[SourceAtSize]) -> SizedSource:
        """What sources of one form have in common."""
        table = np.stack([member.array for member in members])
        same = (table == table[0]).all(axis=0)
        fixed = [(at, members[0].numbers[at]) for at in np.flatnonzero(same).tolist()]
        columns: dict[bytes, list[int]] = {}
        varying = np.flatnonzero(~same)
        for at, column in zip(
            varying.tolist(), np.ascontiguousarray(table[:, varying].T), strict=True
        ):
            columns.setdefault(column.tobytes(), []).append(at)
        rooms = {member.scratch_bytes for member in members}
        return cls(
            members[0].frame, tuple(fixed), tuple(map(tuple, columns.values())),
            rooms.pop() if len(rooms) == 1 else None,
            tuple(max(some, key=len) for some in zip(*(m.tables for m in members), strict=True)),
            tuple(map(max, zip(*(m.zeros for m in members), strict=True))),
        )  # fmt: skip

    def numbers(self, member: SourceAtSize) -> tuple[int, ...] | None:
        """What the kernel is given to compute as this source does; the first is `scratch_bytes`.

        None: it cannot, because a number differs that it holds fixed.
        """
        if self.scratch not in (None, member.scratch_bytes) or not self.holds(member):
            return None
        have, (at, number), (each, first) = member.array, self._fixed, self._equal
        if (have[at] != number).any() or (have[each] != have[first]).any():
            return None
        return (member.scratch_bytes, *(member.numbers[some[0]] for some in self.places))

    @cached_property
    def _fixed(self) -> np.ndarray:
        """[position, number] of what is fixed."""
        return np.array(self.fixed, np.int64).reshape(-1, 2).T

    @cached_property
    def _equal(self) -> np.ndarray:
        """[position, position]: numbers of the two have to be equal."""
        pairs = [(at, some[0]) for some in self.places for at in some[1:]]
        return np.array(pairs, np.int64).reshape(-1, 2).T

    def holds(self, member: SourceAtSize) -> bool:
        """Whether its tables and rows of zeros begin as this source's do."""
        return _begin(self.tables, member.tables) and all(
            have >= wanted for have, wanted in zip(self.zeros, member.zeros, strict=True)
        )

    @property
    def source(self) -> str:
        """The C of the kernel."""
        pieces = self.frame.split(_GAP)
        words = [''] * (len(pieces) - 1)
        for at, number in self.fixed:
            words[at] = str(number)
        for number, some in enumerate(self.places, 1):
            for at in some:
                words[at] = f'tw_n[{number}]'
        for at in range(len(words)):
            if pieces[at + 1].startswith(_INVERSE):
                told = words[at].startswith('tw_n')
                words[at] = f'(float)(1.0 / {words[at]})' if told else _inverse(int(words[at]))
                pieces[at + 1] = pieces[at + 1].removeprefix(_INVERSE)
        for at in (at for some in self.places for at in some):
            for suffix, cast in _SUFFIXES:
                if pieces[at + 1].startswith(suffix):
                    words[at] = cast + words[at]
                    pieces[at + 1] = pieces[at + 1].removeprefix(suffix)
        text = ''.join(a + b for a, b in zip(pieces, [*words, ''], strict=True))
        tables, zeros = iter(self.tables), iter(self.zeros)
        text = _TABLE.sub(lambda f: f'{f[1]}[] = {{{", ".join(map(str, next(tables)))}}};', text)
        text = _NO_ZEROS.sub(lambda f: f'{f[1]}[{next(zeros)}];', text)
        if self.scratch is not None:
            unknown = 'tw_scratch_bytes(void) { return -1; }'
            text = text.replace(unknown, unknown.replace('-1', str(self.scratch)), 1)
        return _handed_down(with_sizes(text), self.scratch is None)


def _begin(whole: Sequence[tuple[int, ...]], some: Sequence[tuple[int, ...]]) -> bool:
    """Whether tables are the beginnings of others."""
    return all(a[: len(b)] == b for a, b in zip(whole, some, strict=True))


def joined(members: Sequence[SourceAtSize]) -> list[list[SourceAtSize]]:
    """Sources of one form, in as few parts as their tables allow: in each, all tables are the
    beginnings of the longest.
    """
    parts: list[list[SourceAtSize]] = []
    for member in sorted(members, key=lambda m: [len(t) for t in m.tables], reverse=True):
        for part in parts:
            longest = [max(some, key=len) for some in zip(*(m.tables for m in part), strict=True)]
            pairs = zip(longest, member.tables, strict=True)
            if all(a[: len(b)] == b[: len(a)] for a, b in pairs):
                part.append(member)
                break
        else:
            parts.append([member])
    return parts


def with_sizes(head: str) -> str:
    """The declarations of a source (kernels/cpu/abi.py), for a kernel that is told its size."""
    head = head.replace(_LAST_FIELD, f'{_LAST_FIELD}\n    const long *sizes;', 1)
    return re.sub(r'(void tw_pack\()([^)]*\));', r'\1const long *tw_n, \2;', head, count=1)


def _handed_down(text: str, rooms_vary: bool) -> str:
    """Every function that needs numbers, or calls one that does, gets them."""
    found = list(_FUNCTION.finditer(text))
    bodies = {f[1]: f[0] for f in found}
    if rooms_vary:
        bodies = {n: body.replace('tw_scratch_bytes()', 'tw_n[0]') for n, body in bodies.items()}
    needy = {name for name, body in bodies.items() if 'tw_n[' in body} | {'tw_pack'}
    while True:
        called = re.compile(rf'\b({"|".join(sorted(needy - {*_ENTRIES}))})\(')
        more = {
            name
            for name, body in bodies.items()
            if name not in needy and needy - {*_ENTRIES} and called.search(_inside(body))
        }
        if not more:
            break
        needy |= more
    helpers = needy - {*_ENTRIES}
    for name, body in bodies.items():
        head, inside = body[: len(body) - len(_inside(body))], _inside(body)
        if helpers:
            inside = called.sub(r'\1(tw_n, ', inside)
        if name == 'tw_part':
            inside = f'    const long *tw_n = args->sizes;\n    (void)tw_n;\n{inside}'
        elif name in needy:
            head = head.replace(f'{name}(', f'{name}(const long *tw_n, ', 1)
        bodies[name] = head + inside
    return _FUNCTION.sub(lambda f: bodies[f[1]], text)


def _inside(body: str) -> str:
    """A function without its first line."""
    return body[body.index('\n') + 1 :]
