"""The chain schema: parts of a group one after the other, tile by tile, in a thread's own cache.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    for each tile of the result that this thread owns
      for each part but the last     its region of the tile, into scratch memory
      the last part                  out of scratch memory, into the result
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.chain.across import AcrossPlan, generate_across
from tilewright.kernels.cpu.schemas.chain.nests import generate_nests
from tilewright.kernels.cpu.schemas.chain.plan import NestPlan, ProductPlan
from tilewright.kernels.cpu.schemas.chain.product import generate_product


def generate(p: NestPlan | ProductPlan | AcrossPlan) -> str:
    """[plan] -> [C source]"""
    if isinstance(p, AcrossPlan):
        return generate_across(p)
    return generate_product(p) if isinstance(p, ProductPlan) else generate_nests(p)
