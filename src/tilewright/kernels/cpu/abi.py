"""The binary interface of every generated kernel: what runtime/cpu/kernel.py calls."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernels.cpu.expression import BF16
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

HEAD = """\
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const float *const *in; /* 'input' tensors, in group order */
    const float *packed;    /* constants, packed by tw_pack */
    float *out;
    char *scratch;          /* tw_parts() * tw_scratch_bytes() */
} tw_args;

long tw_parts(void);
long tw_scratch_bytes(void);
long tw_packed_bytes(void);
void tw_pack(const float *const *constants, float *packed);
void tw_part(const tw_args *args, long part);

static inline long min_long(long a, long b) { return a < b ? a : b; }
static inline long max_long(long a, long b) { return a > b ? a : b; }
"""

SHARED = 'long tw_parts_share(void)'


def aligned(floats: int) -> int:
    """Floats rounded up to whole cache lines of 64 bytes."""
    return -(-floats // 16) * 16


def constant_places(group: Group, packed: str, ahead: int) -> dict[str, int]:
    """Where each constant but `packed` lies, in floats: behind `ahead` of them, on whole lines."""
    places, offset = {}, aligned(ahead)
    for tensor in group.with_role('constant'):
        if tensor.name != packed:
            places[tensor.name] = offset
            offset += aligned(tensor.size)
    return places


def write_constants(writer: Writer, group: Group, places: Mapping[str, int], ahead: int) -> int:
    """In tw_pack: constants copied to their places. Comes out: floats of all that is packed."""
    total = aligned(ahead)
    for number, tensor in enumerate(group.with_role('constant')):
        if tensor.name in places:
            size = f'{tensor.size} * sizeof(float)'
            writer.line(f'memcpy(packed + {places[tensor.name]}, constants[{number}], {size});')
            total += aligned(tensor.size)
    return total


def behind(
    group: Group, packed: str, ahead: int, more: Mapping[str, int]
) -> tuple[dict[str, int], int]:  # fmt: skip
    """As `constant_places`, of constants of any dtype and of what else is kept, by its floats; and
    floats of all.
    """
    sizes = {t.name: -(-t.bytes // 4) for t in group.with_role('constant') if t.name != packed}
    places, offset = {}, aligned(ahead)
    for name, floats in {**sizes, **more}.items():
        places[name] = offset
        offset += aligned(floats)
    return places, offset


def write_behind(
    writer: Writer, group: Group, packed: str, places: Mapping[str, int]
) -> None:  # fmt: skip
    """In tw_pack: constants of any dtype but `packed`, copied to their places."""
    for number, tensor in enumerate(group.with_role('constant')):
        if tensor.name != packed:
            place = f'packed + {places[tensor.name]}'
            writer.line(f'memcpy({place}, constants[{number}], {tensor.bytes});')


def write_head(writer: Writer, group: Group, schedule: Schedule) -> None:
    writer.line(f'/* {group.label}: {schedule.schema} schema, {schedule.isa}')
    for level in reversed(schedule.levels):
        tiles = ' '.join(f'{name}={level.tile[name]}' for name in level.order)
        writer.line(f'   {level.name}: {tiles}')
    if schedule.options:
        chosen = ' '.join(f'{name}={value}' for name, value in schedule.options)
        writer.line(f'   options: {chosen}')
    ways = ' '.join(f'{name}/{ways}' for name, ways in schedule.parallel) or 'one thread'
    writer.line(f'   parallel: {ways}; packs: {schedule.pack or "nothing"} */')
    writer.lines += HEAD.splitlines()
    writer.line()
    if any(tensor.dtype == 'bf16' for tensor in group.tensors):
        writer.lines += BF16.splitlines()
        writer.line()


def write_sizes(
    writer: Writer, parts: int, scratch_floats: int, packed_floats: int, shared: bool = False
) -> None:  # fmt: skip
    """The three size functions; scratch is in bytes for one part. `shared`: parts use each other's
    memory, and have one address of arguments; one function more says so.
    """
    writer.line(f'long tw_parts(void) {{ return {parts}; }}')
    writer.line(f'long tw_scratch_bytes(void) {{ return {4 * aligned(scratch_floats)}; }}')
    writer.line(f'long tw_packed_bytes(void) {{ return {4 * aligned(packed_floats)}; }}')
    if shared:
        writer.line(f'{SHARED} {{ return 1; }}')
    writer.line()
