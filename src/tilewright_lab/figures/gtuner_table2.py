"""GTuner's Table 2 (DAC'22, Sec. 4.2): without the graph, and without attention.

Goes in and comes out as in Table 1 (tilewright_lab/figures/gtuner_table1.py), for the whole model,
for attention over the statistics alone (MHSA), and for the graph's vector with statistics through
the MLP alone.
"""

from __future__ import annotations

from typing import Any

from tilewright.rank.gat import VARIANTS
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.gtuner import run_models
from tilewright_lab.figures.gtuner_table1 import plot, text

__all__ = ['plot', 'run', 'text']
MODELS = {name: VARIANTS[name].about for name in ('gtuner', 'mhsa', 'gnn-mlp')}
PAPER = {'gtuner': 0.923, 'mhsa': 0.963, 'gnn-mlp': 1.121}  # ResNet-18, ms


def run(options: Options) -> dict[str, Any]:
    """Train and rank; comes out: JSON."""
    return run_models(options, MODELS) | {'paper_ms': PAPER}
