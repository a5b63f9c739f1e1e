"""AVX-512 assembly as plain C, so that kernels for it run on processors that lack it.

Goes in: the source of a generated kernel. Comes out: the same program without AVX-512: each block
of assembly is a block of C on 32 vectors of 16 numbers, masks, pointers, and the last result as
flags, with a `goto` for each jump. Vectors of C (`vector_size(64)`) are the compiler's business.

    vfmadd231ps 8(%[a])%{1to16%}, %%zmm3, %%zmm0     tw_spread(&m, r_a + 8);
                                                     tw_vfmadd231ps(z + 0, z + 3, &m, 0xffff);

Multiply-adds round once, maxima give the second operand where a number is none, lanes that a mask
leaves out are neither read nor written. Registers begin full of NaN. What is not in the tables is
refused by name, and so is what a block writes without saying so to the compiler.

Intrinsics are those of SIMDe (Debian's libsimde-dev), where it is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import MissingError, TilewrightError
from tilewright.machine.isa import ISAS, host_isas

SETS = ('avx512',)
SIMDE = Path('simde/x86/avx512.h')
_ROOTS = (Path('/usr/include'), Path('/usr/local/include'))
_HEADER = re.compile(r'^[ \t]*#[ \t]*include <immintrin\.h>', re.M)
_START = re.compile(r'\b__asm__\s*(?:volatile\b\s*)?\(')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


class TranslationError(TilewrightError):
    """Assembly that the translator does not know, or that is not what its operands say."""


class IntrinsicsError(MissingError):
    """A kernel uses intrinsics, and nothing here stands in for them."""


# Lane by lane: of how many bits, and what the instruction makes of `a` (its first operand as
# assemblers of this syntax have it, which may be in memory), `b` and what is in the target, `d`.
_LANES = {
    'vaddps': (32, 'd->f[i] = b->f[i] + a->f[i]'),
    'vsubps': (32, 'd->f[i] = b->f[i] - a->f[i]'),
    'vmulps': (32, 'd->f[i] = b->f[i] * a->f[i]'),
    'vmaxps': (32, 'd->f[i] = b->f[i] > a->f[i] ? b->f[i] : a->f[i]'),
    'vminps': (32, 'd->f[i] = b->f[i] < a->f[i] ? b->f[i] : a->f[i]'),
    'vfmadd231ps': (32, 'd->f[i] = __builtin_fmaf(b->f[i], a->f[i], d->f[i])'),
    'vxorps': (32, 'd->u[i] = b->u[i] ^ a->u[i]'),
    'vpxord': (32, 'd->u[i] = b->u[i] ^ a->u[i]'),
    'vpaddd': (32, 'd->u[i] = b->u[i] + a->u[i]'),
    'vpaddw': (16, 'd->w[i] = (unsigned short)(b->w[i] + a->w[i])'),
    'vpmaddwd': (
        32,
        'd->u[i] = (unsigned)(b->h[2 * i] * a->h[2 * i]) + '
        '(unsigned)(b->h[2 * i + 1] * a->h[2 * i + 1])',
    ),
    'vpmaddubsw': (
        16,
        'const int sum = b->c[2 * i] * a->b[2 * i] + b->c[2 * i + 1] * a->b[2 * i + 1]; '
        'd->h[i] = (short)(sum < -32768 ? -32768 : sum > 32767 ? 32767 : sum)',
    ),
    'vpdpbusd': (
        32,
        'int sum = 0; for (int j = 4 * i; j < 4 * i + 4; j++) sum += b->c[j] * a->b[j]; '
        'd->u[i] += (unsigned)sum',
    ),
}
_MOVES = ('vmovups', 'vmovdqu32', 'vmovdqu8', 'vmovaps')
_BROADCASTS = ('vbroadcastss', 'vpbroadcastd')
# What one vector of numbers half as wide becomes.
_WIDENED = {
    'vcvtph2ps': '_Float16 x; __builtin_memcpy(&x, from + i, 2); d->f[i] = (float)x',
    'vpmovzxwd': 'd->u[i] = from[i]',
}
_JUMPS = {
    'jmp': '',
    'jz': 'flags == 0',
    'je': 'flags == 0',
    'jnz': 'flags != 0',
    'jne': 'flags != 0',
    'jl': 'flags < 0',
    'jge': 'flags >= 0',
    'jg': 'flags > 0',
    'jle': 'flags <= 0',
}
_ADVICE = ('prefetcht0', 'prefetcht1', 'prefetcht2', 'prefetchnta')

_PRELUDE = """\
typedef union {
    float f[16]; unsigned u[16]; int i[16]; short h[32]; unsigned short w[32];
    signed char b[64]; unsigned char c[64];
} tw_zmm;
#define TW_HELPER static __attribute__((noinline, unused))
TW_HELPER void tw_load(tw_zmm *d, long from, unsigned mask, int zero)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            __builtin_memcpy(d->u + i, (const char *)from + 4 * i, 4);
        else if (zero)
            d->u[i] = 0;
}
TW_HELPER void tw_store(const tw_zmm *a, long to, unsigned mask)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            __builtin_memcpy((char *)to + 4 * i, a->u + i, 4);
}
TW_HELPER void tw_spread(tw_zmm *d, long from)
{
    __builtin_memcpy(d->u, (const char *)from, 4);
    for (int i = 1; i < 16; i++)
        d->u[i] = d->u[0];
}
TW_HELPER void tw_above(tw_zmm *d, int first)
{
    for (int i = first; i < 16; i++)
        d->u[i] = 0;
}
TW_HELPER void tw_vpslld(tw_zmm *d, const tw_zmm *a, unsigned bits)
{
    for (int i = 0; i < 16; i++)
        d->u[i] = bits < 32 ? a->u[i] << bits : 0;
}
"""


def _prelude() -> str:
    text = [_PRELUDE]
    for name, (bits, body) in _LANES.items():
        text.append(
            f'TW_HELPER void tw_{name}(tw_zmm *d, const tw_zmm *b, const tw_zmm *a, unsigned mask)'
            f'\n{{\n    for (int i = 0; i < {512 // bits}; i++)\n'
            f'        if (mask >> (i * {bits} / 32) & 1) {{ {body}; }}\n}}\n'
        )
    for name, body in _WIDENED.items():
        text.append(
            f'TW_HELPER void tw_{name}(tw_zmm *d, long at)\n{{\n'
            f'    unsigned short from[16];\n    __builtin_memcpy(from, (const char *)at, 32);\n'
            f'    for (int i = 0; i < 16; i++) {{ {body}; }}\n}}\n'
        )
    return ''.join(text)


def simde() -> bool:
    """Whether SIMDe is installed."""
    return any((root / SIMDE).is_file() for root in _ROOTS)


def to_c(source: str) -> str:
    """[C with AVX-512] -> [C without]"""
    text = _blocks(source)
    if _HEADER.search(text) and '_mm512' in text:
        if not simde():
            raise IntrinsicsError(
                f'intrinsics of AVX-512 need {SIMDE}, which is not installed (Debian: libsimde-dev)'
            )
        more = Path(__file__).with_name('intrinsics.h').read_text()
        wanted = f'#define SIMDE_ENABLE_NATIVE_ALIASES\n#include <{SIMDE}>\n{more}'
        first = _HEADER.search(text)
        assert first
        text = text[: first.start()] + wanted + text[first.end() :]
    return text if text == source else _prelude() + text


def host_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    """A compiler's flags without AVX-512, with what the host has instead of it."""
    kept = tuple(f for f in flags if f != '-mfma' and not f.startswith(('-mavx512', '-mamx')))
    return (*kept, '-Wno-psabi', *(ISAS['avx2'].compiler_flags if 'avx2' in host_isas() else ()))


