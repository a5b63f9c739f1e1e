"""Transposed convolutions as layers: a sum of products for each residue of the output's position.

Goes in: sizes as in `conv2d`. Comes out: a `Group`. With o = s*q + a, output o has the taps r with
r*d = a + p modulo s, which read input q - (r*d - a - p) / s. Residues are further columns of one
sum of products, which every schema of those computes; here of two axes, T = taps of a residue:

    n k ah aw h w | c r s
      Out[n, k, sh*h + ah, sw*w + aw] += In[n, c, h + r - E, w + s - F] * Ker[k, ah, aw, c, r, s]

An output that is no multiple of its stride is cut off from one that is. Callers give filters as
PyTorch and ONNX have them, [c, k / groups, r, s]; `Group.given` says how Ker is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ops.convolution import Convolution, Numbers, convolution_of, with_epilogue
from tilewright.ops.describe import group_of
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Dim, Stage, Table, access, affine, call, read, var
from tilewright.ops.windows import Window, axis_names


def describe_transposed(conv: Convolution) -> Group:
    """[Convolution] -> [Group]"""
    image, window = axis_names(conv.rank)
    axes = [_Residues(w) for w in conv.windows]
    inner = [axis.dense for axis in axes]
    columns = tuple(f'a{name}' for name in image)
    depth, out_group = conv.c // conv.groups, conv.k // conv.groups
    grouped = conv.groups > 1
    channels = (Dim('g', conv.groups), Dim('k', out_group)) if grouped else (Dim('k', conv.k),)
    k = affine(('g', out_group), ('k', 1)) if grouped else var('k')
    c = affine(('g', depth), ('c', 1)) if grouped else var('c')
    kernel = Tensor(
        'Ker', ('k', *columns, 'c', *window),
        (conv.k, *conv.stride, depth, *(w.taps for w in inner)), 'constant',
    )  # fmt: skip
    main = Stage(
        f'conv_transpose{conv.rank}d',
        (
            Dim('n', conv.n), *channels,
            *(Dim(name, s) for name, s in zip(columns, conv.stride, strict=True)),
            *(Dim(name, w.out) for name, w in zip(image, inner, strict=True)),
            Dim('c', depth, 'reduction'),
            *(Dim(name, w.taps, 'reduction') for name, w in zip(window, inner, strict=True)),
        ),
        Access('Out', (var('n'), k, *(
            affine((q, s), (a, 1)) for q, a, s in zip(image, columns, conv.stride, strict=True)
        ))),
        (
            Access('In', (var('n'), c, *(
                axis.index(q, a, t)
                for axis, q, a, t in zip(axes, image, columns, window, strict=True)
            ))),
            Access('Ker', (k, *map(var, columns), var('c'), *map(var, window))),
        ),
        call('mul', read(0), read(1)),
        'sum',
    )  # fmt: skip
    wide = tuple(s * w.out for s, w in zip(conv.stride, inner, strict=True))
    group = with_epilogue(conv, main, kernel, None if wide == conv.out else wide)
    return replace(group, given=(('Ker', _turned(conv, kernel)),))


@dataclass(frozen=True, slots=True)
class _Residues:
    """Along one axis: how outputs o = s*q + a are made of inputs q + shift*a + t - last.

    r*d = a + p + s*(last - t) - s*shift*a, where r is the tap that t is for residue a. A shift
    spares taps that are zero: with stride 2 and odd padding, inputs of residue 1 begin one later.
    """

    window: Window

    @property
    def shift(self) -> int:
        return int(self.window.stride == 2 and self.window.before % 2 == 1)

    @property
    def last(self) -> int:
        w = self.window
        return (w.span - 1 - w.before + self.shift) // w.stride

    @property
    def dense(self) -> Window:
        """Windows of stride 1 over the same input, of which each residue has its own taps."""
        w = self.window
        out = -(-w.out // w.stride)
        if w.stride == 1:  # every tap belongs to the only residue, also where they are dilated
            return replace(w, before=w.span - 1 - w.before, after=0, out=out)
        least = -((w.before + w.stride - 1) // w.stride - self.shift)
        return Window(w.size, self.last - least + 1, 1, 1, self.last, 0, out)

    def index(self, q: str, a: str, t: str) -> Affine:
        """The input of output q of residue a, through tap t."""
        plain = self.dense.index(q, t)
        return replace(plain, terms=(*plain.terms, (a, 1))) if self.shift else plain

    def taps(self) -> tuple[int, ...]:
        """r by a and t; -1 where there is none."""
        w = self.window
        if w.stride == 1:
            return tuple(reversed(range(w.taps)))
        places = []
        for a in range(w.stride):
            for t in range(self.dense.taps):
                r, rest = divmod(
                    a + w.before + w.stride * (self.last - t - self.shift * a), w.dilation
                )
                places.append(r if rest == 0 and 0 <= r < w.taps else -1)
        return tuple(places)


def _turned(conv: Convolution, kernel: Tensor) -> Group:
    """Filters [c, k, r, ..] as [k, a, .., c, t, ..]; zeros where a residue has no tap."""
    image, window = axis_names(conv.rank)
    depth, out_group = conv.c // conv.groups, conv.k // conv.groups
    sizes = dict(zip(('gk', *kernel.dims[1:]), kernel.shape, strict=True))
    del sizes['gk']
    index: list = [affine(('g', depth), ('c', 1)), var('k')]
    for axis, q, t in zip(map(_Residues, conv.windows), image, window, strict=True):
        index.append(Table(axis.taps(), affine((f'a{q}', axis.dense.taps), (t, 1))))
    dims = (Dim('g', conv.groups), Dim('k', out_group), *(Dim(n, s) for n, s in sizes.items()))
    out = (affine(('g', out_group), ('k', 1)), *map(var, sizes))
    stage = Stage('turned', dims, Access('Out', out), (access('In', *index),), read(0))
    return group_of(f'filters of {conv.label}', [stage], {'In': (conv.c, out_group, *conv.taps)})


def conv_transpose1d(
    *, n: int = 1, c: int, w: int, k: int, s: int, stride: Numbers = 1, pad: Numbers = 0,
    output_padding: Numbers = 0, dilation: Numbers = 1, groups: int = 1, bias: bool = False,
    activation: str | None = None,
) -> Group:  # fmt: skip
    """A transposed 1-D convolution; see `conv_transpose2d`."""
    conv = convolution_of(
        {'w': w}, {'s': s}, n=n, c=c, k=k, stride=stride, pad=pad, dilation=dilation,
        groups=groups, bias=bias, activation=activation, output_padding=output_padding,
    )  # fmt: skip
    return describe_transposed(conv)


def conv_transpose2d(
    *, n: int = 1, c: int, h: int, w: int, k: int, r: int, s: int, stride: Numbers = 1,
    pad: Numbers = 0, output_padding: Numbers = 0, dilation: Numbers = 1, groups: int = 1,
    bias: bool = False, activation: str | None = None,
) -> Group:  # fmt: skip
    """A transposed 2-D convolution; its weights are [c, k / groups, r, s], as in PyTorch.

    Arguments as in `conv2d`, where `pad` is cut off from the output; output_padding: rows and
    columns that are added behind it, int or (h, w), less than the stride or the dilation.
    """
    conv = convolution_of(
        {'h': h, 'w': w}, {'r': r, 's': s}, n=n, c=c, k=k, stride=stride, pad=pad,
        dilation=dilation, groups=groups, bias=bias, activation=activation,
        output_padding=output_padding,
    )  # fmt: skip
    return describe_transposed(conv)


def conv_transpose3d(
    *, n: int = 1, c: int, d: int, h: int, w: int, k: int, t: int, r: int, s: int,
    stride: Numbers = 1, pad: Numbers = 0, output_padding: Numbers = 0, dilation: Numbers = 1,
    groups: int = 1, bias: bool = False, activation: str | None = None,
) -> Group:  # fmt: skip
    """A transposed 3-D convolution; see `conv_transpose2d`."""
    conv = convolution_of(
        {'d': d, 'h': h, 'w': w}, {'t': t, 'r': r, 's': s}, n=n, c=c, k=k, stride=stride, pad=pad,
        dilation=dilation, groups=groups, bias=bias, activation=activation,
        output_padding=output_padding,
    )  # fmt: skip
    return describe_transposed(conv)
