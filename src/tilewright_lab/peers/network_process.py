"""One contestant on networks in a process of its own: `-m tilewright_lab.peers.network_process`.

It is started and asked as process.py is, in JSON lines; arrays go through files:

    {"do": "prepare", "model": "x.onnx", "zoo": {...} or null, "inputs": "x.npz",
     "outputs": {"scores": [[1, 1000], "float32"]}, "threads": 2, "options": {...},
     "tolerance": null}                   how far its settings may differ, null: as usual
      -> {"status": "progress", ...}     any number of these
      -> {"status": "ok", "settings": {...}, "tried": [...], "algorithm": ..., "estimate_ms": ...}
    {"do": "answer", "path": "y.npz"}     one call into poisoned outputs, which are written there
    {"do": "time", "repeats": 20, "warm": 3, "flush": false}  -> {"status": "ok", "samples_ms": ..}
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime import verify
from tilewright_lab.peers.contestants import Arrays, NetworkJob, NetworkVariant
from tilewright_lab.peers.process import Server, Trial, estimate, fastest, main


def save(path: str | Path, arrays: Arrays) -> None:
    """Arrays by name, in a file that `load` reads; names may be any text."""
    np.savez(path, json.dumps(list(arrays)), *arrays.values())


def load(path: str | Path) -> Arrays:
    with np.load(path, allow_pickle=False) as stored:
        names = json.loads(str(stored['arr_0']))
        return {name: stored[f'arr_{number}'] for number, name in enumerate(names, 1)}


def poison(outputs: Arrays) -> None:
    for array in outputs.values():
        if array.dtype.itemsize in (4, 8):
            verify.poison(array)


def choose(
    job: NetworkJob, variants: list, tolerance: float | None = None
) -> tuple[NetworkVariant, dict[str, Any]]:
    """The fastest variant of a network, and the report: with the seconds until its first answer."""
    numbers = itertools.count()

    def attempt(make: Callable[[NetworkJob], NetworkVariant]) -> Trial:
        job.progress('trying settings', next(numbers), len(variants))
        gc.collect()  # networks are large: one that was given up is gone before the next is built
        begin = time.perf_counter()
        variant = make(job)
        poison(job.outputs)
        variant.run()
        prepared_s = time.perf_counter() - begin
        seconds = estimate(variant.run)
        answer = {name: np.array(array) for name, array in variant.result().items()}
        return Trial(variant, seconds, answer, {'prepared_s': prepared_s})

    def same(answer: Arrays, expected: Arrays) -> bool:
        return verify.compare_results(answer, expected, tolerance=tolerance).ok

    variant, _, report = fastest(variants, attempt, same)
    return variant, report


class NetworkServer(Server):
    """Networks: models and arrays from files."""

    def prepare(
        self,
        model: str,
        zoo: dict[str, Any] | None,
        inputs: str,
        outputs: dict[str, tuple[list[int], str]],
        threads: int,
        options: dict[str, Any] | None = None,
        tolerance: float | None = None,
    ) -> dict:
        self.job = self.variant = None
        gc.collect()
        given = load(inputs)
        buffers = {name: np.zeros(shape, dtype) for name, (shape, dtype) in outputs.items()}
        job = NetworkJob(
            Path(model), zoo, given, buffers, threads, options or {}, self.report
        )  # fmt: skip
        self.variant, report = choose(job, self.variants, tolerance)
        self.job = job
        return report

    def answer(self, path: str) -> dict:
        poison(self.job.outputs)
        self.variant.run()
        save(path, self.variant.result())
        return {}


if __name__ == '__main__':
    main(sys.argv[1:], NetworkServer)
