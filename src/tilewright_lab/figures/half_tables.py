"""What each layer of a network in half precision reaches on a GPU, as Markdown.

Goes in: files of `tilewright bench NETWORK --target cuda --precision fp16`. Comes out: the text of
a table, a row for each kind of layer that takes a share of its network's time worth naming.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.kernels.gpu.schemas.library.calls import TITLES
from tilewright.report.grid import Grid

CUBLAS_TFLOPS = 790  # that cuBLAS reaches on an H200, on large products of bf16
LEAST_SHARE = 0.02  # of a network's time, for a kind of layer to have a row

Json = Mapping[str, Any]


def layer_rows(files: Iterable[Json]) -> str:
    """Layers with sums of products: microseconds of one alone, and what it reaches of cuBLAS."""
    head = (
        'network', 'layer', 'times', 'us', 'of the time', 'TFLOP/s', f'% of {CUBLAS_TFLOPS}', 'by'
    )  # fmt: skip
    rows = [row for data in files for one in data['networks'] for row in _rows(one, data['batch'])]
    return Grid(head, tuple(rows)).markdown()


def _rows(network: Json, batch: int) -> list[tuple[str, ...]]:
    tasks = _tasks(network)
    whole = sum(task['alone_us'] for task in tasks)
    kinds: dict[str, list[Json]] = {}
    for task in tasks:
        kinds.setdefault(task['label'], []).append(task)
    found = []
    for label, alike in kinds.items():
        took = sum(task['alone_us'] for task in alike)
        reached = sum(task['flops'] for task in alike) / took / 1e6
        if took < LEAST_SHARE * whole or reached < 1:
            continue  # what has no products moves data
        found.append((took, (
            f'{network["name"]} x{batch}', label.removesuffix(' f16'), str(len(alike)),
            f'{took / len(alike):.1f}', f'{took / whole:.0%}', f'{reached:.0f}',
            f'{reached / CUBLAS_TFLOPS:.0%}', _by(alike[0]['schedule']),
        )))  # fmt: skip
    return [row for _, row in sorted(found, key=lambda pair: -pair[0])]


def _by(schedule: str) -> str:
    """The schema and what multiplies; of a library its name, since it chooses by itself."""
    schema, intrinsic = schedule.split()[:2]
    return TITLES.get(schema) or f'{schema} {intrinsic}'


def _tasks(network: Json) -> list[Json]:
    """Of the form of ours whose tasks were timed alone."""
    forms = (one.get('settings') or {} for one in network['contestants'])
    return next((form['tasks'] for form in forms if form.get('tasks')), [])
