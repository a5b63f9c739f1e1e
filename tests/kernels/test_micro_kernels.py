"""Every micro-kernel shape against its scalar definition, between guard pages.

One program for each instruction set holds hundreds of micro-kernels, each beside `reference_c`. It
runs them with every count and both values of `resume`, on whole numbers (so that sums are exact),
with every buffer exactly as long as the definition says and flush against a page that cannot be
touched, once at its start and once at its end.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.micro import MicroKernel, registers_needed
from tilewright.kernels.cpu.schemas.half.plan import TO_STORE
from tilewright.kernels.cpu.schemas.outer.space import register_tiles
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.stored import Stored
from tilewright_lab.simulate.emulate import run_text

COUNTS = (0, 1, 5)
MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void (*kernel_fn)(const float *, const float *, float *, long, long);
enum { GUARD = 65536 };
static int at_end;

static char *base(long floats, float **data)
{
    const size_t bytes = floats * sizeof(float), inside = (bytes + GUARD - 1) / GUARD * GUARD;
    char *all = mmap(NULL, inside + 3 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *first = (char *)(((size_t)all + 2 * GUARD - 1) / GUARD * GUARD);
    if (all == MAP_FAILED || (inside && mprotect(first, inside, PROT_READ | PROT_WRITE)))
        exit(3);
    *data = (float *)(at_end ? first + inside - bytes : first);
    return all;
}

static void drop(char *all, long floats)
{
    const size_t bytes = floats * sizeof(float);
    munmap(all, (bytes + GUARD - 1) / GUARD * GUARD + 3 * GUARD);
}

static void fill(float *data, long floats, unsigned seed)
{
    for (long i = 0; i < floats; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (float)((int)(seed >> 24) % 9 - 4);
    }
}

/* Numbers of any size that sums of f16 hold: what is rounded, and when, shows. */
static void fill_halves(float *data, long floats, unsigned seed)
{
    for (long i = 0; i < 2 * floats; i++) {
        seed = seed * 1664525u + 1013904223u;
        const unsigned bits = (seed >> 16 & 0x83ff) | ((seed >> 8 & 7) + 10) << 10;
        memcpy((char *)data + 2 * i, &(unsigned short){(unsigned short)bits}, 2);
    }
}

static int try(const char *name, kernel_fn kernel, kernel_fn definition, long a_reach,
               long a_step, long b_step, long acc_floats, long count, long resume)
{
    const long a_floats = count ? a_reach + (count - 1) * a_step : 0, b_floats = count * b_step;
    float *a, *b, *acc, *want = malloc(acc_floats * sizeof(float));
    char *at[] = {base(a_floats, &a), base(b_floats, &b), base(acc_floats, &acc)};
    printf("%s count=%ld resume=%ld\\n", name, count, resume);
    fflush(stdout);
    (HALF ? fill_halves : fill)(a, a_floats, 1);
    (HALF ? fill_halves : fill)(b, b_floats, 2);
    fill(acc, acc_floats, 3);
    memcpy(want, acc, acc_floats * sizeof(float));
    definition(a, b, want, count, resume);
    kernel(a, b, acc, count, resume);
    const int wrong = memcmp(want, acc, acc_floats * sizeof(float)) != 0;
    drop(at[0], a_floats);
    drop(at[1], b_floats);
    drop(at[2], acc_floats);
    free(want);
    return wrong;
}

int main(void)
{
    for (at_end = 0; at_end < 2; at_end++)
        for (long resume = 0; resume < 2; resume++)
            for (int c = 0; c < (int)(sizeof counts / sizeof *counts); c++)
                for (int k = 0; k < (int)(sizeof kernels / sizeof *kernels); k++)
                    if (try(kernels[k].name, kernels[k].kernel, kernels[k].definition,
                            kernels[k].a_reach, kernels[k].a_step, kernels[k].b_step,
                            kernels[k].acc_floats, counts[c], resume * 7))
                        return 1;
    puts("all right");
    return 0;
}
"""


