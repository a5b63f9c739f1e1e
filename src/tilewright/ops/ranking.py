"""The largest along an axis, and elements written to positions: by comparing, without sorting.

    Rank[i] = how many elements come before In[i]      Out[r] = the i whose Rank[i] is r
    Place[p] = the last j with Indices[j] = p          Out[p] = Updates[Place[p]], or In[p]

Every element of a result is computed alone, so that the stages are like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ops.describe import Shape, dims_of, group_of, label_of, names_of
from tilewright.ops.dtypes import is_float, limits
from tilewright.ops.group import Group
from tilewright.ops.stage import (
    COMBINERS,
    Access,
    Dim,
    Lookup,
    Stage,
    access,
    call,
    index,
    literal,
    read,
    var,
    whole,
)

# ONNX's word -> the combiner, and the function that adds what was there
_COMBINED: Mapping[str, tuple[str, str]] = {
    'add': ('sum', 'add'),
    'mul': ('prod', 'mul'),
    'max': ('max', 'max'),
    'min': ('min', 'min'),
}
SCATTERED = ('none', *_COMBINED)


def top_places(
    shape: Shape, axis: int, count: int, largest: bool = True, dtype: str = 'f32'
) -> Group:
    """Where the `count` largest, or least, along an axis are, as i64; of equals the first first.

    NaN is larger than any number, as numpy and PyTorch sort, so that no place comes twice.
    """
    names = names_of(shape)
    here, there = tuple(map(var, names)), var('j')
    other = tuple(there if i == axis else at for i, at in enumerate(here))
    size, along = shape[axis], names[axis]
    ahead, equal = call('gt' if largest else 'lt', read(1), read(0)), call('eq', read(0), read(1))
    if is_float(dtype):
        bottom = call('isnan', read(0 if largest else 1))
        within = call('le' if largest else 'ge', read(1), read(0))
        ahead = call('not', call('or', bottom, within))
        equal = call('or', equal, call('and', call('isnan', read(0)), call('isnan', read(1))))
    tied = call('and', equal, call('lt', index('j'), index(along)))
    before = call('where', call('or', ahead, tied), whole(1), whole(0))
    chosen = call('where', call('eq', read(0), index(along)), index('j'), whole(0))
    kept = tuple(Dim(d.name, count if i == axis else d.size) for i, d in enumerate(dims_of(shape)))
    over = Dim('j', size, 'reduction')
    stages = [
        Stage('rank', (*dims_of(shape), over), Access('Rank', here),
              (Access('In', here), Access('In', other)), before, 'sum'),
        Stage('place', (*kept, over), Access('Out', here), (Access('Rank', other),), chosen, 'max'),
    ]  # fmt: skip
    label = f'{label_of("top", shape)}@{axis}-{count}{"" if largest else "-least"}'
    return group_of(label, stages, {'In': shape}, 'i64', {'In': dtype})


def scatter_elements(
    shape: Shape,
    axis: int,
    count: int,
    reduction: str = 'none',
    dtype: str = 'f32',
    index_dtype: str = 'i64',
) -> Group:
    """In with `count` Updates along the axis at Indices, which have its other sizes."""
    names = names_of(shape)
    here = tuple(map(var, names))
    other = tuple(var('j') if i == axis else at for i, at in enumerate(here))
    along, size = index(names[axis]), shape[axis]
    from_end = call('eq', call('add', read(0), whole(size)), along)
    meant = call('or', call('eq', read(0), along), from_end)
    domain = (*dims_of(shape), Dim('j', count, 'reduction'))
    if reduction == 'none':
        place = call('where', meant, index('j'), whole(-1))
        stages = [
            Stage('place', domain, Access('Place', here), (Access('Indices', other),), place,
                  'max'),
            Stage('scatter', dims_of(shape), Access('Out', here),
                  (Access('Place', here), access('Updates', *(
                      Lookup(0) if i == axis else at for i, at in enumerate(here))),
                   Access('In', here)),
                  call('where', call('lt', read(0), whole(0)), read(2), read(1))),
        ]  # fmt: skip
    else:
        combiner, function = _COMBINED[reduction]
        neutral = COMBINERS[combiner]
        if not is_float(dtype) and combiner in ('max', 'min'):
            neutral = limits(dtype)[combiner == 'min']
        added = call('where', meant, read(1), literal(neutral, dtype))
        stages = [
            Stage('combine', domain, Access('Place', here),
                  (Access('Indices', other), Access('Updates', other)), added, combiner),
            Stage('scatter', dims_of(shape), Access('Out', here),
                  (Access('Place', here), Access('In', here)), call(function, read(1), read(0))),
        ]  # fmt: skip
    sizes = tuple(count if i == axis else n for i, n in enumerate(shape))
    kinds = {'Indices': index_dtype} | ({'Place': 'i64'} if reduction == 'none' else {})
    return group_of(
        f'{label_of(f"scatter_{reduction}", shape, sizes)}@{axis}', stages,
        {'In': shape, 'Indices': sizes, 'Updates': sizes}, dtype, kinds,
    )  # fmt: skip
