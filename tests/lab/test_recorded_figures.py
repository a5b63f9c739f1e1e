"""What `tilewright reproduce gtuner-*` wrote on an H200 is shown again by the same command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright_lab.figures.gtuner_fig7 import latencies

FOLDER = Path(__file__).parents[2] / 'bench' / 'results' / 'learned'


@pytest.mark.parametrize(
    ('figure', 'file', 'says'),
    [
        ('gtuner-table1', 'table1', ('graphsage', '1.168')),
        ('gtuner-table2', 'table2', ('gnn-mlp', '1.121')),
        ('gtuner-table3', 'table3', ('seconds of the whole compilation', '[GTuner]')),
        ('gtuner-fig7', 'fig7', ('genetic+gat', 'resnet18: 21 calls of 16 groups')),
        ('gtuner-fig8', 'fig7', ('64-64 56^2 3x3 bias+add+relu', 'by subgraph')),
    ],
)
def test_a_result_is_shown_again(
    figure: str, file: str, says: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    data = FOLDER / f'h200-gtuner-{file}.json'
    assert invoke(['reproduce', figure, '--data', str(data)]) == 0
    said = capsys.readouterr().out
    assert all(words in said for words in says)


def test_a_result_of_another_figure_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    data = FOLDER / 'h200-gtuner-fig7.json'
    assert invoke(['reproduce', 'gtuner-table1', '--data', str(data)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_latencies_are_sums_over_the_calls_of_a_network() -> None:
    found = json.loads((FOLDER / 'h200-gtuner-fig7.json').read_text())
    said = latencies(found)['resnet18']['random']
    assert said.shape == (3, 80)
    assert (np.diff(said, axis=1) <= 1e-12).all()
    by_hand = sum(
        group['uses'].get('resnet18', 0) * 1e-3 * group['best_us'] * curve[0]
        for group, curve in zip(found['groups'], found['layers'][3]['curves'][0], strict=True)
    )
    assert said[0, 0] == pytest.approx(by_hand)
