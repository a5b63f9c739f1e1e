"""A chain whose last part is an outer product: its packed tiles are computed, not copied.

Goes in: a `ProductPlan`. Comes out: C. Panels, micro-kernels, stores and loops are the outer
schema's; the function that fills a tile is the first part's (rows.py).
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.pointwise import write_epilogue
from tilewright.kernels.cpu.schemas.chain.plan import ProductPlan
from tilewright.kernels.cpu.schemas.chain.rows import write_sliding
from tilewright.kernels.cpu.schemas.outer.code import write_kernels, write_nest
from tilewright.kernels.cpu.schemas.outer.panels import write_weights
from tilewright.kernels.cpu.writer import Writer


def generate_product(p: ProductPlan) -> str:
    """[ProductPlan] -> [C source]"""
    group, outer, writer = p.group, p.outer, Writer()
    sliding, packed = p.sliding, outer.contraction.b.tensor
    abi.write_head(writer, group, p.schedule)
    write_epilogue(writer, tuple(dict.fromkeys((*sliding.epilogue.functions, *outer.functions))))
    write_sliding(writer, sliding)
    write_kernels(writer, outer)
    constants = [tensor.name for tensor in group.with_role('constant')]
    places = abi.constant_places(group, packed, outer.packed_floats)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    write_weights(writer, outer, f'constants[{constants.index(packed)}]')
    floats = abi.write_constants(writer, group, places, outer.packed_floats)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, outer.scratch_floats, floats)
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    read = (sliding.shape.a.tensor, sliding.shape.b.tensor)
    tensors = (*read, *(item.tensor for item in sliding.epilogue.operands))
    arguments = ', '.join(pointer(tensor) for tensor in tensors)
    writer.open('void tw_part(const tw_args *args, long part)')
    write_nest(writer, outer, pointer, f'fill_tile({arguments}, buffer, from, extent);')
    writer.close()
    return writer.text()
