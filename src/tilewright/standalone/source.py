"""A network as C that stands alone: one source, one header, a Makefile, a program that tests it.

Goes in: a program, where its values lie, and the source of every distinct kernel. Comes out: the
text of each file, and which constants the weights file holds. The kernels are those that the
runtime runs, compiled with the same flags; the thread pool is the runtime's own (runtime/pool.c).
A network for ranges of sizes is told the sizes of every call, and has tables for each.

One source cannot be compiled with several sets of flags, and compilers inline less in a large
unit; so it is compiled once for each of its parts:

    cc FLAGS_0 -DRESNET18_PART=0 -c resnet18.c    the pool, the tables, open, run and close
    cc FLAGS_1 -DRESNET18_PART=1 -c resnet18.c    the first kernel; and so on

Without the macro it is all of it. Every name with external linkage begins with the network's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from tilewright.graph.graph import Value
from tilewright.graph.ranges import Axis, range_text
from tilewright.kernels.cpu import expression
from tilewright.kernels.cpu.abi import HEAD as FIXED_HEAD
from tilewright.kernels.cpu.sized import with_sizes
from tilewright.machine.isa import ISAS
from tilewright.standalone.tables import Tables

C_TYPES = {**expression.C_TYPES, 'bool': 'bool'}
_ARCHITECTURES = {'x86_64': '__x86_64__', 'aarch64': '__aarch64__'}
_ATTRIBUTE = re.compile(r'__attribute__\(\(.*?\)\)+')
_FUNCTION = re.compile(r'[\w\s*]*?(\w+)\s*\(')
_TYPE = re.compile(r'typedef [^;{]*?(\w+)\s*;')
_DATA = re.compile(r'static [\w\s*]*?(\w+)\s*[\[;=]')
_CLOSING = re.compile(r'\} (\w+);')
_ARGS = re.compile(r'typedef struct \{[^}]*\} tw_args;\n', re.DOTALL)
_PROTOTYPES = re.compile(r'^(?:long|void) tw_\w+\([^)]*\);\n', re.MULTILINE)
_CALLED = re.compile(r'^void tw_\w+\([^)]*\);\n', re.MULTILINE)
# Tables have what these would return, for each size; what all sizes share is asked for.
_SIZES = re.compile(r'^long tw_\w+\(void\) \{ return -1; \}\n', re.MULTILINE)
HEAD = with_sizes(FIXED_HEAD)
# Words of C, of its headers and of the files here, which no parameter of a function may be.
_WORDS = """
alignas alignof auto bool break case char const constexpr continue default do double else enum
extern false float for goto if inline int long net nullptr register restrict return short signed
sizeof static struct switch thread_local true typedef typeof union unsigned void volatile while asm
linux unix errno main and or not xor class delete new this operator private public protected
template throw try catch using namespace virtual friend export explicit mutable
"""
_TAKEN = frozenset(_WORDS.split())
# Before any include: processors of threads, which the pool asks for.
_FIRST = """\
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
"""
_INCLUDES = """\
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
"""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One distinct kernel: what `generate` made of it, and how it is compiled."""

    source: str
    isa: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Standalone:
    """What is exported.

    name    a word of C that every name begins with
    pool    the source of the thread pool
    flags   those that everything is compiled with
    origin  what made it, for the comment at the top
    axes    sizes that vary; values have the shapes of the largest
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    tables: Tables
    kernels: tuple[KernelSource, ...]
    pool: str
    flags: tuple[str, ...]
    threads: int
    origin: str
    axes: tuple[Axis, ...] = ()


def c_name(text: str) -> str:
    """A word of C like this text: `1st.conv/out` -> `n1st_conv_out`."""
    word = re.sub(r'\W+', '_', text, flags=re.ASCII).strip('_')
    word = word if re.match(r'[A-Za-z]', word) else f'n{word}'
    return f'{word}_' if word in _TAKEN else word


def is_c_name(text: str) -> bool:
    """Whether a text can begin every name of a network."""
    return bool(re.fullmatch(r'[A-Za-z][A-Za-z0-9_]*', text)) and text not in _TAKEN


def parameters(values: Sequence[Value], taken: Sequence[str] = ()) -> list[str]:
    """A word of C for each value, no two the same."""
    made: list[str] = []
    for value in values:
        word, number = c_name(value.name), 1
        while word in made or word in taken:
            number += 1
            word = f'{c_name(value.name)}_{number}'
        made.append(word)
    return made


def plain(text: str) -> str:
    """A text that may stand in a comment, whatever the model calls its values."""
    return re.sub(r'[^\w./:,;#@+= ()\[\]-]', '_', text, flags=re.ASCII)


def files_of(net: Standalone) -> dict[str, str]:
    """file name -> text"""
    return {
        f'{net.name}.h': header(net),
        f'{net.name}.c': source(net),
        f'{net.name}_test.c': test_program(net),
        'Makefile': makefile(net),
    }


def source(net: Standalone) -> str:
    """The one source: what all parts share, the runtime, the kernels."""
    template = resources.files('tilewright.standalone').joinpath('network.c').read_text()
    args = _ARGS.search(HEAD)
    assert args is not None
    shared = [
        f'/* {plain(net.origin)}\n   {_signature(net)}. Compile it as the Makefile does. */\n',
        f'{_FIRST}#include "{net.name}.h"\n\n{_INCLUDES}',
        *_demands(net),
        _renamed(args.group(), net.name, ''),
        *(_prototypes(net.name, number) for number in range(1, len(net.kernels) + 1)),
    ]
    runtime = [
        _renamed(net.pool, net.name, ''),
        net.tables.text(net.name, len(net.kernels)),
        *_needs(net),
        f'enum {{ THREADS = {net.threads} }};\n',
        _renamed(template, net.name, ''),
        _run(net),
    ]
    parts = ['\n'.join(runtime)]
    parts += [kernel(k.source, net.name, n) for n, k in enumerate(net.kernels, 1)]
    macro = f'{net.name.upper()}_PART'
    bodies = (
        f'#if !defined({macro}) || {macro} == {number}\n{body}\n#endif /* part {number} */\n'
        for number, body in enumerate(parts)
    )
    return '\n'.join([*shared, *bodies])


def kernel(text: str, name: str, number: int) -> str:
    """One kernel among others: its names get its number, what all share goes."""
    for shared in (_ARGS, _PROTOTYPES, _SIZES):
        text = shared.sub('', text)
    return renamed(text, name, f'k{number}')


def renamed(text: str, name: str, part: str) -> str:
    """Every name that the source defines at file scope, with the part in front.

    tw_part -> resnet18_k3_part, min_long -> k3_min_long
    """
    own = [n for n in file_scope_names(text) if not n.startswith('tw_')]
    if own:
        words = re.compile(r'\b(?:' + '|'.join(map(re.escape, own)) + r')\b')
        text = words.sub(lambda m: f'{part}_{m.group()}', text)
    return _renamed(text, name, part)


def _renamed(text: str, name: str, part: str) -> str:
    """tw_net_open -> resnet18_open, TW_NET_INPUTS -> RESNET18_INPUTS, tw_part -> resnet18_k3_part;
    the arguments of kernels are one type, whatever the part."""
    text = re.sub(r'\btw_args\b', f'{name}_args', text)
    text = text.replace('tw_net', name).replace('TW_NET', name.upper())
    front = f'{name}_{part}_' if part else f'{name}_'
    return re.sub(r'\btw_(?=\w)', front, text)


def file_scope_names(text: str) -> list[str]:
    """The names that a generated source defines outside functions, in order."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        if not line or line[0] in ' \t#/{':
            continue
        bare = _ATTRIBUTE.sub('', line)
        for form in (_CLOSING, _TYPE, _DATA, _FUNCTION):
            match = form.match(bare)
            if match:
                found[match.group(1)] = None
                break
    return list(found)


