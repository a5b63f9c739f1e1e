"""A mean whose counts are stages of its group: they need no input, so that they are done ahead."""

from __future__ import annotations

from tilewright.ops.describe import group_of
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Dim, Stage, affine, call, const, read, var


def counted_mean(channels: int, rows: int, columns: int) -> Group:
    """3x3 windows of stride 1 over an image and its border, by the elements that are inside."""
    pixels, window = (Dim('h', rows), Dim('w', columns)), (
        Dim('r', 3, 'reduction'), Dim('s', 3, 'reduction'),
    )  # fmt: skip
    at, near = (var('h'), var('w')), tuple(
        affine((image, 1), (tap, 1), const=-1) for image, tap in (('h', 'r'), ('w', 's'))
    )  # fmt: skip
    dims, here = (Dim('n', 1), Dim('c', channels), *pixels), (var('n'), var('c'), *at)
    stages = [
        Stage('ones', pixels, Access('Ones', at), (), const(1.0)),
        Stage('count', (*pixels, *window), Access('Count', at), (Access('Ones', near),), read(0),
              'sum'),
        Stage('sum_pool', (*dims, *window), Access('Sum', here),
              (Access('In', (var('n'), var('c'), *near)),), read(0), 'sum'),
        Stage('mean', dims, Access('Out', here), (Access('Sum', here), Access('Count', at)),
              call('div', read(0), read(1))),
    ]  # fmt: skip
    return group_of('counted-mean', stages, {'In': (1, channels, rows, columns)})
