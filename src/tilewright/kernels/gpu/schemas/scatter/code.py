"""The schema of scattered rows: sums of the rows that a list sends to each row of a table.

Goes in: a group Grad[x, a] = sum over j of (f(In[j]) = x ? Up[j, a] : 0) with what follows it, the
gradient of a table of embeddings (`rows_at_once` of ops/scatter.py). Comes out: a module of one
kernel. A block owns some rows x, whose sums are in shared memory:

    it reads the list, some numbers a thread, and writes those that are its own to shared memory in
    the order of the list: counts of threads, added up, say where each of them writes;
    it adds the rows Up[j] of that short list one by one, always the same thread to a column, and
    asks for several before it adds the first;
    it applies what follows and stores its rows.

No atomics, and one order of every sum. Decisions:

    threads   of a block, a power of two            rows   of the table that a block owns
"""

from __future__ import annotations

import math

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_iterators
from tilewright.kernels.cpu.schemas.general.plan import Tables, affine_text, piece_of, read_texts
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.point import Point
from tilewright.kernels.gpu.schema import RESERVED, Detour
from tilewright.kernels.gpu.schemas.general.run import arguments
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.scatter import Scattered, scattered
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'scatter'
EACH = 8  # numbers of the list that a thread reads at once
AT_ONCE = 16  # rows that are asked for before the first is added: many may go to one row
MOST_SUMS = 8192  # floats of shared memory that hold the sums of a block
ROWS = 64  # of a block, where they fit


def _found(group: Group) -> Scattered | None:
    return scattered(group.main) if parts(group) == (group,) else None


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]; raises ScheduleError where it does not fit."""
    found, threads, rows = _found(group), schedule['threads'], schedule['rows']
    if found is None or rows < 1 or threads < 2 or threads & (threads - 1):
        raise ScheduleError(
            f'{group.label}: the {NAME} schema adds rows that a list names, by a power of two of '
            f'threads, not {threads}, in blocks of at least one row'
        )
    if rows * _columns(group, found) > MOST_SUMS:
        raise ScheduleError(
            f'{group.label}: sums of {rows} rows are more than {MOST_SUMS} numbers; take fewer'
        )
    safe, _ = safe_iterators(group, RESERVED | {'got', 'turn'})
    made = _kernel(safe, threads, rows)
    return Module(group, tensor_buffers(group), (Step.of(made),))


def _columns(group: Group, found: Scattered) -> int:
    return math.prod(group.main.sizes[d] for d in group.main.parallel if d != found.row)


def _kernel(group: Group, threads: int, rows: int) -> Kernel:
    tables, typed = Tables(), GpuTyped()
    used: list[str] = []

    def pointer(tensor: str, _: Access) -> tuple[str, tuple[int, ...]]:
        used.append(tensor)
        return tensor, group.tensor(tensor).strides

    stage, found = group.main, scattered(group.main)
    assert found is not None
    piece = piece_of(group, tables, pointer, {}, ())
    point = Point(piece, typed)
    x, j = found.row, found.place
    texts = read_texts(piece.reads, [], point.element)
    iterators = {name: affine_text(at) for name, at in piece.iterators.items()}
    text, dtype = typed.text(found.number, texts, iterators)
    number = narrow(typed.convert(text, dtype, 'i32'))
    across = [(d, stage.sizes[d]) for d in stage.parallel if d != x]
    columns, count, extent = _columns(group, found), stage.sizes[j], stage.sizes[x]
    piece_length = threads * EACH
    body = [
        f'const int first = BLOCK_X * {rows};',
        'SHARED int *const from = (SHARED int *)listed;',
        'SHARED int *const counts = (SHARED int *)joined;',
        f'for (int i = THREAD; i < {rows * columns}; i += {threads})',
        '    sums[i] = 0.0f;',
        f'for (int base = 0; base < {count}; base += {piece_length}) {{',
        f'    int rows[{EACH}], mine = 0;',
        '#pragma unroll',
        f'    for (int i = 0; i < {EACH}; i++) {{',
        f'        const int {j} = base + THREAD * {EACH} + i;',
        '        rows[i] = -1;',
        f'        if ({j} < {count}) {{',
        f'            const int row = {number} - first;',
        f'            if ((unsigned)row < {rows}u) {{',
        '                rows[i] = row;',
        '                mine++;',
        '            }',
        '        }',
        '    }',
        '    BARRIER;',
        '    counts[THREAD] = mine;',
        '    BARRIER;',
        f'    for (int step = 1; step < {threads}; step *= 2) {{',
        '        const int left = THREAD >= step ? counts[THREAD - step] : 0;',
        '        BARRIER;',
        '        counts[THREAD] += left;',
        '        BARRIER;',
        '    }',
        '    int at = counts[THREAD] - mine;',
        '#pragma unroll',
        f'    for (int i = 0; i < {EACH}; i++) {{',
        '        if (rows[i] >= 0) {',
        f'            from[2 * at] = base + THREAD * {EACH} + i;',
        '            from[2 * at + 1] = rows[i];',
        '            at++;',
        '        }',
        '    }',
        '    BARRIER;',
        f'    const int all = counts[{threads - 1}];',
        f'    for (int column = THREAD; column < {columns}; column += {threads}) {{',
        *pieces.indented(pieces.decode('column', across), 2),
        f'        for (int i = 0; i < all; i += {AT_ONCE}) {{',
        f'            float got[{AT_ONCE}];',
        '#pragma unroll',
        f'            for (int turn = 0; turn < {AT_ONCE}; turn++) {{',
        f'                const int {j} = from[2 * min(i + turn, all - 1)];',
        f'                got[turn] = {texts[found.added][0]};',
        '            }',
        '#pragma unroll',
        f'            for (int turn = 0; turn < {AT_ONCE}; turn++)',
        '                if (i + turn < all)',
        f'                    sums[from[2 * (i + turn) + 1] * {columns} + column] += got[turn];',
        '        }',
        '    }',
        '}',
        'BARRIER;',
        f'for (int item = THREAD; item < {rows * columns}; item += {threads}) {{',
        f'    const int {x} = first + item / {columns};',
        *([f'    if ({x} < {extent}) {{'] if extent % rows else ['    {']),
        *pieces.indented(pieces.decode(f'(item % {columns})', across), 2),
        '        const float value_0 = sums[item];',
        *pieces.indented(point.finish(), 2),
        '    }',
        '}',
    ]
    return Kernel(
        f'{NAME}_{stage.name}', arguments(group, used), '\n'.join(body),
        (-(-extent // rows), 1, 1), threads,
        (('sums', rows * columns), ('listed', 2 * piece_length), ('joined', threads)),
        typed.helpers(),
    )  # fmt: skip


def detour(group: Group, _: GpuSchedule) -> Detour:
    """Every row of the list is added once; all blocks read the list."""
    added = sum(stage.points for stage in group.stages) // group.main.sizes[group.main.parallel[0]]
    return Detour(2 * added, ())


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    found = _found(group)
    if found is None:
        return ()
    rows = min(ROWS, MOST_SUMS // 2 // _columns(group, found))
    threads = min(256, machine.threads_per_block)
    return (GpuSchedule.of(NAME, threads=threads, rows=rows),) if rows else ()
