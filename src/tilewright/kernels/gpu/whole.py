"""Whole numbers in CUCL: those of 8 bits are moved up to sixteen at once, as words.

Goes in: a dtype. Comes out: lines that load or store neighbours, as `half.py` has them for halves.
An element is computed with as an int.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.gpu.language import ELEMENT

KINDS = ('i32', 'u8', 'i8')
_IN_WORD = 4


def load(name: str, count: int, place: str, dtype: str) -> list[str]:
    """name[0] to name[count - 1] from `count` neighbours at `place`, which is aligned to them."""
    if dtype == 'i32' or count == 1:
        return [f'{name}[{q}] = ({place})[{q}];' for q in range(count)]
    if count < _IN_WORD:
        words, lines = (
            ['bits'],
            [f'const unsigned bits = *(const GLOBAL unsigned short *)({place});'],
        )
    elif count == _IN_WORD:
        words, lines = ['bits'], [f'const unsigned bits = *(const GLOBAL unsigned *)({place});']
    else:
        wide = count // _IN_WORD
        words, lines = [f'v.{part}' for part in 'xyzw'[:wide]], []
        lines = [f'const float{wide} v = LOAD{wide}(GLOBAL, {place});']
        words = [f'FLOAT_BITS({word})' for word in words]
    return ['{', *(f'    {line}' for line in [*lines, *_apart(name, count, words, dtype)]), '}']


def unpacked(name: str, words: Sequence[str], dtype: str) -> list[str]:
    """name[0], name[1], .. from the bytes of some words, which are floats by their type."""
    bits = [f'FLOAT_BITS({word})' for word in words]
    return _apart(name, _IN_WORD * len(words), bits, dtype)


def _apart(name: str, count: int, words: Sequence[str], dtype: str) -> list[str]:
    kind = ELEMENT[dtype]
    return [
        f'{name}[{q}] = ({kind})({words[q // _IN_WORD]} >> {8 * (q % _IN_WORD)});'
        for q in range(count)
    ]


def store(values: Sequence[str], place: str, dtype: str) -> list[str]:
    """Neighbours at `place`, which is aligned to them, at once."""
    if dtype == 'i32' or len(values) == 1:
        kind = ELEMENT[dtype]
        return [f'({place})[{q}] = ({kind})({value});' for q, value in enumerate(values)]
    if len(values) < _IN_WORD:
        return [f'*(GLOBAL unsigned short *)({place}) = (unsigned short)({_joined(values)});']
    words = [_joined(values[n : n + _IN_WORD]) for n in range(0, len(values), _IN_WORD)]
    if len(words) == 1:
        return [f'*(GLOBAL unsigned *)({place}) = {words[0]};']
    floats = ', '.join(f'BITS_FLOAT({word})' for word in words)
    if len(words) == 2:
        return [f'STORE2(GLOBAL, (GLOBAL float *)({place}), {floats});']
    return [f'STORE4(GLOBAL, {place}, FLOAT4({floats}));']


def _joined(values: Sequence[str]) -> str:
    """A word of bytes."""
    return ' | '.join(
        f'((unsigned)({value}) & 0xffu)' + (f' << {8 * q}' if q else '')
        for q, value in enumerate(values)
    )
