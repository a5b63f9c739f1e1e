"""Running a generated kernel as a program of its own: in an emulator, between guard pages.

Goes in: a group, its generated source and arrays. Comes out: the output array. The source is
compiled together with a small `main`, by a cross compiler where the instruction set is another
architecture's, and run under qemu's user mode: so that code for a machine that is not here is
executed and compared, not only assembled. AVX-512, which qemu lacks, is translated to C (zmm.py).

`main` puts every buffer flush against pages that cannot be touched, at its start or at its end
(sanitizers do not see assembly), makes what is only read read-only, and gives each part a scratch
buffer of its own, filled with NaN. A kernel that leaves its buffers is killed, which is an error
here that names the signal and the buffer's placement, never a crash of the caller.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tilewright import knobs
from tilewright.errors import CheckError, InputError, MissingError, TilewrightError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.machine.compiler import compiler, run_compiler
from tilewright.machine.isa import ISAS, Isa, host_arch, host_isas
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group
from tilewright.runtime.cpu.kernel import as_operand
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate import zmm

PLACEMENTS = ('start', 'end')
# Emulated code is checked, not timed: less optimisation, quicker builds.
PROGRAM_FLAGS = ('-std=gnu11', '-O1', '-fno-math-errno')

# 64 KiB is a multiple of every page size that Linux uses on these architectures, so that a guest
# page never shares a host page with its neighbour.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { GUARD = 65536 };

static int at_end;

#ifdef __SANITIZE_ADDRESS__
/* The sanitizer guards heap blocks by itself, to the byte. */
static char *guarded(size_t bytes) { return malloc(bytes); }
static void freeze(char *data, size_t bytes) { (void)data, (void)bytes; }
#else
/* `bytes` that end, or begin, where a page that cannot be touched begins, or ends. */
static char *guarded(size_t bytes)
{
    const size_t inside = (bytes + GUARD - 1) / GUARD * GUARD;
    char *all = mmap(NULL, inside + 3 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        exit(3);
    char *first = (char *)(((size_t)all + 2 * GUARD - 1) / GUARD * GUARD);
    if (inside && mprotect(first, inside, PROT_READ | PROT_WRITE))
        exit(3);
    return at_end ? first + inside - bytes : first;
}

static void freeze(char *data, size_t bytes)
{
    const size_t inside = (bytes + GUARD - 1) / GUARD * GUARD;
    char *first = at_end ? data + bytes - inside : data;
    if (inside && mprotect(first, inside, PROT_READ))
        exit(3);
}
#endif

static void poison(char *data, size_t bytes)
{
    memset(data, 0xff, bytes);
}

static float *load(FILE *file, size_t bytes)
{
    char *data = guarded(bytes);
    if (fread(data, 1, bytes, file) != bytes)
        exit(4);
    freeze(data, bytes);
    return (float *)data;
}

int main(int argc, char **argv)
{
    static const long inputs[] = {INPUTS}, constants[] = {CONSTANTS};
    const float *in[INPUT_COUNT + 1], *constant[CONSTANT_COUNT + 1];
    if (argc != 4)
        return 2;
    at_end = strcmp(argv[3], "end") == 0;
    FILE *file = fopen(argv[1], "rb");
    if (!file)
        return 4;
    for (long i = 0; i < INPUT_COUNT; i++)
        in[i] = load(file, inputs[i]);
    for (long i = 0; i < CONSTANT_COUNT; i++)
        constant[i] = load(file, constants[i]);
    fclose(file);
    const size_t packed_bytes = tw_packed_bytes(), scratch_bytes = tw_scratch_bytes();
    const size_t out_bytes = OUTPUT;
    char *packed = guarded(packed_bytes), *out = guarded(out_bytes);
    char *scratch = guarded(scratch_bytes);
    poison(packed, packed_bytes);
    tw_pack(constant, (float *)packed);
    freeze(packed, packed_bytes);
    poison(out, out_bytes);
    for (long part = 0; part < tw_parts(); part++) {
        poison(scratch, scratch_bytes);
        const tw_args args = {in, (const float *)packed, (float *)out,
                              scratch - part * scratch_bytes};
        tw_part(&args, part);
    }
    file = fopen(argv[2], "wb");
    if (!file || fwrite(out, 1, out_bytes, file) != out_bytes || fclose(file))
        return 4;
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How to make a program for an instruction set, and what runs it here.

    `translated`: the program does without the set's instructions (zmm.py).
    """

    compile: tuple[str, ...]
    run: tuple[str, ...] = ()
    translated: bool = False


