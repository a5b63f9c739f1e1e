"""Kernels that check others on the device: the definition, poison, and a comparison that counts.

Compiled once for all problems: their arguments are of any size.
"""

from __future__ import annotations

from tilewright.kernels.gpu.language import Array, Kernel, Scalar

COUNT_THREADS = 256
NAN_BITS = 0x7FC00000


def _dynamic(name: str, dims: str, written: bool = False) -> Array:
    """An argument of any size: these kernels are compiled once for all problems."""
    return Array(name, tuple(dims), (1,) * len(dims), written=written, dynamic=True)


def direct() -> Kernel:
    """The convolution by its definition: an oracle that shares nothing with the schemas."""
    body = f"""
const int point = BLOCK_X * {COUNT_THREADS} + THREAD;
const int x = point % @Out.size(w), y = point / @Out.size(w) % @Out.size(h);
const int k = point / (@Out.size(w) * @Out.size(h));
if (k >= @Out.size(k))
    return;
float sum = 0.0f;
for (int c = 0; c < @In.size(c); c++)
    for (int r = 0; r < @Ker.size(r); r++)
        for (int s = 0; s < @Ker.size(s); s++) {{
            const int i = y * stride - pad + r, j = x * stride - pad + s;
            if (i >= 0 && i < @In.size(h) && j >= 0 && j < @In.size(w))
                sum += @In[n=0, c=c, h=i, w=j] * @Ker[k=k, c=c, r=r, s=s];
        }}
@Out[n=0, k=k, h=y, w=x] = sum;
"""
    args = (
        _dynamic('In', 'nchw'), _dynamic('Ker', 'kcrs'), _dynamic('Out', 'nkhw', written=True),
        Scalar('stride'), Scalar('pad'),
    )  # fmt: skip
    return Kernel('direct', args, body, (1, 1, 1), COUNT_THREADS)


_POINT = f"""
const int i = BLOCK_X * {COUNT_THREADS} + THREAD;
if (i >= @result.size(i))
    return;
"""


def poison() -> Kernel:
    """NaN everywhere, so that an element that is not written counts as wrong."""
    body = f'{_POINT}@result[i=i] = BITS_FLOAT((unsigned)bits);'
    args = (_dynamic('result', 'i', written=True), Scalar('bits'))
    return Kernel('poison', args, body, (1, 1, 1), COUNT_THREADS)


def compare() -> Kernel:
    """Counts elements that are wrong by runtime/verify.py's rule; NaN and infinities among them,
    since only what is wanted, which is finite, enlarges the denominator.
    """
    body = f"""{_POINT}const float base = fmaxf(fabsf(@wanted[i=i]), scale);
if (!(fabsf(@result[i=i] - @wanted[i=i]) <= limit * base))
    ATOMIC_COUNT(@wrong);"""
    args = (
        _dynamic('result', 'i'), _dynamic('wanted', 'i'), Scalar('limit', 'f32'),
        Scalar('scale', 'f32'),
        Array('wrong', ('i',), (1,), 'i32', written=True),
    )  # fmt: skip
    return Kernel('compare', args, body, (1, 1, 1), COUNT_THREADS)
