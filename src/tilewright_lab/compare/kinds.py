"""Kinds of convolutions, for means by kind. Derived from the shape alone, never from a name.

Goes in: a convolution's numbers. Comes out: one of `KINDS`. Which limit matters differs by kind:
multiplications in dense 3x3 layers, the image's border and strided reads in first and strided ones,
memory in depthwise ones. So a mean over all layers may hide a kind that loses.
"""

from __future__ import annotations

from tilewright.ops.convolution import Convolution

DENSE_3X3 = 'dense 3x3 stride 1'
STRIDED_OR_FIRST = 'strided and first'
POINTWISE = '1x1 stride 1'
DEPTHWISE = 'depthwise'
OTHER = 'other'
KINDS = (DENSE_3X3, STRIDED_OR_FIRST, POINTWISE, DEPTHWISE, OTHER)
# A layer with so few channels reads an image, and has no reduction over channels to speak of.
FIRST_CHANNELS = 4


def kind_of(conv: Convolution) -> str:
    """[Convolution] -> one of `KINDS`; a depthwise layer stays one when it is strided."""
    if conv.groups > 1 and conv.groups == conv.c:
        return DEPTHWISE
    if conv.rank != 2 or conv.transposed:
        return OTHER
    if conv.stride != (1, 1) or conv.c <= FIRST_CHANNELS:
        return STRIDED_OR_FIRST
    if conv.groups == 1 and conv.taps == (1, 1):
        return POINTWISE
    if conv.groups == 1 and conv.taps == (3, 3) and conv.dilation == (1, 1):
        return DENSE_3X3
    return OTHER
