"""The attention schema: two products with a softmax between, block by block of rows and keys."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.attention.code import generate
from tilewright.kernels.cpu.schemas.attention.plan import plan_attention, why_not
from tilewright.kernels.cpu.schemas.attention.space import attention_choices
from tilewright.kernels.cpu.schemas.attention.words import attention_lines
from tilewright.kernels.cpu.schemas.general.code import FLAGS

ATTENTION = CpuSchema(
    name='attention',
    words='attention, running maximum and sum',
    plan=plan_attention,
    generate=generate,
    why_not=why_not,
    choices=attention_choices,
    time='tilewright.model.cpu.attention_time:predict_attention',
    lines=attention_lines,
    stage=lambda group, _schedule: group.stages[-1],
    flags=FLAGS,
    any_dtype=True,
    storage=('register', 'cache'),
)
