"""CUCL: one small C-like kernel language for CUDA, OpenCL and the host (Boda Secs. 3.1-3.2).

Goes in: a `Kernel`, its body in CUCL, its arguments ND-arrays with *named* dimensions.
Comes out: `lower(kernel, dialect)`, a translation unit of that dialect.

CUCL is C with a few words that every dialect knows (`docs/cucl.md` lists them)

    THREAD  BLOCK_X BLOCK_Y BLOCK_Z     this thread in its block, this block in the grid
    BARRIER                             all threads of the block, shared memory included
    GLOBAL  SHARED                      address spaces of pointers
    LOAD4(space, p)  FMA(a, b, c)       16 bytes at once; one multiply-add

and with references to the arguments, so that no index arithmetic is typed by hand

    @In[n=0, c=ci, h=y, w=x]            an element, dimensions by name and in any order
    @In                                 the pointer to the first element
    @In.size(h)  @In.stride(h)          numbers in the source; for a `dynamic` argument, parameters

Everything else is metaprogramming: Python writes the body. A function that was written elsewhere
runs with only its interface declared: `language` names the dialect that its body is in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.errors import ArrayError, ScheduleError

if TYPE_CHECKING:
    from tilewright.kernels.gpu.dialects.table import Dialect

# Words that mean the same in CUDA, OpenCL and, where long has 64 bits, in C.
ELEMENT = {
    'f32': 'float', 'f64': 'double', 'i64': 'long', 'i32': 'int', 'i16': 'short',
    'i8': 'signed char', 'u64': 'unsigned long', 'u32': 'unsigned int', 'u16': 'unsigned short',
    'u8': 'unsigned char', 'bool': 'unsigned char', 'f16': 'unsigned short',
    'bf16': 'unsigned short',
}  # fmt: skip
LARGEST = 2**31 - 1  # elements: indices are 32-bit numbers
# Bytes, one line of all banks: a shared array that begins elsewhere is read in two turns by matrix
# instructions of Hopper, whose core matrices are one line each.
ALIGNED = 128
LARGEST_CLUSTER = 8  # blocks that every GPU with clusters can run together
# Where a kernel that was started early waits for those before it; a body without this line waits
# first of all. Above it a body reads only what was made ahead, once.
BEGINS = 'GRID_BEGINS;'
# From where on kernels that follow this one may be started, to wait; without this line, its end.
ENDS = 'GRID_ENDS;'
_NAME = re.compile(r'[A-Za-z_]\w*')


@dataclass(frozen=True, slots=True)
class Array:
    """An ND-array argument: `In = Array('In', ('n', 'c', 'h', 'w'), (1, 64, 56, 56))`.

    written   whether the kernel writes to it
    dynamic   sizes and strides are parameters of the kernel instead of numbers in its source, so
              that one compilation serves all sizes
    """

    name: str
    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str = 'f32'
    written: bool = False
    dynamic: bool = False

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.sizes) or len(set(self.dims)) != len(self.dims):
            raise ScheduleError(
                f'array {self.name} has dimensions {":".join(self.dims)} and sizes {self.sizes}; '
                f'name every dimension once'
            )
        if self.dtype not in ELEMENT:
            raise ScheduleError(f'array {self.name} is {self.dtype}; known: {", ".join(ELEMENT)}')
        if self.elements > LARGEST:
            raise ScheduleError(
                f'array {self.name} has {self.elements} elements; indices reach {LARGEST}'
            )

    @property
    def signature(self) -> str:
        return ':'.join(self.dims)

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension; the last one is contiguous."""
        return tuple(math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes)))

    def numbers(self) -> list[tuple[str, int]]:
        """(parameter, value) of a dynamic argument, in the order in which a kernel takes them."""
        return [
            (f'{self.name}_{dim}_{kind}', value)
            for dim, size, stride in zip(self.dims, self.sizes, self.strides, strict=True)
            for kind, value in (('size', size), ('stride', stride))
        ]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that is given at the call."""

    name: str
    dtype: str = 'i32'


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device function and how it is launched.

    shared     (name, floats) of each shared-memory array
    needs      capabilities of a dialect without which the body cannot be lowered; 'wgmma_tf32/64'
               is one with a size
    resident   blocks that should fit a multiprocessor at once: a limit on registers; 0 is none
    cluster    blocks along the third dimension of the grid that run together and read each other's
               shared memory; more than one needs the capability 'cluster'
    language   'cucl', or the name of the dialect that a foreign body is written in
    """

    name: str
    args: tuple[Array | Scalar, ...]
    body: str
    grid: tuple[int, int, int]
    threads: int
    shared: tuple[tuple[str, int], ...] = ()
    helpers: str = ''
    needs: frozenset[str] = frozenset()
    resident: int = 0
    language: str = 'cucl'
    cluster: int = 1

    def __post_init__(self) -> None:
        names = [a.name for a in self.args]
        if len(set(names)) < len(names):
            raise ScheduleError(f'kernel {self.name} has two arguments of one name: {names}')
        if self.threads < 1 or min(self.grid) < 1:
            raise ScheduleError(
                f'kernel {self.name} has {self.threads} threads in {self.grid} blocks; each must '
                f'be at least 1'
            )
        if not 1 <= self.cluster <= LARGEST_CLUSTER or self.grid[2] % self.cluster:
            raise ScheduleError(
                f'kernel {self.name} has clusters of {self.cluster} blocks along a grid of '
                f'{self.grid[2]}; their number must divide that and be at most {LARGEST_CLUSTER}'
            )

    @property
    def arrays(self) -> tuple[Array, ...]:
        return tuple(a for a in self.args if isinstance(a, Array))

    @property
    def shared_bytes(self) -> int:
        return sum(4 * padded(count) for _, count in self.shared)

    def array(self, name: str) -> Array:
        for argument in self.arrays:
            if argument.name == name:
                return argument
        raise ScheduleError(f'kernel {self.name} has no array {name!r}')


