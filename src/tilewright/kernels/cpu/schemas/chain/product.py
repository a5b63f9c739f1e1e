"""A chain whose last part is an outer product: its packed tiles are computed, not copied.

Goes in: a `ProductPlan`. Comes out: C. Panels, micro-kernels, stores and loops are the outer
schema's; the function that fills a tile is that of the part before (rows.py). What that one reads
may be computed for each tile, too (expand.py).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.pointwise import write_epilogue
from tilewright.kernels.cpu.schemas.chain import expand
from tilewright.kernels.cpu.schemas.chain.expand import write_expand
from tilewright.kernels.cpu.schemas.chain.plan import ProductPlan
from tilewright.kernels.cpu.schemas.chain.rows import write_sliding
from tilewright.kernels.cpu.schemas.outer.code import write_kernels, write_nest
from tilewright.kernels.cpu.schemas.outer.panels import write_weights
from tilewright.kernels.cpu.writer import Writer


def generate_product(p: ProductPlan) -> str:
    """[ProductPlan] -> [C source]"""
    group, outer, writer = p.group, p.outer, Writer()
    sliding, before, packed = p.sliding, p.expand, outer.contraction.b.tensor
    abi.write_head(writer, group, p.schedule)
    called = (*sliding.epilogue.functions, *outer.functions)
    called += before.epilogue.functions if before else ()
    write_epilogue(writer, tuple(dict.fromkeys(called)))
    write_sliding(writer, sliding)
    if before:
        write_expand(writer, before)
    write_kernels(writer, outer)
    constants = [tensor.name for tensor in group.with_role('constant')]
    places = abi.constant_places(group, packed, outer.packed_floats)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    write_weights(writer, outer, f'constants[{constants.index(packed)}]')
    blocks = before.weights.tensor if before else ''
    if before:
        # As large as they are given: blocks of channels take their place.
        source = f'constants[{constants.index(blocks)}]'
        expand.write_weights(writer, before, source, places[blocks])
    others = {name: at for name, at in places.items() if name != blocks}
    abi.write_constants(writer, group, others, outer.packed_floats)
    writer.close()
    writer.line()
    floats = max(
        (at + abi.aligned(group.tensor(name).size) for name, at in places.items()),
        default=abi.aligned(outer.packed_floats),
    )
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    read = (sliding.shape.b.tensor, *(item.tensor for item in sliding.epilogue.operands))
    arguments = ', '.join(map(pointer, read))
    if before:
        fill = _expanded(p, pointer, arguments)
    else:
        fill = f'fill_tile({pointer(sliding.shape.a.tensor)}, {arguments}, buffer, from, extent);'
    writer.open('void tw_part(const tw_args *args, long part)')
    write_nest(writer, outer, pointer, fill)
    writer.close()
    return writer.text()


def _expanded(p: ProductPlan, pointer: Callable[[str], str], slid: str) -> str:
    """C statements that fill a tile: some channels at a time are computed into `region`, and slid
    over from there. `rows` is where row 0 of channel 0 of the image would be.
    """
    before = p.expand
    assert before is not None
    down, image = p.sliding.shape.down, before.part.tensor(before.image.tensor)
    begin = before.first_row(down.step, min(down.taps), 'from[2]')
    read = (before.weights.tensor, *(item.tensor for item in before.epilogue.operands))
    arguments = ', '.join(map(pointer, read))
    channels = before.channels[1]
    place = p.sliding.splits[1].place('first')
    return (
        f'const long begin = {begin}; '
        f'float *region = buffer + {abi.aligned(p.outer.scratch_floats)}; '
        f'for (long first = 0; first < {channels}; first += {before.held}) {{ '
        f'const long end = min_long(first + {before.held}, {channels}); '
        f'expand({pointer(image.name)} + from[0] * {image.strides[0]} + begin * {before.width}, '
        f'{arguments}, region, first, end); '
        f'const float *rows = region - begin * {before.width} - first * {before.pitch}; '
        f'const long some[4] = {{from[0], first, from[2], from[3]}}; '
        f'const long many[4] = {{extent[0], end - first, extent[2], extent[3]}}; '
        f'fill_tile(rows, {slid}, buffer + {place}, some, many); }}'
    )
