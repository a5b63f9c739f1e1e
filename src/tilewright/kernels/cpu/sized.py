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
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tilewright.errors import ScheduleError

# Words, strings, pragmas and fractions are skipped; group 1 is a whole number, which may be written
# as an unsigned one or as a float that holds it exactly. Group 2 is a fraction: 1 / 400 of a mean.
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|#[^\n]*|[A-Za-z_]\w*|0[xX][0-9a-fA-F]+\w*'
    r'|(\d+)(?:(?=ul\b)|(?=\.0f\b)(?<!\d{8})|(?![\w.]))'
    r'|((?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?)\w*|\d+\w*',
    re.DOTALL,
)
_INVERSE = '\x01'  # behind a number whose inverse is meant, as a float
_SUFFIXES = (('ul', ''), ('.0f', '(float)'))  # behind a number, and before what replaces it
_COMMENT = re.compile(r'/\*.*?\*/', re.DOTALL)
_SHUFFLE = '__builtin_shufflevector('
_CALLS = re.compile(r'__builtin_shufflevector\(|[()]')
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
    """

    numbers: tuple[int, ...]
    parts: int
    scratch_bytes: int
    packed_bytes: int
    packing: str


@dataclass(frozen=True)
class SourceAtSize:
    """One generated source, its numbers taken out.

    pieces   the text around the numbers: piece, number, piece, number, .., piece
    parts, scratch_bytes, packed_bytes    what its three size functions return
    packing  hash of all that `tw_pack` does: equal ones pack the same constants alike
    tables, zeros    what its tables hold, and how long its rows of zeros are
    """

    pieces: tuple[str, ...]
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
        return _hash('\0'.join(self.pieces))

    def call(self, numbers: tuple[int, ...]) -> SizedCall:
        """What a kernel is told to compute as this source does."""
        return SizedCall(
            numbers, self.parts, self.scratch_bytes, self.packed_bytes, self.packing
        )  # fmt: skip


def read_source(text: str) -> SourceAtSize:
    """[C source] -> its form and its numbers."""
    text = text[text.index('*/') + 2 :]  # the first comment names sizes, for people
    sizes = {name: int(value) for name, value in _SIZE.findall(text)}
    if len(sizes) != 3:
        raise ScheduleError('a source without its three size functions cannot be shared by sizes')
    text = _SIZE.sub(r'long \1(void) { return -1; }', text)
    text = _COMMENT.sub('', text)  # they name sizes, too
    tables = tuple(
        tuple(int(v) for v in found[2].split(',') if v.strip()) for found in _TABLE.finditer(text)
    )
    zeros = tuple(int(found[2]) for found in _ZEROS.finditer(text))
    text = _ZEROS.sub(r'\1[];', _TABLE.sub(r'\1[] = {};', text))
    pieces: list[str] = []
    numbers: list[int] = []
    done = 0
    gap = ''
    for function in _FUNCTION.finditer(text):
        first, *rest = _pieces(function[0])
        gap += f'{text[done : function.start()]}{first}'
        for piece in rest:
            if isinstance(piece, int):
                pieces.append(gap)
                numbers.append(piece)
            else:
                gap = piece
        done = function.end()
    pieces.append(gap + text[done:])
    return SourceAtSize(
        tuple(pieces), tuple(numbers), sizes['tw_parts'], sizes['tw_scratch_bytes'],
        sizes['tw_packed_bytes'], _packing(text), tables, zeros,
    )  # fmt: skip


@lru_cache(maxsize=1 << 12)
def _pieces(function: str) -> tuple[str | int, ...]:
    """Text, number, text, .., text. Most functions are the same at many sizes."""
    found: list[str | int] = []
    done, mark, constant = 0, '', _lanes(function)
    for token in _TOKEN.finditer(function):
        whole = token[1] is not None and not constant[token.start()]
        number = int(token[1]) if whole else _inverse_of(token[0]) if token[2] else 0
        if whole or number:
            found += [mark + function[done : token.start()], number]
            done, mark = token.end(), '' if whole else _INVERSE
    return (*found, mark + function[done:])


def _inverse_of(text: str) -> int:
    """n where this is how `1 / n` is written as a float; else 0."""
    value = float(text.rstrip('f'))
    number = round(1 / value) if 1e-7 < value < 1 else 0
    return number if number and text == _inverse(number) else 0


def _inverse(number: int) -> str:
    return f'{1 / number}f'


def _lanes(function: str) -> bytearray:
    """1 where the lanes stand that shuffles pick, which C wants to be constant."""
    found = bytearray(len(function) + 1)
    if _SHUFFLE not in function:
        return found
    opened: list[int] = []
    for token in _CALLS.finditer(function):
        if token[0] != ')':
            opened.append(token.start() if token[0] == _SHUFFLE else -1)
        elif (start := opened.pop()) >= 0:
            picked = _LANES.search(function, max(start, token.end() - LANES_TEXT), token.end())
            if picked:
                low, high = picked.span()
                found[low:high] = b'\1' * (high - low)
    return found


def _packing(text: str) -> str:
    """`tw_pack` and every function that it calls, and those call."""
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(text)}
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

    pieces: tuple[str, ...]
    fixed: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, ...], ...]
    scratch: int | None = None
    tables: tuple[tuple[int, ...], ...] = ()
    zeros: tuple[int, ...] = ()

    @classmethod
    def of(cls, members: Sequence[SourceAtSize]) -> SizedSource:
        """What sources of one form have in common."""
        columns: dict[tuple[int, ...], list[int]] = {}
        fixed = []
        for at, column in enumerate(zip(*(m.numbers for m in members), strict=True)):
            if len(set(column)) == 1:
                fixed.append((at, column[0]))
            else:
                columns.setdefault(column, []).append(at)
        rooms = {member.scratch_bytes for member in members}
        return cls(
            members[0].pieces, tuple(fixed), tuple(map(tuple, columns.values())),
            rooms.pop() if len(rooms) == 1 else None,
            tuple(max(some, key=len) for some in zip(*(m.tables for m in members), strict=True)),
            tuple(map(max, zip(*(m.zeros for m in members), strict=True))),
        )  # fmt: skip

    def numbers(self, member: SourceAtSize) -> tuple[int, ...] | None:
        """What the kernel is given to compute as this source does; the first is `scratch_bytes`.

        None: it cannot, because a number differs that it holds fixed.
        """
        have = member.numbers
        if self.scratch not in (None, member.scratch_bytes) or not self.holds(member):
            return None
        if any(have[at] != number for at, number in self.fixed):
            return None
        if any(len({have[at] for at in some}) > 1 for some in self.places):
            return None
        return (member.scratch_bytes, *(have[some[0]] for some in self.places))

    def holds(self, member: SourceAtSize) -> bool:
        """Whether its tables and rows of zeros begin as this source's do."""
        return _begin(self.tables, member.tables) and all(
            have >= wanted for have, wanted in zip(self.zeros, member.zeros, strict=True)
        )

    @property
    def source(self) -> str:
        """The C of the kernel."""
        words = [''] * (len(self.pieces) - 1)
        for at, number in self.fixed:
            words[at] = str(number)
        for number, some in enumerate(self.places, 1):
            for at in some:
                words[at] = f'tw_n[{number}]'
        pieces = list(self.pieces)
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
