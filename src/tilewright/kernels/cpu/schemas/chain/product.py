"""A chain whose last part is an outer product: its packed tiles are computed, not copied.

Goes in: a `ProductPlan`. Comes out: C. Panels, micro-kernels, stores and loops are the outer
schema's; the function that fills a tile is that of the part before (rows.py). What that one reads
may be computed for each tile, too (expand.py).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.pointwise import write_epilogue
from tilewright.kernels.cpu.schemas.chain.expand import first_row, image_strides, write_expand
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
    called += before.outer.functions if before else ()
    write_epilogue(writer, tuple(dict.fromkeys(called)))
    write_sliding(writer, sliding)
    write_kernels(writer, outer)
    constants = [tensor.name for tensor in group.with_role('constant')]
    places = abi.constant_places(group, packed, outer.packed_floats)
    first = before.outer.contraction.b.tensor if before else ''
    # The first part's panels take the place of its weights, at the end of all.
    places.pop(first, None)
    behind = max((places[n] + abi.aligned(group.tensor(n).size) for n in places),
                 default=abi.aligned(outer.packed_floats))  # fmt: skip
    if before:
        write_expand(writer, before, places, behind)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    write_weights(writer, outer, f'constants[{constants.index(packed)}]')
    abi.write_constants(writer, group, places, outer.packed_floats)
    if before:
        writer.open('')
        writer.line(f'float *const at = packed + {behind};')
        writer.open('')
        writer.line('float *packed = at;')
        write_weights(writer, before.outer, f'constants[{constants.index(first)}]')
        writer.close(2)
    writer.close()
    writer.line()
    floats = behind + (before.outer.packed_floats if before else 0)
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    read = (sliding.shape.b.tensor, *(item.tensor for item in sliding.epilogue.operands))
    image = sliding.shape.a.tensor
    arguments = ', '.join(pointer(tensor) for tensor in read)
    fill = f'fill_tile({"rows" if before else pointer(image)}, {arguments}, buffer, from, extent);'
    writer.open('void tw_part(const tw_args *args, long part)')
    write_nest(writer, outer, pointer, _expanded(p, pointer, behind) + fill)
    writer.close()
    return writer.text()


def _expanded(p: ProductPlan, pointer: Callable[[str], str], packed: int) -> str:
    """C statements before a tile is filled: `rows` is where row 0 of the image would be."""
    before = p.expand
    if before is None:
        return ''
    down, (image, row) = p.sliding.shape.down, image_strides(before.part)
    source = pointer(before.outer.contraction.a.tensor)
    begin = first_row(before, down.step, min(down.taps), 'from[2]')
    region = f'buffer + {abi.aligned(p.outer.scratch_floats)}'
    return (
        f'const long begin = {begin}; float *region = {region}; '
        f'expand({source} + from[0] * {image} + begin * {row}, args->packed + {packed}, region, '
        f'region + {before.region_floats}); '
        f'const float *rows = region - begin * {before.width}; '
    )