def _blocks(source: str) -> str:
    found, end = [], 0
    for match in _START.finditer(source):
        close = _closing(source, match.end())
        block = _block(source[match.end() : close], len(found))
        found.append(source[end : match.start()])
        end = close + 1
        if not block:
            found.append(source[match.start() : end])
        elif source[end : end + 1] == ';':
            found.append(block)
            end += 1
        else:
            raise TranslationError(f'a block of assembly that is no statement: {match.group()}')
    return ''.join([*found, source[end:]])


def _closing(text: str, place: int) -> int:
    depth = 1
    while place < len(text):
        if text[place] == '"':
            string = _STRING.match(text, place)
            place = string.end() if string else len(text)
            continue
        depth += {'(': 1, ')': -1}.get(text[place], 0)
        if not depth:
            return place
        place += 1
    raise TranslationError('a block of assembly that does not end')


def _split(text: str, separator: str) -> list[str]:
    """Parts of a text between separators that are in no string and no brackets."""
    parts, depth, place = [''], 0, 0
    while place < len(text):
        string = _STRING.match(text, place)
        piece = string.group() if string else text[place]
        depth += {'(': 1, ')': -1, '[': 1, ']': -1}.get(piece, 0)
        if piece == separator and not depth:
            parts.append('')
        else:
            parts[-1] += piece
        place += len(piece)
    return [part.strip() for part in parts]


