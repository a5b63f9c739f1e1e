"""What scripts for learned rankers make of recorded results."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.ops.convolution import conv2d
from tilewright_lab.figures.gtuner import latencies
from tilewright_lab.scripts.gpu_learned import known_best


@pytest.mark.parametrize('name', ['bench.json', 'bench.json.gz'])
def test_the_best_of_an_earlier_bench(tmp_path: Path, name: str) -> None:
    rows = [
        {'name': 'cnnopt/D1', 'schedule': {'schema': 'rs'}},
        {'name': 'cnnopt/D2', 'schedule': None},
        {'name': 'D3', 'schedule': {'schema': 's'}},
    ]
    text = json.dumps({'trials': 110, 'layers': rows}).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith('.gz') else text)
    one = conv2d(c=4, h=8, w=8, k=4, r=3, s=3)
    found = known_best(tmp_path / name, {'D1': one, 'D2': one, 'D4': one})
    assert found == {'from': name, 'trials': 110, 'best': {'D1': {'schema': 'rs'}}}


@dataclass
class Rows:
    digest: str
    seconds: np.ndarray

    @property
    def group(self) -> SimpleNamespace:
        return SimpleNamespace(digest=self.digest)

    def __len__(self) -> int:
        return len(self.seconds)


def test_a_network_after_so_many_trials_of_each_group() -> None:
    """One group of 30 schedules that the model has backwards, twice; one that it orders rightly."""
    test: list[Any] = [Rows('a', np.arange(1.0, 31.0)), Rows('b', np.arange(100.0, 130.0))]
    scores = [-np.arange(30.0), np.arange(30.0)]
    counts = {'a': {'resnet18': 2, 'vgg11': 5}, 'b': {'resnet18': 1}}
    found = latencies(scores, test, counts)
    assert found == {'10': 1e3 * (2 * 21 + 100), '20': 1e3 * (2 * 11 + 100), '40': 1e3 * 102,
                     '80': 1e3 * 102}  # fmt: skip
    assert latencies(scores, test, counts, 'vgg11')['80'] == 5e3
