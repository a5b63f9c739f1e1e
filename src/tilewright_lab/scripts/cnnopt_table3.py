"""CNNOpt's Table 3: configurations in the pruned space of each layer, and what pruned the others.

    python -m tilewright_lab.scripts.cnnopt_table3 [--machines v100,rtx2080ti,h200] [--json FILE]

Beside each count stands the paper's print. Conventions and constraints:
tilewright_lab/collect/cnnopt_space.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tilewright.machine.gpu import known_gpu
from tilewright.ops.suites import suite
from tilewright_lab.collect.cnnopt_space import CONSTRAINTS, factor_space

# PACT'22, Table 3, in the order of the table.
PRINTED = {
    'D1': 842, 'D2': 2494, 'D3': 2300, 'D4': 708, 'D5': 708, 'D6': 708, 'Y0': 368, 'Y2': 321,
    'Y4': 1387, 'Y8': 802, 'Y12': 321, 'Y18': 52, 'R1': 423, 'R2': 2429, 'R4': 1398, 'R6': 2161,
    'R7': 876, 'R9': 1017, 'R10': 150, 'R12': 159,
}  # fmt: skip
# The S kernel was run on layers of even size and stride 1 only: the authors' files have no other.
WITHOUT_S = ('D5', 'D6', 'Y18', 'R1', 'R4', 'R7', 'R10', 'R12')


def table(machine_name: str) -> list[dict]:
    machine = known_gpu(machine_name)
    rows = []
    for layer in suite('cnnopt'):
        found = {
            schema: factor_space(layer.group, machine, schema)[1]
            for schema in ('rs', 's')
            if schema == 'rs' or layer.name not in WITHOUT_S
        }
        rows.append(
            {
                'layer': layer.name,
                'candidates': sum(c.candidates for c in found.values()),
                'removed': {
                    name: sum(dict(c.removed)[name] for c in found.values()) for name in CONSTRAINTS
                },
                'rs': found['rs'].kept,
                's': found['s'].kept if 's' in found else 0,
                'kept': sum(c.kept for c in found.values()),
                'paper': PRINTED[layer.name],
            }
        )
    return rows


def show(machine_name: str, rows: list[dict]) -> None:
    head = ('layer', 'candidates', *CONSTRAINTS, 'RS', 'S', 'kept', 'paper')
    print(f'\n{machine_name}')
    lines = [
        [
            row['layer'], row['candidates'], *row['removed'].values(), row['rs'], row['s'],
            row['kept'], row['paper'],
        ]
        for row in rows
    ]  # fmt: skip
    widths = [max(len(str(line[i])) for line in (head, *lines)) for i in range(len(head))]
    for line in (head, *lines):
        print('  '.join(str(cell).rjust(w) for cell, w in zip(line, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--machines', default='v100,rtx2080ti,h200')
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    tables = {name: table(name) for name in options.machines.split(',')}
    for name, rows in tables.items():
        show(name, rows)
    if options.json:
        options.json.write_text(json.dumps(tables, indent=1) + '\n')


if __name__ == '__main__':
    main()