@dataclass(frozen=True, slots=True)
class _Operand:
    """`constraint` without `=`, `+` and `&`."""

    name: str
    constraint: str
    expression: str
    written: bool
    read: bool


_OPERAND = re.compile(
    r'(?:\[(?P<name>\w+)\]\s*)?"(?P<constraint>[=+&]*\w+)"\s*\((?P<text>.*)\)', re.S
)


def _operands(outputs: str, inputs: str) -> dict[str, _Operand]:
    found = {}
    for text in filter(None, [*_split(outputs, ','), *_split(inputs, ',')]):
        match = _OPERAND.fullmatch(text)
        if not match:
            raise TranslationError(f'operand {text!r} of assembly is not understood')
        constraint = match['constraint']
        name = match['name'] or str(len(found))
        found[name] = _Operand(
            name, constraint.lstrip('=+&'), match['text'], constraint[0] in '=+',
            '=' not in constraint,
        )  # fmt: skip
    return found


def _block(text: str, number: int) -> str:
    """What is between the brackets of one `__asm__`, as a block of C; '' where it may stay."""
    template, outputs, inputs, clobbers, *more = [*_split(text, ':'), '', '', '']
    strings = _STRING.findall(template)
    if _STRING.sub('', template).strip() or any(more):
        raise TranslationError(f'assembly that is made by macros: {template[:80]}')
    lines = [
        line.strip()
        for line in re.split(r'\\n|;', ''.join(strings).replace(r'\t', ' '))
        if line.strip()
    ]
    operands = _operands(outputs, inputs)
    kinds = {operand.constraint for operand in operands.values()}
    # What says something to compilers alone, or is for processors without AVX-512.
    if not lines or (kinds == {'x'} and 'zmm' not in text):
        return ''
    return _Block(number, lines, operands, set(_STRING.findall(clobbers))).c()


_REGISTER = re.compile(r'%%(?P<kind>zmm|xmm|k)(?P<number>\d+)')
_NAMED = re.compile(r'%(?P<half>k?)(?:\[(?P<name>\w+)\]|(?P<place>\d+))')
_MEMORY = re.compile(r'(?P<offset>-?\d*)\((?P<parts>[^()]*)\)')
_MASKED = re.compile(r'(?P<what>.*?)%\{%%k(?P<mask>[1-7])%\}(?P<zero>%\{z%\})?')
_SPREAD = '%{1to16%}'


