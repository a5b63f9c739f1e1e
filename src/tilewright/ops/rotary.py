"""Rotary embeddings (Su et al., RoFormer, 2021, Eq. 34): pairs of elements turned by an angle.

    Out[.., 0, c] = Cos[c] * In[.., 0, c] - Sin[c] * In[.., 1, c]
    Out[.., 1, c] = Cos[c] * In[.., 1, c] + Sin[c] * In[.., 0, c]

One stage: the other element of a pair is read through a table of two positions.
"""

from __future__ import annotations

from tilewright.ops.describe import Shape, group_of, label_of
from tilewright.ops.group import Group
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Stage,
    Table,
    access,
    call,
    index,
    read,
    var,
    whole,
)


def rotary(
    shape: Shape, images: int, words_first: bool, interleaved: bool, dtype: str = 'f32'
) -> Group:
    """[b, words, heads, ..] or [b, heads, words, ..], behind which [2, half] or [half, 2].

    images       how many the angles [images, words, half] have: all, or one for all of them
    words_first  which of the two orders; interleaved: pairs lie side by side
    """
    names = ['b', 'w', 'h'] if words_first else ['b', 'h', 'w']
    names += ['c', 'p'] if interleaved else ['p', 'c']
    sizes = dict(zip(names, shape, strict=True))
    dims = tuple(Dim(name, size) for name, size in sizes.items())
    other = [Table((1, 0), var('p')) if name == 'p' else var(name) for name in names]
    angle = (var('b') if images > 1 else Affine(()), var('w'), var('c'))
    sine = call('where', call('eq', index('p'), whole(0)), call('neg', read(3)), read(3))
    stage = Stage(
        'rotary', dims, Access('Out', tuple(map(var, names))),
        (Access('In', tuple(map(var, names))), access('In', *other), Access('Cos', angle),
         Access('Sin', angle)),
        call('add', call('mul', read(0), read(2)), call('mul', read(1), sine)),
    )  # fmt: skip
    angles = (images, sizes['w'], sizes['c'])
    return group_of(
        label_of('rotary', shape), [stage], {'In': shape, 'Cos': angles, 'Sin': angles}, dtype
    )