def native() -> Toolchain:
    """The host's own compiler, and no emulator."""
    return Toolchain(compiler())


def cross_compiler(isa: str) -> tuple[str, ...]:
    """The compiler for an instruction set's architecture; MissingError where there is none."""
    arch = _row(isa).arch
    if arch in (host_arch(), 'any'):
        return compiler()
    name = f'{arch}-linux-gnu-gcc'
    if not shutil.which(name):
        raise MissingError(f'{isa} needs the cross compiler {name}, which is not installed')
    return (name,)


def emulator(isa: str) -> Toolchain:
    """Compiler and emulator for an instruction set; MissingError says why there is none."""
    found = _emulator(isa)
    if isinstance(found, str):
        raise MissingError(found)
    return found


def can_emulate(isa: str) -> str:
    """'' if kernels of this instruction set run in an emulator here, else the reason why not."""
    found = _emulator(isa)
    return found if isinstance(found, str) else ''


@cache
def _emulator(isa: str) -> Toolchain | str:
    """The first way to link and run that works, or the reason why none does."""
    found = _qemu(isa)
    if isinstance(found, str) and isa in zmm.SETS:
        try:
            return Toolchain(compiler(), (), True)
        except MissingError:
            return found
    return found


def _qemu(isa: str) -> Toolchain | str:
    row = _row(isa)
    arch = host_arch() if row.arch == 'any' else row.arch
    names = (f'qemu-{arch}', f'qemu-{arch}-static')
    program = next(filter(None, map(shutil.which, names)), None)
    if not program:
        return f'{isa} needs the emulator qemu-{arch}, which is not installed'
    reason = ''
    try:
        command = cross_compiler(isa)
        # Some cross packages lack a static libm: then their shared libraries are used in place.
        prefix = ('-L', str(_library_root(command)))
        for words, extra in (((*command, '-static'), ()), (command, prefix)):
            tools = Toolchain(words, (program, *extra, '-cpu', 'max'))
            try:
                missing = _probe(tools, row).split()
            except TilewrightError as error:
                reason = str(error)
                continue
            if not missing:
                return tools
            return f'{Path(program).name} does not offer {" ".join(missing)}'
    except TilewrightError as error:
        reason = str(error)
    return reason


def _library_root(command: tuple[str, ...]) -> Path:
    """The folder under which a cross compiler's shared libraries lie in `lib` or `lib64`."""
    words = [*command, '-print-file-name=libc.so.6']
    answer = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return Path(answer).resolve().parent.parent


def cannot_run(isa: str) -> str:
    """'' if this host runs the instruction set, itself or in an emulator, else the reason."""
    return '' if isa in host_isas() else can_emulate(isa)


def is_translated(isa: str) -> bool:
    """Whether this host runs the instruction set's kernels as C alone."""
    found = '' if isa in host_isas() else _emulator(isa)
    return isinstance(found, Toolchain) and found.translated


def emulate(
    group: Group, schedule: Schedule, arrays: Mapping[str, np.ndarray], *, placement: str = 'end'
) -> np.ndarray:
    """[Group, Schedule, arrays] -> output, computed in the emulator of the schedule's ISA."""
    tools = emulator(schedule.isa)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    return run_program(group, source, arrays, tools, flags, (placement,))[0]