@dataclass(slots=True)
class _Block:
    """One block: everything it declares is its own, so that blocks do not know of each other."""

    number: int
    lines: list[str]
    operands: dict[str, _Operand]
    clobbers: set[str]

    def c(self) -> str:
        vectors = [o for o in self.operands.values() if o.constraint in ('v', 'x')]
        head = [
            'tw_zmm z[32], m;',
            'unsigned long k[8];',
            'long flags = 0;',
            '__builtin_memset(z, 0xff, sizeof z);',
            '__builtin_memset(k, 0xff, sizeof k);',
            '(void)m, (void)flags;',
        ]
        tail = []
        for operand in self.operands.values():
            name, text = f'r_{operand.name}', operand.expression
            if operand in vectors:
                size = f'_Static_assert(sizeof({text}) == 64, "a vector");'
                head += [size, f'tw_zmm {name};']
                if operand.read:
                    head.append(f'__builtin_memcpy(&{name}, &({text}), 64);')
                if operand.written:
                    tail.append(f'__builtin_memcpy(&({text}), &{name}, 64);')
                continue
            given = f'&({text})' if operand.constraint == 'm' else f'({text})'
            head.append(f'long {name} = {f"(long){given}" if operand.read else "-1"};')
            if operand.written:
                tail.append(f'{text} = (__typeof__({text})){name};')
            else:
                head.append(f'(void){name};')
        body = [
            f'    {line}' for place, text in enumerate(self.lines) for line in self._c(place, text)
        ]
        return '\n'.join(
            ['{', *(f'    {h}' for h in head), *body, *(f'    {t}' for t in tail), '}']
        )

    def _c(self, place: int, line: str) -> Iterator[str]:
        if re.fullmatch(r'\d+:', line):
            yield f'{self._label(place)}: __attribute__((unused));'
            return
        name, _, rest = line.partition(' ')
        given = [part.strip() for part in _split(rest, ',')] if rest.strip() else []
        if name == '.p2align':
            return
        try:
            if name in _JUMPS and len(given) == 1:
                condition = _JUMPS[name]
                jump = f'goto {self._target(place, given[0])};'
                yield f'if ({condition}) {jump}' if condition else jump
            elif name.startswith('v') or name.startswith('k'):
                yield from self._vector(name, given)
            else:
                yield from self._scalar(name, given)
        except (TranslationError, ValueError) as error:
            raise TranslationError(f'assembly {line!r}: {error}') from None

    def _label(self, place: int) -> str:
        return f'tw_{self.number}_{place}'

    def _target(self, place: int, text: str) -> str:
        """The label behind (`3f`) or before (`3b`) an instruction."""
        if not re.fullmatch(r'\d+[fb]', text):
            raise TranslationError(f'{text} is not a label such as 3f')
        wanted = f'{text[:-1]}:'
        onward = range(place + 1, len(self.lines))
        places = onward if text[-1] == 'f' else range(place - 1, -1, -1)
        for at in places:
            if self.lines[at] == wanted:
                return self._label(at)
        raise TranslationError(f'there is no label {text}')

    # Scalars

    def _operand(self, name: str) -> _Operand:
        if name not in self.operands:
            raise TranslationError(f'there is no operand {name}')
        return self.operands[name]

    def _number(self, text: str, target: bool = False) -> str:
        """A number, the lower half of an operand, or an operand, as an expression of C."""
        if re.fullmatch(r'\$-?\d+', text) and not target:
            return f'{text[1:]}L'
        match = _NAMED.fullmatch(text)
        operand = self._operand(match['name'] or match['place']) if match else None
        if not match or not operand or operand.constraint != 'r':
            raise TranslationError(f'{text} is not a number in a register')
        if target and not operand.written:
            raise TranslationError(f'{text} is written, but only an input')
        name = f'r_{operand.name}'
        return f'(long)(unsigned){name}' if match['half'] and not target else name

    def _address(self, text: str) -> str:
        """A place in memory: of an operand `m`, or offset(base,index,scale)."""
        named, match = _NAMED.fullmatch(text), _MEMORY.fullmatch(text)
        if named and self._operand(named['name'] or named['place']).constraint == 'm':
            return f'r_{named["name"] or named["place"]}'
        if not match:
            raise TranslationError(f'{text} is not a place in memory')
        base, index, scale, *more = [*match['parts'].split(','), '', '']
        if any(more[:-2]) or scale not in ('', '1', '2', '4', '8'):
            raise TranslationError(f'{text} is not a place in memory')
        found = self._number(base)
        if index:
            found += f' + {self._number(index)} * {scale or 1}'
        return f'{found} + {match["offset"] or 0}'

    def _needs(self, name: str) -> None:
        if name not in self.clobbers:
            raise TranslationError(f'{name} is not among what the block says that it changes')

    def _scalar(self, name: str, given: list[str]) -> Iterator[str]:
        if name in _ADVICE and len(given) == 1:
            self._address(given[0])
        elif name in ('inc', 'dec') and len(given) == 1:
            self._needs('cc')
            target = self._number(given[0], True)
            self._whole(given[0])
            yield f'flags = {target} = {target} {"+" if name == "inc" else "-"} 1;'
        elif name in ('add', 'sub') and len(given) == 2:
            self._needs('cc')
            self._whole(*given)
            target = self._number(given[1], True)
            sign = '+' if name == 'add' else '-'
            yield f'flags = {target} = {target} {sign} {self._number(given[0])};'
        elif name in ('cmp', 'test') and len(given) == 2:
            self._needs('cc')
            self._whole(*given)
            sign = '-' if name == 'cmp' else '&'
            yield f'flags = {self._number(given[1])} {sign} {self._number(given[0])};'
        elif name == 'mov' and len(given) == 2:
            halves = '(unsigned)' if given[1].startswith('%k[') else ''
            yield f'{self._number(given[1], True)} = (long){halves}{self._number(given[0])};'
        elif name == 'movslq' and len(given) == 2:
            self._whole(given[1])
            where = self._address(given[0])
            read = f'int word; __builtin_memcpy(&word, (const char *)({where}), 4);'
            yield f'{{ {read} {self._number(given[1], True)} = word; }}'
        elif name == 'lea' and len(given) == 2:
            self._whole(given[1])
            yield f'{self._number(given[1], True)} = {self._address(given[0])};'
        else:
            raise TranslationError(f'the instruction {name} is not known')

    def _whole(self, *given: str) -> None:
        if any(text.startswith('%k[') for text in given):
            raise TranslationError('arithmetic in 32 bits is not known')

    # Vectors

    def _register(self, text: str, kinds: tuple[str, ...] = ('zmm',), target: bool = False) -> str:
        """A vector register, or an operand that is a vector, as a pointer."""
        match, named = _REGISTER.fullmatch(text), _NAMED.fullmatch(text)
        if named and not named['half']:
            operand = self._operand(named['name'] or named['place'])
            if operand.constraint in ('v', 'x') and (operand.written or not target):
                return f'&r_{operand.name}'
        if not match or match['kind'] not in kinds or int(match['number']) > 31:
            raise TranslationError(f'{text} is not a register that this instruction is known with')
        if target:
            self._needs(f'xmm{match["number"]}')
        return f'z + {match["number"]}'

    def _mask(self, text: str) -> tuple[str, str, bool]:
        """A target, what of it is written, and whether the rest becomes zero."""
        match = _MASKED.fullmatch(text)
        if not match:
            return text, '0xffff', False
        return match['what'], f'(unsigned)k[{match["mask"]}]', bool(match['zero'])

    def _vector(self, name: str, given: list[str]) -> Iterator[str]:
        if name == 'vzeroupper' and not given:
            yield 'for (int i = 0; i < 16; i++) tw_above(z + i, 4);'
            return
        if name == 'kmovw' and len(given) == 2:
            match = _REGISTER.fullmatch(given[1])
            if not match or match['kind'] != 'k' or not 1 <= int(match['number']) <= 7:
                raise TranslationError(f'{given[1]} is not a mask')
            self._needs(f'k{match["number"]}')
            yield f'k[{match["number"]}] = (unsigned short){self._number(given[0])};'
            return
        if name in _LANES and len(given) == 3:
            yield from self._lanes(name, given)
        elif name in _MOVES and len(given) == 2:
            yield from self._move(name, given)
        elif name in _BROADCASTS and len(given) == 2:
            target = self._register(given[1], target=True)
            if _REGISTER.fullmatch(given[0]):
                yield f'tw_spread({target}, (long)({self._register(given[0], ("xmm",))}));'
            else:
                yield f'tw_spread({target}, {self._address(given[0])});'
        elif name in _WIDENED and len(given) == 2:
            yield f'tw_{name}({self._register(given[1], target=True)}, {self._address(given[0])});'
        elif name == 'vpslld' and len(given) == 3 and re.fullmatch(r'\$\d+', given[0]):
            target, source = self._register(given[2], target=True), self._register(given[1])
            yield f'tw_vpslld({target}, {source}, {given[0][1:]});'
        elif name == 'vmovd' and len(given) == 2:
            target = self._register(given[1], ('xmm',), True)
            yield f'tw_above({target}, 0);'
            yield f'({target})->u[0] = (unsigned){self._number(given[0])};'
        else:
            raise TranslationError(f'the instruction {name} is not known')

    def _lanes(self, name: str, given: list[str]) -> Iterator[str]:
        text, mask, zero = self._mask(given[2])
        bits = _LANES[name][0]
        if zero or (mask != '0xffff' and bits != 32):
            raise TranslationError('it is not known with this mask')
        short = [part.startswith('%%xmm') for part in (*given[:2], text)]
        if any(short):
            if not all(short) or mask != '0xffff':
                raise TranslationError('registers of several widths')
            kinds, mask = ('xmm',), '0xf'
        else:
            kinds = ('zmm',)
        target, second = self._register(text, kinds, True), self._register(given[1], kinds)
        source = given[0]
        if source.endswith(_SPREAD):
            if bits != 32:
                raise TranslationError('it broadcasts words of 32 bits alone')
            yield f'tw_spread(&m, {self._address(source.removesuffix(_SPREAD))});'
            first = '&m'
        elif '(' in source:
            yield f'tw_load(&m, {self._address(source)}, {mask}, 1);'
            first = '&m'
        else:
            first = self._register(source, kinds)
        yield f'tw_{name}({target}, {second}, {first}, {mask});'
        if any(short):
            yield f'tw_above({target}, 4);'

    def _move(self, name: str, given: list[str]) -> Iterator[str]:
        text, mask, zero = self._mask(given[1])
        if name == 'vmovdqu8' and mask != '0xffff':
            raise TranslationError('masks of bytes are not known')
        if name == 'vmovaps' and '(' in ''.join(given):
            raise TranslationError('aligned memory is not known')
        if '(' in text:
            if zero:
                raise TranslationError('memory cannot be made zero by a mask')
            self._needs('memory')
            yield f'tw_store({self._register(given[0])}, {self._address(text)}, {mask});'
            return
        source, target = given[0], self._register(text, target=True)
        where = self._address(source) if '(' in source else f'(long)({self._register(source)})'
        yield f'tw_load({target}, {where}, {mask}, {int(zero)});'
