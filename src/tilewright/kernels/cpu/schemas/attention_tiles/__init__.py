"""The schema of attention in tiles: both products of bf16, what is between them in float32."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.attention.words import attention_words
from tilewright.kernels.cpu.schemas.attention_tiles.code import generate
from tilewright.kernels.cpu.schemas.attention_tiles.plan import plan_tiled_attention, why_not
from tilewright.kernels.cpu.schemas.attention_tiles.space import tiled_attention_choices
from tilewright.kernels.cpu.schemas.general.code import FLAGS

ATTENTION_TILES = CpuSchema(
    name='attention_tiles',
    words='attention in tiles, running maximum and sum',
    plan=plan_tiled_attention,
    generate=generate,
    why_not=why_not,
    choices=tiled_attention_choices,
    time='tilewright.model.cpu.attention_time:predict_tiled_attention',
    lines=lambda group, schedule: attention_words(plan_tiled_attention(group, schedule)),
    stage=lambda group, _schedule: group.stages[-1],
    flags=FLAGS,
    dtypes=(('bf16', 'f32'),),
    any_dtype=True,
    storage=('register', 'cache'),
    tiles=True,
    fixed=True,
)