def padded(count: int) -> int:
    """Floats rounded up to `ALIGNED` bytes, so that every shared array begins at such a place."""
    return -(-4 * count // ALIGNED) * ALIGNED // 4


def check_call(
    kernel: Kernel, given: Mapping[str, tuple[Sequence[str], Sequence[int], str]]
) -> None:
    """Raise ArrayError unless (dims, sizes, dtype) given for every array are what is declared."""
    declared = {a.name for a in kernel.args}
    unknown, missing = set(given) - declared, declared - set(given)
    if unknown or missing:
        raise ArrayError(
            f'kernel {kernel.name} takes {sorted(declared)}; not given: {sorted(missing)}, not '
            f'known: {sorted(unknown)}'
        )
    for array in kernel.arrays:
        dims, sizes, dtype = given[array.name]
        if tuple(dims) != array.dims:
            raise ArrayError(
                f'argument {array.name} of {kernel.name} is declared {array.signature}, but an '
                f'array {":".join(dims)} was passed; convert it, or pass the one that was meant'
            )
        if dtype != array.dtype:
            raise ArrayError(
                f'argument {array.name} of {kernel.name} is declared {array.dtype}, but the array '
                f'passed is {dtype}'
            )
        if not array.dynamic and tuple(sizes) != array.sizes:
            raise ArrayError(
                f'argument {array.name} of {kernel.name} was compiled for sizes {array.sizes}, '
                f'but {tuple(sizes)} were passed; declare it dynamic, or compile it again'
            )


def lower(kernel: Kernel, dialect: Dialect) -> str:
    """[Kernel] -> [source text of the dialect]"""
    return lower_all((kernel,), dialect)


def lower_all(kernels: Sequence[Kernel], dialect: Dialect) -> str:
    """[Kernel] -> [one translation unit]: a compiler starts up once for all of them.

    A kernel that is launched several times is written once.
    """
    kernels = tuple(dict.fromkeys(kernels))
    names = [kernel.name for kernel in kernels]
    if len(set(names)) < len(names):
        raise ScheduleError(f'kernels of one source must have names of their own, not {names}')
    for kernel in kernels:
        _check_dialect(kernel, dialect)
    helpers = dict.fromkeys(
        translate(k.helpers, dialect.words) if k.language == 'cucl' else k.helpers for k in kernels
    )
    extra = dialect.extra(kernels)
    lines = [
        dialect.head,
        *([extra] if extra else []),
        *(f'{text.rstrip(chr(10))}\n' for text in helpers if text),
        *(_function(kernel, dialect) for kernel in kernels),
    ]
    return '\n'.join([*lines, ''])


def _check_dialect(kernel: Kernel, dialect: Dialect) -> None:
    missing = {need.partition('/')[0] for need in kernel.needs} - dialect.capabilities
    if missing:
        raise ScheduleError(
            f'kernel {kernel.name} needs {", ".join(sorted(missing))}, which {dialect.name} does '
            f'not have'
        )
    if kernel.language not in ('cucl', dialect.family):
        raise ScheduleError(
            f'kernel {kernel.name} is written in {kernel.language}; it cannot run on {dialect.name}'
        )


def _function(kernel: Kernel, dialect: Dialect) -> str:
    """One kernel, without what several share."""
    body = kernel.body
    if kernel.language == 'cucl':
        body = translate(resolve(kernel, body), dialect.words)
    inside = body.strip('\n').splitlines()
    if not waits_itself(body):
        inside = [BEGINS, *inside]
    if not dialect.begins:
        inside = [line for line in inside if line.strip() not in (BEGINS, ENDS)]
    lines = [
        dialect.entry(kernel, ', '.join(_parameters(kernel, dialect))),
        '{',
        *(f'    {line}' for line in dialect.shared(kernel)),
        *(f'    {line}' if line else '' for line in inside),
        '}',
    ]
    tail = dialect.tail(kernel)
    return '\n'.join([*lines, *([tail] if tail else [])])


def waits_itself(body: str) -> bool:
    """Whether a body says where it waits for the kernels before it."""
    return any(line.strip() == BEGINS for line in body.splitlines())


def _parameters(kernel: Kernel, dialect: Dialect) -> list[str]:
    texts = []
    for argument in kernel.args:
        if isinstance(argument, Scalar):
            texts.append(f'{ELEMENT[argument.dtype]} {argument.name}')
            continue
        texts.append(dialect.pointer(ELEMENT[argument.dtype], argument.name, argument.written))
        if argument.dynamic:
            texts += [f'int {name}' for name, _ in argument.numbers()]
    return texts


def translate(text: str, words: Mapping[str, str]) -> str:
    """Words of CUCL into those of a dialect, identifier by identifier."""
    return _NAME.sub(lambda match: words.get(match[0], match[0]), text)


def resolve(kernel: Kernel, text: str) -> str:
    """References to arguments (`@In[...]`, `@In.size(h)`, `@In`) into plain C."""
    pieces, place = [], 0
    while True:
        at = text.find('@', place)
        if at < 0:
            pieces.append(text[place:])
            return ''.join(pieces)
        pieces.append(text[place:at])
        match = _NAME.match(text, at + 1)
        if not match:
            raise ScheduleError(f'kernel {kernel.name}: a lone @ before {text[at : at + 20]!r}')
        array = kernel.array(match[0])
        place = match.end()
        if text[place : place + 1] == '[':
            inside, place = _bracketed(kernel, text, place)
            pieces.append(f'{array.name}[{element(kernel, array, resolve(kernel, inside))}]')
        elif number := re.compile(r'\.(size|stride)\((\w+)\)').match(text, place):
            pieces.append(_number(kernel, array, number[1], number[2]))
            place = number.end()
        else:
            pieces.append(array.name)


def _bracketed(kernel: Kernel, text: str, start: int) -> tuple[str, int]:
    """(what stands between the bracket at `start` and its partner, the place behind it)."""
    depth = 0
    for place in range(start, len(text)):
        depth += {'[': 1, ']': -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place], place + 1
    raise ScheduleError(f'kernel {kernel.name}: {text[start : start + 30]!r} is not closed')


def element(kernel: Kernel, array: Array, inside: str) -> str:
    """'n=0, c=ci, h=y, w=x' -> the index of that element; every dimension once."""
    given = {}
    for piece in _split(inside):
        name, equals, value = piece.partition('=')
        if not equals or name.strip() not in array.dims or name.strip() in given:
            raise ScheduleError(
                f'kernel {kernel.name}: @{array.name}[{inside}] must name each of '
                f'{array.signature} once; {piece.strip()!r} does not'
            )
        given[name.strip()] = value.strip()
    left = [d for d in array.dims if d not in given]
    if left:
        raise ScheduleError(f'kernel {kernel.name}: @{array.name}[{inside}] leaves out {left}')
    terms = []
    for dim in array.dims:
        value, stride = given[dim], _number(kernel, array, 'stride', dim)
        if value == '0':
            continue
        wrapped = value if re.fullmatch(r'\w+', value) else f'({value})'
        terms.append(wrapped if stride == '1' else f'{wrapped} * {stride}')
    return ' + '.join(terms) or '0'


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in '([') - (letter in ')]')
        if letter == ',' and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def _number(kernel: Kernel, array: Array, kind: str, dim: str) -> str:
    if dim not in array.dims:
        raise ScheduleError(
            f'kernel {kernel.name}: {array.name} has no dimension {dim!r}, only {array.signature}'
        )
    place = array.dims.index(dim)
    if array.dynamic:
        innermost = kind == 'stride' and place == len(array.dims) - 1
        return '1' if innermost else f'{array.name}_{dim}_{kind}'
    return str(array.sizes[place] if kind == 'size' else array.strides[place])
