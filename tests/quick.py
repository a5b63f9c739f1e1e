"""Searches that look at few schedules, where what they find has to be right, not fast.

    python -m quick optimize mopt/R9        the command line, with searches like that on the CPU

Goes in: a table of names in the package. Comes out: smaller values under these names, in this
process alone: children of tests do not have what conftest.py patches, and call `shorten` or
`python -m quick`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def _first_orders(*stage: Any) -> list:
    from tilewright.search.cpu.solver import cache_orders

    return cache_orders(*stage)[:1]


CPU = {
    'search.cpu.rank_outer': {
        'SHAPES': 1, 'ORDERS': 1, 'BUDGET': 12, 'cache_orders': _first_orders,
    },
    'search.cpu.rank_winograd': {'SHAPES': 2, 'CUTS': 1, 'OTHER_PANELS': (1,), 'CARRIED': 3},
    'kernels.cpu.schemas.chain.space': {'CUTS': 1, 'SHAPES': 2, 'ROWS': (1, 4)},
    'kernels.cpu.schemas.stencil.space': {'CUTS': 1},
}  # fmt: skip
GPU = {
    'targets.gpu.choose': {'TRIALS': 12},
    'targets.gpu.target': {'LOOKED_AT': 12},
    'targets.gpu.ranked': {'LOOKED_AT': 24},
    'report.gpu_explain': {'LOOKED_AT': 24},
    'targets.gpu.price': {'CHAIN_TRIALS': 12},
    'search.gpu.moves': {'FIXED_DRAWS': 100, 'FEW_BLOCKS': 0},
    'search.gpu.strategies': {'POPULATION': 24},
    'search.gpu.tune': {'CLIMBS': 1, 'PARENTS': 1},
}


def few_schedules(*tables: dict[str, dict[str, Any]]) -> list[tuple[Any, str, Any]]:
    """(module, name, value) of all tables."""
    return [
        (import_module(f'tilewright.{module}'), name, value)
        for table in tables
        for module, values in table.items()
        for name, value in values.items()
    ]


def shorten(set_value: Callable[[Any, str, Any], None] = setattr, *tables: Any) -> None:
    for module, name, value in few_schedules(*(tables or (CPU,))):
        set_value(module, name, value)


def environment() -> dict[str, str]:
    """Variables of a child that imports this module."""
    return {**os.environ, 'PYTHONPATH': str(Path(__file__).parent)}


if __name__ == '__main__':
    from tilewright.__main__ import main

    shorten()
    main()
