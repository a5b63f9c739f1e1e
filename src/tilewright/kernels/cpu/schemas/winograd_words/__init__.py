"""The Winograd schema of whole numbers: exact, tiles of NHWC images, products in words."""

from tilewright.kernels.cpu.schema import FLAGS, CpuSchema
from tilewright.kernels.cpu.schemas.winograd_words.code import generate
from tilewright.kernels.cpu.schemas.winograd_words.plan import (
    draw_winograd_words,
    plan_winograd_words,
    product,
    title,
)
from tilewright.ops.winograd_words import why_not_words

WINOGRAD_WORDS = CpuSchema(
    name='winograd_words',
    words=title,
    plan=plan_winograd_words,
    generate=generate,
    why_not=why_not_words,
    rank='tilewright.search.cpu.rank_winograd_words:rank_winograd_words',
    time='tilewright.model.cpu.winograd_words_time:predict_winograd_words',
    draw=draw_winograd_words,
    stage=product,
    algorithm='winograd',
    flags=(*FLAGS, '-fwrapv'),
    dtypes=(('i16', 'i32'), ('i32', 'i32')),
    any_dtype=True,
    integer=True,
    fixed=True,
)
