"""What the commands that collect GPU data share: options, a collector made from them, a check.

`gpu_dataset.py` measures layers, `gpu_groups.py` groups of networks.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.machine.gpu import known_gpu
from tilewright_lab.collect.collector import Collector, Recipe, Source, works_twice
from tilewright_lab.collect.sets import Layout, RowSets


def parser_of(description: str | None, *, seconds: float, chunk: int, out: str) -> Any:
    """A parser with the options of every collection, and their defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=seconds)
    parser.add_argument('--workers', type=int, default=0)
    parser.add_argument('--chunk', type=int, default=chunk, help='families of one compilation')
    parser.add_argument('--machine', default='h200', help='whose limits the spaces keep')
    parser.add_argument('--architecture', default='sm_90a')
    parser.add_argument('--target', default='cuda', choices=['cuda', 'host'])
    parser.add_argument('--out', type=Path, default=Path(out))
    return parser


def collector(
    options: argparse.Namespace, recipe: Recipe, layout: Layout, sources: Sequence[Source],
    **other: Any,
) -> Collector:  # fmt: skip
    """A run as the options say; `other` replaces fields of it."""
    fields = {
        'target': options.target, 'architecture': options.architecture,
        'workers': options.workers, 'chunk': options.chunk, 'seconds': options.seconds,
        'say': lambda text: print(text, flush=True), **other,
    }  # fmt: skip
    sets = RowSets(options.out, layout)
    return Collector(recipe, sources, sets, known_gpu(options.machine), **fields)


def collect(made: Collector) -> int:
    """Run it, and say what became of it."""
    began = time.monotonic()
    whole = made.run()
    print(f'{made.state()} in {time.monotonic() - began:.0f} s:',
          'nothing is left' if whole else 'run again for more')  # fmt: skip
    return 0


def has_nvrtc() -> bool:
    return importlib.util.find_spec('cuda') is not None


def check_on_host(
    options: argparse.Namespace, recipe: Recipe, layout: Layout, sources: Sequence[Source],
    **other: Any,
) -> bool:  # fmt: skip
    """Compile where NVRTC is there, run by the host; all answers must be right, and a second run
    must find nothing to do.
    """
    fields = {
        'target': 'host', 'architecture': options.architecture if has_nvrtc() else '',
        'workers': options.workers or os.cpu_count() or 1, **other,
    }  # fmt: skip
    return works_twice(lambda: collector(options, recipe, layout, sources, **fields))