def run_program(
    group: Group, source: str, arrays: Mapping[str, np.ndarray], tools: Toolchain,
    flags: tuple[str, ...] = (), placements: tuple[str, ...] = PLACEMENTS,
) -> list[np.ndarray]:  # fmt: skip
    """The output of one run for each placement of the buffers; CheckError when a run dies."""
    for placement in placements:
        if placement not in PLACEMENTS:
            raise InputError(f'placement {placement!r} is not one of {PLACEMENTS}')
    outputs = []
    with tempfile.TemporaryDirectory(prefix='tilewright-') as scratch:
        folder = Path(scratch)
        given, made = folder / 'in', folder / 'out'
        program = _link(folder, source + _main(group), tools, flags)
        with given.open('wb') as file:
            for tensor in (*group.with_role('input'), *group.with_role('constant')):
                file.write(as_operand(tensor, arrays[tensor.name]).tobytes())
        for placement in placements:
            command = [*tools.run, str(program), str(given), str(made), placement]
            _execute(command, f'{group.label}, buffers flush at their {placement},')
            flat = np.fromfile(made, NUMPY[group.output.dtype])
            outputs.append(flat.reshape(group.output.shape))
    return outputs


def run_text(text: str, tools: Toolchain, flags: tuple[str, ...] = ()) -> str:
    """Compile a C program that takes no arguments and run it; comes out: what it printed."""
    with tempfile.TemporaryDirectory(prefix='tilewright-') as folder:
        program = _link(Path(folder), text, tools, flags)
        return _execute([*tools.run, str(program)], 'a program')


def _link(folder: Path, text: str, tools: Toolchain, flags: tuple[str, ...]) -> Path:
    source, program = folder / 'program.c', folder / 'program'
    if tools.translated:
        text, flags = zmm.to_c(text), zmm.host_flags(flags)
    source.write_text(text)
    words = [*tools.compile, *PROGRAM_FLAGS, *flags, str(source), '-o', str(program), '-lm']
    run_compiler(words)
    return program


def _row(isa: str) -> Isa:
    if isa not in ISAS:
        raise InputError(f'{isa!r} is not an instruction set; choose one of {", ".join(ISAS)}')
    return ISAS[isa]


def _main(group: Group) -> str:
    def sizes(role: str) -> list[str]:
        return [str(t.bytes) for t in group.with_role(role)]

    names = {'INPUT': sizes('input'), 'CONSTANT': sizes('constant')}
    text = MAIN.replace('OUTPUT', str(group.output.bytes))
    for name, values in names.items():
        text = text.replace(f'{{{name}S}}', f'{{{", ".join(values) or "0"}}}')
        text = text.replace(f'{name}_COUNT', str(len(values)))
    return text


def _execute(command: list[str], what: str) -> str:
    limit = knobs.get('time_limit')
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors='replace',
            timeout=limit,
            check=False,
        )
    except OSError as error:
        raise MissingError(f'{command[0]} cannot be run ({error.strerror})') from None
    except subprocess.TimeoutExpired:
        raise CheckError(f'{what} took longer than {limit:g} s') from None
    said = (done.stderr + done.stdout).splitlines()
    last = f' (it said: {said[-1].strip()})' if said else ''
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        why = ': it touched memory that is not its own' if name in ('SIGSEGV', 'SIGBUS') else ''
        raise CheckError(f'{what} was killed by {name}{why}{last}')
    if done.returncode:
        raise CheckError(f'{what} ended with code {done.returncode}{last}')
    return done.stdout


def _probe(tools: Toolchain, row: Isa) -> str:
    """Names of the required features that the emulated processor lacks."""
    lines = ['#include <math.h>', '#include <stdio.h>', 'int main(int argc, char **argv)', '{']
    if row.arch == 'x86_64':
        lines += [
            f'    if (!__builtin_cpu_supports("{flag}")) puts("{flag}");'
            for flag in row.required_flags
        ]
    lines += ['    return !argv || expf((float)argc) < 1.0f;', '}', '']
    return run_text('\n'.join(lines), tools)