def header(net: Standalone) -> str:
    """The header: what callers need, and nothing else."""
    name, upper = net.name, net.name.upper()
    given, results = _array_words(net)
    sizes = [
        f'#define {upper}_{word.upper()}_ELEMENTS {_elements(value)}L'
        for word, value in zip([*given, *results], [*net.inputs, *net.outputs], strict=True)
    ]
    lists = [
        f'     {kind} {plain(word)}: {value.dtype}{list(value.shape)}'
        for kind, words, values in (('in ', given, net.inputs), ('out', results, net.outputs))
        for word, value in zip(words, values, strict=True)
    ]
    return f"""\
/* {plain(net.origin)} */
#ifndef {upper}_H
#define {upper}_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_INPUTS {len(given)}
#define {upper}_OUTPUTS {len(results)}
#define {upper}_THREADS {net.threads}
{chr(10).join(sizes)}

typedef struct {name} {name};

/* Load the weights from a file. NULL if that fails; then `*why`, unless `why` is NULL, says why. */
{name} *{name}_open(const char *weights, const char **why);

/* Compute the results. Arrays are C-contiguous, and none may overlap a result:
{chr(10).join(lists)}{_sizes_text(net)}
   Callers in several threads take turns on one network, and may use several side by side. */
{_result_type(net)} {name}_run({_declared(net)});

/* Free a network; NULL is none. */
void {name}_close({name} *net);

/* How long an idle thread of the pool looks for work before it sleeps; 200 at first. */
void {name}_pool_spin(long microseconds);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _size_words(net: Standalone) -> list[str]:
    """A parameter for each size that varies: the input and the axis where it occurs."""
    return [c_name(f'{axis.places[0][0]}_{axis.places[0][1]}') for axis in net.axes]


def _array_words(net: Standalone) -> tuple[list[str], list[str]]:
    """Parameters for inputs and for results."""
    given = parameters(net.inputs, _size_words(net))
    return given, parameters(net.outputs, [*_size_words(net), *given])


def _sizes_text(net: Standalone) -> str:
    """What a caller is told of sizes that vary."""
    if not net.axes:
        return ''
    words = ', '.join(
        f'{word} ({plain(axis.places[0][0])}[{axis.places[0][1]}]) is {range_text(axis.sizes)}'
        for word, axis in zip(_size_words(net), net.axes, strict=True)
    )
    return f"""
   Shapes are those of the largest size: {words}.
   0: nothing was computed, since the network is not for these sizes; 1: done."""


def _result_type(net: Standalone) -> str:
    return 'int' if net.axes else 'void'


def _declared(net: Standalone) -> str:
    given, results = _array_words(net)
    words = [f'{net.name} *net', *(f'long {word}' for word in _size_words(net))]
    words += [f'const {C_TYPES[v.dtype]} *{w}' for w, v in zip(given, net.inputs, strict=True)] + [
        f'{C_TYPES[v.dtype]} *{w}' for w, v in zip(results, net.outputs, strict=True)
    ]
    return ', '.join(words)


def _run(net: Standalone) -> str:
    given, results = _array_words(net)
    head = (
        f'{_result_type(net)} {net.name}_run({_declared(net)})\n{{\n'
        f'    const void *const arrays[] = {{{", ".join([*given, *results, "NULL"])}}};\n'
    )
    if not net.axes:
        return f'{head}    execute(net, &sizes[0], arrays);\n}}\n'
    return f"""\
{head}    const long point[] = {{{', '.join(_size_words(net))}}};
    for (long i = 0; i < SIZES; i++)
        if (memcmp(sizes[i].point, point, sizeof point) == 0) {{
            execute(net, &sizes[i], arrays);
            return 1;
        }}
    return 0;
}}
"""


def _prototypes(name: str, number: int) -> str:
    return ''.join(_renamed(line, name, f'k{number}') for line in _CALLED.findall(HEAD))


def _isas(net: Standalone) -> list[str]:
    return list(dict.fromkeys(k.isa for k in net.kernels if ISAS[k.isa].arch != 'any'))


def _demands(net: Standalone) -> list[str]:
    """An architecture that the source is not for is refused by name."""
    return [
        f'#if !defined({_ARCHITECTURES[arch]})\n#error "{net.name}.c was generated for {arch}"\n'
        f'#endif\n'
        for arch in dict.fromkeys(ISAS[isa].arch for isa in _isas(net))
    ]


def _needs(net: Standalone) -> list[str]:
    """NEEDED: whether this processor has the instructions, asked where the compiler can ask."""
    flags = [
        f for isa in _isas(net) for f in ISAS[isa].required_flags if ISAS[isa].arch != 'aarch64'
    ]
    # Compilers write some names of the system's in another way: amx-tile, avx512bf16.
    names = [f.replace('amx_', 'amx-').replace('avx512_', 'avx512') for f in dict.fromkeys(flags)]
    asked = ' && '.join(f'__builtin_cpu_supports("{name}")' for name in names) or '1'
    return [f'#define NEEDED {asked}\n#define ISA "{" ".join(_isas(net)) or "any"}"\n']


def test_program(net: Standalone) -> str:
    """The program that compares with stored results."""
    template = resources.files('tilewright.standalone').joinpath('test.c').read_text()
    given, results = _array_words(net)
    words = [*given, *results]
    values = [*net.inputs, *net.outputs]
    kinds = {'f32': 'FLOAT', 'f64': 'DOUBLE'}
    rows = [
        f'    {{"{word}", {kinds.get(v.dtype, "WHOLE")}, '
        f'{_elements(v)}L * sizeof({C_TYPES[v.dtype]}), NULL, NULL}},'
        for word, v in zip(words, values, strict=True)
    ]
    call = ''.join(f', {axis.sizes[-1]}' for axis in net.axes)
    call += ''.join(f', arrays[{number}].data' for number in range(len(words)))
    text = template.replace('/*ARRAYS*/', '\n'.join(rows)).replace('/*CALL*/', call)
    return _renamed(text, net.name, '')


def makefile(net: Standalone) -> str:
    """`make`: a library and the test; `make check`: run it."""
    name = net.name
    numbers = range(len(net.kernels) + 1)
    flags = [f'FLAGS_{n} = {" ".join(k.flags)}'.rstrip() for n, k in enumerate(net.kernels, 1)]
    objects = ' '.join(f'{name}_{n}.o' for n in numbers)
    return f"""\
# make        lib{name}.a and {name}_test
# make check  compare with the results in {name}.check

BASE = {' '.join(net.flags)}
{chr(10).join(flags)}
OBJECTS = {objects}

all: lib{name}.a {name}_test

lib{name}.a: $(OBJECTS)
	$(AR) rcs $@ $(OBJECTS)

$(OBJECTS): {name}_%.o: {name}.c {name}.h
	$(CC) $(BASE) $(FLAGS_$*) $(CFLAGS) -D{name.upper()}_PART=$* -c {name}.c -o $@

{name}_test: {name}_test.c {name}.h lib{name}.a
	$(CC) $(BASE) $(CFLAGS) {name}_test.c lib{name}.a -o $@ -lm

check: {name}_test
	./{name}_test

clean:
	rm -f $(OBJECTS) lib{name}.a {name}_test

.PHONY: all check clean
"""


def _elements(value: Value) -> int:
    total = 1
    for size in value.shape:
        total *= size
    return total


def _signature(net: Standalone) -> str:
    def shown(values: Sequence[Value]) -> str:
        return ', '.join(f'{plain(v.name)} {v.dtype}{list(v.shape)}' for v in values)

    return f'{shown(net.inputs)} -> {shown(net.outputs)}, threads: {net.threads}'
