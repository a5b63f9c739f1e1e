"""Convolutions as cuDNN knows them, read off a description; nothing goes by names of dimensions.

    Out[n, K, y, x] += In[n, C, y*sh + r*dh - ph, x*sw + s*dw - pw] * Ker[K, c, r, s]

with K = k, C = c; or K = g*Kg + k, C = g*Cg + c in groups; or K = C = k, each plane on its own.
Padding is the same on both sides: what reaches further only behind the image is refused.
"""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schemas.library.behind import Behind, Operand
from tilewright.kernels.gpu.schemas.library.calls import ConvolutionCall
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Stage

CHANNEL = 1  # the axis of channels


def convolution_of(part: Group) -> tuple[ConvolutionCall, dict[str, Tensor]]:
    """[Group of one part] -> (the call, tensors it reads); a ScheduleError says why there is none.

    It stands for the main stage alone.
    """
    main = part.main
    if not main.is_product_sum or main.pad_value != 0 or part.stages[0] is not main:
        raise _no(part, 'is not a sum of products')
    first, second = main.reads
    ranks = [len(a.index) for a in (main.write, first, second)]
    if ranks != [4, 4, 4]:
        raise _no(part, 'has no images and filters of two dimensions')
    trouble = _no(part, 'has no window over an image')
    for image, weights in ((first, second), (second, first)):
        try:
            call = _call(part, image, weights)
        except ScheduleError as error:
            # The tensor with a window is the image: what is said of it counts.
            trouble = error if _is_window(main, weights) else trouble
            continue
        return call, {'x': part.tensor(image.tensor), 'w': part.tensor(weights.tensor)}
    raise trouble


def _is_window(main: Stage, weights: Access) -> bool:
    """Whether these are filters: a tap of them is one index each."""
    return all(len(e.terms) <= 1 for e in weights.index[2:]) and not any(
        name in main.parallel for e in weights.index[2:] for name in e.names
    )


def _call(part: Group, image: Access, weights: Access) -> ConvolutionCall:
    main, sizes = part.main, part.main.sizes
    x, w = part.tensor(image.tensor), part.tensor(weights.tensor)
    batch, channel, *pixels = main.write.index
    if image.index[0] != batch or batch.const or len(batch.terms) > 1:
        raise _no(part, 'does not read the image of its own result')
    groups = _groups(part, channel, image.index[1], weights.index[:2], x.shape[1], w.shape)
    windows = [
        _window(part, out, read, tap, extent, taps)
        for out, read, tap, extent, taps in zip(
            pixels, image.index[2:], weights.index[2:], x.shape[2:], w.shape[2:], strict=True
        )
    ]
    (out_h, sh, dh, ph), (out_w, sw, dw, pw) = windows
    count = channel.extent(sizes), batch.extent(sizes)
    if count != (w.shape[0], x.shape[0]):
        raise _no(part, 'leaves out some of its filters or images')
    return ConvolutionCall(
        n=x.shape[0], c=x.shape[1], h=x.shape[2], w=x.shape[3], k=w.shape[0], r=w.shape[2],
        s=w.shape[3], out_h=out_h, out_w=out_w, stride=(sh, sw), pad=(ph, pw), dilation=(dh, dw),
        groups=groups,
    )  # fmt: skip


def _groups(
    part: Group, out: Affine, read: Affine, filters: tuple[Affine, ...], channels: int,
    shape: tuple[int, ...],
) -> int:  # fmt: skip
    """Groups of channels that have nothing to do with each other."""
    sizes, reduced = part.main.sizes, part.main.reduction
    inner = [n for n in read.names if n in reduced]
    depth = filters[1]
    if filters[0] != out or out.const or read.const or depth.const or len(inner) > 1:
        raise _no(part, 'mixes channels in another way')
    if tuple(depth.names) != tuple(inner) and any(sizes[n] > 1 for n in (*depth.names, *inner)):
        raise _no(part, 'mixes channels in another way')
    in_group = depth.extent(sizes)
    if in_group != shape[1] or any(c != 1 for e in (depth,) for _, c in e.terms):
        raise _no(part, 'leaves out some of its input channels')
    shared = [(n, c) for n, c in read.terms if n not in inner]
    if not shared:
        groups = 1
    elif len(shared) == 1 and out.coefficient(shared[0][0]):
        name, step = shared[0]
        groups, own = sizes[name], out.coefficient(name)
        others = [(n, c) for n, c in out.terms if n != name]
        within = sizes[others[0][0]] if others else 1
        if len(others) > 1 or step != in_group or own != within or any(c != 1 for _, c in others):
            raise _no(part, 'has groups of channels that are not side by side')
    else:
        raise _no(part, 'mixes channels in another way')
    if groups * in_group != channels:
        raise _no(part, 'leaves out some of its input channels')
    return groups


def _window(
    part: Group, out: Affine, read: Affine, tap: Affine, extent: int, taps: int
) -> tuple[int, int, int, int]:
    """(outputs, stride, dilation, padding) of one axis."""
    sizes = part.main.sizes
    if len(out.terms) > 1 or out.const or len(tap.terms) > 1 or tap.const:
        raise _no(part, 'has no plain window over an image')
    if any(c != 1 for _, c in (*out.terms, *tap.terms)) or tap.extent(sizes) != taps:
        raise _no(part, 'has no plain window over an image')
    known = {*out.names, *tap.names}
    if any(name not in known and sizes[name] > 1 for name in read.names):
        raise _no(part, 'has no plain window over an image')
    outputs = out.extent(sizes)
    stride = max(sum(read.coefficient(n) for n in out.names), 1)
    dilation = max(sum(read.coefficient(n) for n in tap.names), 1)
    before = -read.const
    if before < 0:
        raise _no(part, f'begins {-before} elements inside its image')
    if (extent + 2 * before - (taps - 1) * dilation - 1) // stride + 1 != outputs:
        raise _no(
            part, f'has {outputs} outputs along an axis with other padding behind than before'
        )
    return outputs, stride, dilation, before


def fused_convolution(part: Group, call: ConvolutionCall, found: Behind) -> dict[str, Operand]:
    """Operands by the words of the call: 'bias' and 'z'; a ScheduleError where there are others."""
    shape = (call.n, call.k, call.out_h, call.out_w)
    full = part.output.strides if part.output.shape == shape else ()
    words: dict[str, Operand] = {}
    for operand in found.operands:
        along = {axis for axis, stride in enumerate(operand.strides) if stride}
        if (
            along <= {CHANNEL}
            and operand.strides[CHANNEL] in (0, 1)
            and operand.tensor.size == call.k
        ):
            word = 'bias'
        elif operand.tensor.shape == shape and all(
            stride == wanted or size == 1
            for stride, wanted, size in zip(operand.strides, full, shape, strict=False)
        ):
            word = 'z'
        else:
            raise _no(part, f'adds {operand.tensor.name}, neither a bias nor a whole image')
        if word in words:
            raise _no(part, f'adds {operand.tensor.name} and {words[word].tensor.name}, two alike')
        words[word] = operand
    return words


def _no(part: Group, why: str) -> ScheduleError:
    return ScheduleError(f'{part.label} {why}')
