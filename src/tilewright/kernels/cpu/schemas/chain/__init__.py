"""The chain schema: several reducing parts, tile by tile, with what lies between in a cache."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.chain.code import generate
from tilewright.kernels.cpu.schemas.chain.plan import plan_chain, tiled_stage, why_no_chain
from tilewright.kernels.cpu.schemas.chain.space import chain_choices
from tilewright.kernels.cpu.schemas.chain.words import chain_lines
from tilewright.kernels.cpu.schemas.general.code import FLAGS

CHAIN = CpuSchema(
    name='chain',
    words='direct, parts chained tile by tile',
    plan=plan_chain,
    generate=generate,
    why_not=why_no_chain,
    choices=chain_choices,
    time='tilewright.model.cpu.chain_time:predict_chain',
    lines=chain_lines,
    stage=lambda group, _schedule: tiled_stage(group),
    flags=FLAGS,
    storage=('register', 'cache'),
)
