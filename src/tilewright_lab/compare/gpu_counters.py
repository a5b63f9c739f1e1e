"""Hardware counters of kernels: what Nsight Compute is asked, and what its CSV says.

Goes in: the text that `ncu --csv --page raw` (one line for each kernel) or `ncu --csv` (one for
each metric) wrote. Comes out: numbers by kernel name and by our names of the metrics. CNNOpt's
Table 6 correlates such numbers with the time of a kernel.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence

from tilewright.errors import InputError

SECTOR = 32  # bytes
# Our name -> the metric. Transactions of shared memory are wavefronts of its pipe; those of global
# memory are sectors between the multiprocessors and L2.
METRICS = {
    'time_ns': 'gpu__time_duration.sum',
    'shared_transactions': 'l1tex__data_pipe_lsu_wavefronts_mem_shared.sum',
    'shared_conflicts': 'l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum',
    'global_sectors': 'lts__t_sectors_srcunit_tex.sum',
    'l2_misses': 'lts__t_sectors_srcunit_tex_lookup_miss.sum',
    'dram_read_sectors': 'dram__sectors_read.sum',
    'dram_write_sectors': 'dram__sectors_write.sum',
    'occupancy_pct': 'sm__warps_active.avg.pct_of_peak_sustained_active',
    'occupancy_limit_pct': 'sm__maximum_warps_per_active_cycle_pct',
    'waves': 'launch__waves_per_multiprocessor',
    'registers': 'launch__registers_per_thread',
    'instructions': 'smsp__inst_executed.sum',
}
_BY_METRIC = {metric: name for name, metric in METRICS.items()}


def wanted(known: str) -> list[str]:
    """Metrics that this version of the profiler has, by what `ncu --query-metrics` wrote.

    Those of the launch and ratios are not in that list, and always there.
    """
    bases = {line.split()[0] for line in known.splitlines() if line.split()}
    always = ('launch__', 'sm__maximum_warps')
    return [
        metric
        for metric in METRICS.values()
        if metric.startswith(always) or not bases or metric.partition('.')[0] in bases
    ]


def command(metrics: Sequence[str], log: str, kernels: str, program: Sequence[str]) -> list[str]:
    """Profile kernels whose name begins as `kernels` says; caches and clocks are left alone."""
    return [
        'ncu', '--csv', '--page', 'raw', '--print-units', 'base', '--log-file', log,
        '--kernel-name', f'regex:^{kernels}', '--metrics', ','.join(metrics),
        '--clock-control', 'none', '--cache-control', 'none', '--replay-mode', 'kernel',
        *program,
    ]  # fmt: skip


def parse(text: str) -> dict[str, dict[str, float]]:
    """Numbers by kernel and by our names; what the profiler says around its table is left out."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if '==ERROR==' in line), 'no table in its output')
        raise InputError(f'the profiler measured nothing: {said.strip()}')
    table = [line for line in lines[start:] if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO('\n'.join(table))))
    if 'Metric Name' in (rows[0] if rows else {}):
        return _long(rows)
    return _wide(rows)


def _wide(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, float]]:
    """One line for each kernel; the line below the head has units."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row['ID']:
            numbers = {_BY_METRIC[n]: _number(v) for n, v in row.items() if n in _BY_METRIC}
            found[_plain(row['Kernel Name'])] = {n: v for n, v in numbers.items() if v is not None}
    return found


def _long(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, float]]:
    """One line for each kernel and metric."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        name, value = _BY_METRIC.get(row['Metric Name']), _number(row['Metric Value'])
        if name is not None and value is not None:
            found.setdefault(_plain(row['Kernel Name']), {})[name] = value
    return found


def _plain(kernel: str) -> str:
    return kernel.partition('(')[0].strip()


def _number(text: str | None) -> float | None:
    try:
        value = float((text or '').replace(',', ''))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def pearson(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None of fewer than three pairs, or where one side never changes."""
    count = len(pairs)
    if count < 3:
        return None
    means = [sum(pair[i] for pair in pairs) / count for i in range(2)]
    over = sum((a - means[0]) * (b - means[1]) for a, b in pairs)
    spread = [math.sqrt(sum((pair[i] - means[i]) ** 2 for pair in pairs)) for i in range(2)]
    return over / (spread[0] * spread[1]) if min(spread) > 0 else None
