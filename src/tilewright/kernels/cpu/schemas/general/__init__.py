"""The general schema: plain loops for any group, any expression, combiner, dtype and index."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.general.code import FLAGS, generate, plan_general
from tilewright.kernels.cpu.schemas.general.space import draw_general

GENERAL = CpuSchema(
    name='general',
    words='plain loops',
    plan=plan_general,
    generate=generate,
    rank='tilewright.search.cpu.rank_general:rank_general',
    time='tilewright.model.cpu.general_time:predict_general',
    draw=draw_general,
    flags=FLAGS,
    any_dtype=True,
    storage=('register', 'cache'),  # values of a point; what lies between two parts
    flattens=True,
    registers=False,
    last_resort=True,  # compilers make its inner loops, which no model foresees
    reason='There is no sum of products that registers could hold: the compiler makes them.',
)
