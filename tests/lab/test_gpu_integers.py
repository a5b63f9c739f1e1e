"""The script that compares quantised networks on a GPU with the CPU's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright_lab.scripts.gpu_integers import compare, prepare


@pytest.mark.slow
def test_results_of_a_gpu_are_compared_with_those_of_the_cpu(tmp_path: Path) -> None:
    """None differs; one that is changed in the file is counted; all precisions are timed."""
    prepare('squeezenet', tmp_path, image=32)
    path = tmp_path / 'squeezenet.npz'
    arrays = dict(np.load(path))
    arrays['result1'] = arrays['result1'].copy()
    arrays['result1'].flat[3] += 1
    np.savez(path, **arrays)
    found = compare('squeezenet', tmp_path, 1, 1, 'host', image=32)
    assert found['differ'] == 1
    assert found['results'] == 3 * arrays['result0'].size
    assert set(found['time_us']) == {'int8', 'fp16', 'fp32'}
    assert any('channels' in schedule for schedule in found['schedules']['int8'])
