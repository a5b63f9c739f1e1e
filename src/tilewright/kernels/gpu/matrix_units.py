"""How far sums of TF32 products in parts are off: what matrix units leave out, and cut off.

Goes in: the name of an intrinsic, terms of a sum. Comes out: shares of the largest result. Each
operand is cut into two parts of 11 bits, exactly; what is left out, and what the matrix units cut
off the lower parts, is some 2^-21 of a product and does not grow with the sum. What grows is that
these units add without rounding: each addition of eight terms, three for each of the products of
parts, cuts up to 2^-23 off the sum so far, 2^-24 in the mean and always towards zero. A sum of
signed numbers is in the mean less than half of what it becomes at most, so `TERM` is
0.4 * 3 / 8 * 2^-24 for three products of eight depths. On an H200, 263 kernels with 27 to 2,304
terms were off by 0.72 to 1.25 of this; of a training set's schedules ten were wrong by a tolerance
of 1e-4, all of them with 12,544 terms or more.

Sums that matrix units begin anew after some terms (`fresh` of schedules) are added in fp32, which
rounds: then no more than those terms count.

Where the two smaller products are of bf16 (kernels/gpu/schemas/patch/mixed.py), their factors are
rounded to 8 bits: what is left out is some 2^-20 of a product, again without growing, and as they
add sixteen depths at once the sum is cut four times for sixteen depths instead of six.
"""

from __future__ import annotations

from dataclasses import dataclass

ADDITIONS = 3 / 8  # of a matrix unit for each term
TERM = 0.4 * ADDITIONS * 2**-24
CUT = 2**-21
SPREAD = 2**-22


@dataclass(frozen=True, slots=True)
class Parts:
    """What is left out of a product, how much that deviates by, and additions for each term."""

    left_out: float
    spread: float
    additions: float


# How names of such intrinsics end.
_PARTS = {
    'tf32x3': Parts(CUT, SPREAD, ADDITIONS),
    'tf32_bf16': Parts(2 * CUT, 2 * SPREAD, 2 / 3 * ADDITIONS),
}


def parts_of(intrinsic: str) -> Parts | None:
    """None where products are multiply-adds in fp32."""
    return _PARTS.get(intrinsic.partition('mma_')[2])


def cut_off(parts: Parts, terms: int) -> float:
    """What additions cut off a sum of so many terms, as a share of it."""
    return TERM * terms * parts.additions / ADDITIONS