def shapes(isa: str) -> list[tuple[int, int]]:
    """Every (pixels, vectors) whose registers suffice: the offered tiles and all their tails."""
    have = ISAS[isa].registers
    return [
        (pixels, vectors)
        for vectors in range(1, 5)
        for pixels in range(1, have)
        if registers_needed(pixels, vectors, ISAS[isa].weight_registers) <= have
    ]


def layouts(pixels: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]:
    """name -> (pixel offsets, step offsets, a_step): how an operand may lie in memory."""
    columns = max(1, pixels // 2)
    rows = [(i // columns) * 37 + i % columns for i in range(pixels)]
    return {
        'row': (tuple(range(pixels)), (0, 1, 2), 50),
        'scattered': (tuple(3 * i for i in range(pixels)), (0, 7), 91),
        'rows': (tuple(rows), (0, 1, 37), 111),
        # Offsets beyond the reach of an immediate, and not multiples of what is loaded.
        'far': (tuple(4099 * i + 1 for i in range(pixels)), (0, 17001, 5), 3),
        # Iterations walk along rows, several at a time on some instruction sets.
        'along': (tuple(53 * i for i in range(pixels)), (0,), 1),
    }


def kernels_of(isa: str) -> list[MicroKernel]:
    lanes, made = ISAS[isa].lanes, []
    for pixels, vectors in shapes(isa):
        width = lanes * vectors
        dense = tuple(p * width for p in range(pixels))
        for layout, (offsets, steps, a_step) in layouts(pixels).items():
            # Accumulators of a whole part lie further apart than those of one tile.
            acc = tuple(p * (width + 12) for p in range(pixels)) if layout == 'rows' else dense
            name = f'{micro.micro_name(isa, (pixels,), vectors)}_{layout}'
            made.append(
                MicroKernel(isa, offsets, vectors, steps, a_step, acc, name, dtype=ISAS[isa].dtype)
            )
            if micro.can_turn(isa, offsets):
                made.append(
                    MicroKernel(
                        isa, offsets, vectors, steps, a_step, acc, f'{name}_turned', turned=True
                    )
                )
    far = tuple(p * 70_000 for p in range(3))
    name = f'mk_{isa}_far_acc'
    made.append(
        MicroKernel(isa, (0, 1, 2), 2, (0,), 20_000_000 // 4, far, name, dtype=ISAS[isa].dtype)
    )
    return made


def program(kernels: list[MicroKernel]) -> str:
    text, rows = [], []
    for kernel in kernels:
        definition = replace(kernel, name=f'{kernel.name}_definition')
        text += [micro.emit(kernel), micro.reference_c(definition)]
        width = kernel.lanes * kernel.vectors
        reach = max(kernel.steps) + max(kernel.pixels) + 1
        rows.append(
            f'    {{"{kernel.name}", {kernel.name}, {definition.name}, {reach}, {kernel.a_step}, '
            f'{len(kernel.steps) * width}, {max(kernel.acc) + width}}},'
        )
    table = [
        'static const struct { const char *name;',
        '    void (*kernel)(const float *, const float *, float *, long, long);',
        '    void (*definition)(const float *, const float *, float *, long, long);',
        '    long a_reach, a_step, b_step, acc_floats; } kernels[] = {',
        *rows,
        '};',
        f'static const long counts[] = {{{", ".join(map(str, COUNTS))}}};',
        f'#define HALF {int(kernels[0].dtype == "f16")}',
    ]
    return '\n'.join([*text, *table]) + MAIN


@pytest.mark.parametrize('third', [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_every_shape_computes_its_definition_and_nothing_else(isa, third, tools):
    """A shape has at least five kernels, so that each third has one of every shape."""
    kernels = kernels_of(isa)[third::3]
    printed = run_text(program(kernels), tools(isa), ISAS[isa].compiler_flags).splitlines()
    assert printed[-1] == 'all right'
    assert len(printed) == 1 + len(kernels) * len(COUNTS) * 2 * 2


@pytest.mark.isa
@pytest.mark.parametrize('third', [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize('accumulation', ['f32', 'f16'])
def test_every_shape_of_f16_rounds_as_its_definition(half, accumulation, third, tools):
    """Products are added in f16, one rounding each; sums of a call in float32, or in f16."""
    name, base = half
    kernels = [replace(k, accumulation=accumulation) for k in kernels_of(name)[third::3]]
    printed = run_text(program(kernels), tools(base), ISAS[name].compiler_flags).splitlines()
    assert printed[-1] == 'all right'
    assert len(printed) == 1 + len(kernels) * len(COUNTS) * 2 * 2


FINISHED = """
typedef void (*finish_fn)(const float *, const float *, _Float16 *, long, const float *,
                          const _Float16 *);
static int try_finish(const char *name, finish_fn kernel, finish_fn definition, long a_reach,
                      long a_step, long b_step, long results, long count)
{
    const long a_floats = count ? a_reach + (count - 1) * a_step : 0, b_floats = count * b_step;
    float *a, *b, *out, *want, *bias, *more;
    const long floats = (results + 1) / 2, lanes = b_step;
    char *at[] = {base(a_floats, &a), base(b_floats, &b), base(floats, &out), base(floats, &want),
                  base(lanes, &bias), base(floats, &more)};
    printf("%s count=%ld\\n", name, count);
    fflush(stdout);
    fill_halves(a, a_floats, 1);
    fill_halves(b, b_floats, 2);
    fill_halves(more, floats, 3);
    fill(bias, lanes, 4);
    fill_halves(out, floats, 5);
    memcpy(want, out, 4 * floats);
    definition(a, b, (_Float16 *)want, count, bias, (_Float16 *)more);
    kernel(a, b, (_Float16 *)out, count, bias, (_Float16 *)more);
    const int wrong = memcmp(want, out, 4 * floats) != 0;
    const long sizes[] = {a_floats, b_floats, floats, floats, lanes, floats};
    for (int i = 0; i < 6; i++)
        drop(at[i], sizes[i]);
    return wrong;
}

int main(void)
{
    for (at_end = 0; at_end < 2; at_end++)
        for (int c = 0; c < (int)(sizeof counts / sizeof *counts); c++)
            for (int k = 0; k < (int)(sizeof kernels / sizeof *kernels); k++)
                if (try_finish(kernels[k].name, kernels[k].kernel, kernels[k].definition,
                               kernels[k].a_reach, kernels[k].a_step, kernels[k].b_step,
                               kernels[k].results, counts[c]))
                    return 1;
    puts("all right");
    return 0;
}
"""


def finished_program(kernels: list[MicroKernel]) -> str:
    """As `program`, for kernels that store results."""
    text, rows = [], []
    for kernel in kernels:
        assert kernel.finish is not None
        definition = replace(kernel, name=f'{kernel.name}_definition')
        text += [micro.emit(kernel), micro.reference_c(definition)]
        width = kernel.lanes * kernel.vectors
        reach = max(kernel.steps) + max(kernel.pixels) + 1
        names = f'(finish_fn){kernel.name}, (finish_fn){definition.name}'  # of f16 or of bytes
        rows.append(
            f'    {{"{kernel.name}", {names}, {reach}, {kernel.a_step}, '
            f'{len(kernel.steps) * width}, {max(kernel.finish.out) + width}}},'
        )
    table = [
        'static const struct { const char *name; finish_fn kernel, definition;',
        '    long a_reach, a_step, b_step, results; } kernels[] = {', *rows, '};',
        f'static const long counts[] = {{{", ".join(map(str, COUNTS))}}};',
    ]  # fmt: skip
    head, main = MAIN.split('static int try(')[0], FINISHED.split('static int try_finish(')
    return '\n'.join([head, main[0], *text, *table]) + '\nstatic int try_finish(' + main[1]


@pytest.mark.isa
def test_every_shape_of_f16_finishes_its_results(half, tools):
    """A bias, other numbers, limits, bytes: all that follows, of every shape, at guard pages."""
    name, base = half
    kernels = []
    for number, (pixels, vectors) in enumerate(shapes(name)):
        width = ISAS[name].lanes * vectors
        apart = width + (0, 8, 40_000)[number % 3]
        stored = (None, Stored('u8', 0.0235, 3), Stored('i8', 0.1, -128))[number // 3 % 3]
        if ISAS[name].registers - pixels * vectors < TO_STORE:
            stored = None
        finish = micro.Finish(
            tuple(p * apart for p in range(pixels)), number % 2 == 0, number % 5 < 2,
            (None, 0.0, -1.5)[number % 3], (None, 6.0)[number // 2 % 2], stored,
        )  # fmt: skip
        offsets, steps, a_step = list(layouts(pixels).values())[number % 5]
        kernels.append(
            MicroKernel(
                name, offsets, vectors, steps, a_step, (), f'mk_{name}_{number}', dtype='f16',
                finish=finish,
            )
        )  # fmt: skip
    text = finished_program(kernels)
    printed = run_text(text, tools(base), ISAS[name].compiler_flags).splitlines()
    assert printed[-1] == 'all right'
    assert len(printed) == 1 + len(kernels) * len(COUNTS) * 2


@pytest.mark.parametrize('name', list(ISAS))
def test_the_shapes_contain_every_register_tile_that_is_offered(name):
    group = conv2d(c=8, h=40, w=40, k=256, r=3, s=3)
    contraction = contract(group, 'k')
    offered = {
        (tile['h'] * tile['w'], tile['k'] // ISAS[name].lanes)
        for tile in register_tiles(contraction, ISAS[name])
    }
    assert offered <= set(shapes(name))
    assert max(vectors for _, vectors in offered) == 4


def test_channels_of_any_size_can_be_stepped_over(isa, tools):
    """With channels of 36 megabytes and more, what is prefetched lies out of reach."""
    kernels = [
        MicroKernel(isa, (0,), 1, (0,), side * side, (0,), f'mk_{isa}_side{side}')
        for side in (3000, 4500, 9000)
    ]
    text = program(kernels).replace(f'{{{", ".join(map(str, COUNTS))}}}', '{0, 1}')
    assert run_text(text, tools(isa), ISAS[isa].compiler_flags).endswith('all right\n')


def test_blocks_are_turned_where_pixels_are_runs_of_four():
    runs = (0, 1, 2, 3, 37, 38, 39, 40)
    assert micro.can_turn('neon', runs)
    assert not micro.can_turn('neon', runs[:6])
    assert not micro.can_turn('neon', (0, 2, 4, 6))
    assert not micro.can_turn('avx2', runs)
    with pytest.raises(ScheduleError, match='runs of four'):
        MicroKernel('neon', (0, 2, 4, 6), 1, (0,), 1, (0, 4, 8, 12), 'mk', turned=True)


@pytest.mark.parametrize('name', list(ISAS))
def test_a_tile_with_one_register_too_many_is_refused(name):
    have = ISAS[name].registers
    for pixels, vectors in itertools.product(range(1, have + 1), range(1, 5)):
        fits = pixels * vectors + vectors + 1 <= have
        arguments = (name, tuple(range(pixels)), vectors, (0,), 1, (0,) * pixels, 'mk')
        if fits:
            assert MicroKernel(*arguments).lanes == ISAS[name].lanes
        else:
            with pytest.raises(ScheduleError, match=f'{name} has {have}'):
                MicroKernel(*arguments)


def test_rows_are_walked_along_where_registers_hold_four_numbers_of_each():
    def along(isa: str, rows: int, vectors: int, a_step: int = 1, apart: int = 53) -> bool:
        offsets, acc = tuple(apart * i for i in range(rows)), tuple(range(rows))
        return micro.along_rows(MicroKernel(isa, offsets, vectors, (0,), a_step, acc, 'mk'))

    assert along('neon', 6, 4)
    assert not along('neon', 8, 3)  # 24 sums and 8 rows leave no register for weights
    assert not along('neon', 6, 4, a_step=8)
    assert not along('neon', 6, 4, apart=1)  # neighbours, which one load brings
    assert not along('avx2', 2, 2)  # numbers are broadcast from memory
    assert micro.in_place(ISAS['avx2'], 2, 2)
    assert not micro.in_place(ISAS['neon'], 8, 3)
