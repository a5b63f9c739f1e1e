"""What the operating system says about this host: cores that are ours, caches, model, clock.

Goes in: the trees /proc and /sys (under `root`, so that tests can fake them), the affinity mask.
Comes out: `HostFacts`. Nothing here is timed; `measure.py` finds out what is true of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewright import knobs
from tilewright.machine.isa import host_arch, host_isas
from tilewright.machine.machine import Cache

# Part numbers (implementer, part) of /proc/cpuinfo on ARM, which gives no name there.
_ARM_PARTS = {
    (0x41, 0xD03): 'Cortex-A53',
    (0x41, 0xD05): 'Cortex-A55',
    (0x41, 0xD08): 'Cortex-A72',
    (0x41, 0xD0B): 'Cortex-A76',
    (0x41, 0xD0C): 'Neoverse-N1',
    (0x41, 0xD40): 'Neoverse-V1',
    (0x41, 0xD49): 'Neoverse-N2',
    (0x41, 0xD4F): 'Neoverse-V2',
    (0x46, 0x001): 'A64FX',
    (0xC0, 0xAC3): 'Ampere-1',
}
_DATA_TYPES = ('Data', 'Unified')
_UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
_NOMINAL_WAYS = {1: 8, 2: 8, 3: 16}


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host reports. `cpus` has one logical CPU for each usable core: pin threads to these.

    `allowed` is the whole affinity mask, SMT siblings included; `quota` is the cgroup's limit in
    CPUs, None without one. `cache_source` is 'sysfs', 'getconf' or 'nominal'. `clock_ghz` is None
    where nothing tells it. Caches carry nominal `usable_bytes` (see `nominal_usable`).
    """

    model: str
    arch: str
    isas: tuple[str, ...]
    cpus: tuple[int, ...]
    allowed: tuple[int, ...]
    quota: float | None
    caches: tuple[Cache, ...]
    cache_source: str
    clock_ghz: float | None

    @property
    def cores(self) -> int:
        """Cores that are ours: in the affinity mask, within the cgroup's quota."""
        return len(self.cpus)


def describe_host(
    root: Path = Path('/'),
    *,
    affinity: Iterable[int] | None = None,
    arch: str | None = None,
    getconf: Callable[[], str] | None = None,
    smt: bool = False,
) -> HostFacts:
    """[/proc and /sys under root, affinity mask] -> [facts]. Defaults describe this process.

    With `smt` every allowed logical CPU counts as a core, whatever the topology says.
    """
    arch = arch or host_arch()
    allowed = tuple(sorted(set(_own_affinity() if affinity is None else affinity)))
    quota = cpu_quota(root)
    firsts = allowed if smt else one_per_core(root, allowed)
    # A quota of 2.5 CPUs is two cores: a third thread would be stopped for half of every period,
    # and the others would wait for it.
    cores = len(firsts) if quota is None else max(1, min(len(firsts), int(quota)))
    cpus = firsts[:cores]
    caches, source = find_caches(root, cpus, getconf or _run_getconf)
    return HostFacts(
        model=model_name(root, arch),
        arch=arch,
        isas=host_isas(root, arch),
        cpus=cpus,
        allowed=allowed,
        quota=quota,
        caches=caches,
        cache_source=source,
        clock_ghz=reported_clock(root, cpus[0]),
    )


def _own_affinity() -> Iterable[int]:
    """CPUs of this process, and of them those that TILEWRIGHT_CPUS names, if any is one."""
    every = range(os.cpu_count() or 1)
    own = os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else set(every)
    return own & set(parse_cpu_list(knobs.get('cpus'))) or own


def _read(path: Path) -> str:
    """The stripped text of a small file; '' when it is not there or not ours to read."""
    try:
        return path.read_text(errors='replace').strip()
    except OSError:
        return ''


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """'0-2,8' -> (0, 1, 2, 8); what cannot be read is left out."""
    found: set[int] = set()
    for part in text.split(','):
        match = re.fullmatch(r'\s*(\d+)(?:-(\d+))?\s*', part)
        if match:
            first = int(match[1])
            found.update(range(first, int(match[2] or first) + 1))
    return tuple(sorted(found))


def parse_size(text: str) -> int:
    """'1024K' -> 1048576; 0 for what cannot be read."""
    match = re.fullmatch(r'(\d+)([KMG]?)B?', text.strip())
    return int(match[1]) * _UNITS[match[2]] if match else 0


def one_per_core(root: Path, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """The first allowed logical CPU of each physical core: SMT siblings share one FMA pipeline."""
    firsts: set[int] = set()
    for cpu in allowed:
        folder = root / f'sys/devices/system/cpu/cpu{cpu}/topology'
        text = _read(folder / 'core_cpus_list') or _read(folder / 'thread_siblings_list')
        siblings = set(parse_cpu_list(text)) & set(allowed)
        firsts.add(min(siblings | {cpu}))
    return tuple(sorted(firsts))


def cpu_quota(root: Path = Path('/')) -> float | None:
    """CPUs that the cgroups of this process (v2 or v1, with their parents) allow, or None."""
    limits: list[float] = []
    base = root / 'sys/fs/cgroup'
    for line in _read(root / 'proc/self/cgroup').splitlines() or ['0::/']:
        _, _, rest = line.partition(':')
        controllers, _, path = rest.partition(':')
        if not controllers:
            mounts = [base]
        elif 'cpu' in controllers.split(','):
            mounts = [base / controllers, base / 'cpu', base / 'cpu,cpuacct']
        else:
            continue
        parts = [part for part in path.split('/') if part not in ('', '..')]
        for mount in mounts:
            for depth in range(len(parts) + 1):
                limits += _group_limit(mount.joinpath(*parts[:depth]))
    return min(limits, default=None)


def _group_limit(group: Path) -> list[float]:
    """The limit set in one cgroup folder, as a list of none or one."""
    words = _read(group / 'cpu.max').split()
    if not words:
        words = [_read(group / 'cpu.cfs_quota_us'), _read(group / 'cpu.cfs_period_us')]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # 'max': no limit
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def nominal_usable(level: int, size: int) -> int:
    """What to count on of a cache that was not measured: all of L1 and L2, half of the rest.

    Reports about the caches inside a core are true; an L3 is shared with whoever else is there.
    """
    return size if level <= 2 else max(1, size // 2)


def find_caches(
    root: Path, cpus: tuple[int, ...], getconf: Callable[[], str]
) -> tuple[tuple[Cache, ...], str]:
    """Data caches from the inside out, and where they were found: sysfs, getconf or nominal."""
    caches, source = _sysfs_caches(root, cpus), 'sysfs'
    if not caches:
        caches, source = _getconf_caches(getconf(), len(cpus)), 'getconf'
    if not caches:
        # Small enough to be true of any core of the last ten years.
        caches, source = (
            (
                _cache(1, 32 << 10, 64, 0, 1),
                _cache(2, 256 << 10, 64, 0, 1),
                _cache(3, (1 << 20) * len(cpus), 64, 0, len(cpus)),
            ),
            'nominal',
        )
    return caches, source


def _cache(level: int, size: int, line: int, ways: int, shared_by: int) -> Cache:
    return Cache(
        name=f'l{level}',
        bytes=size,
        line_bytes=line or 64,
        ways=ways or _NOMINAL_WAYS.get(level, 16),
        shared_by=shared_by,
        usable_bytes=nominal_usable(level, size),
    )


def _sysfs_caches(root: Path, cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    """The levels that every usable core has; where cores differ, the least share of one counts."""
    by_level: dict[int, list[Cache]] = {}
    for cpu in cpus:
        for folder in sorted((root / f'sys/devices/system/cpu/cpu{cpu}/cache').glob('index*')):
            size, level = parse_size(_read(folder / 'size')), parse_size(_read(folder / 'level'))
            if _read(folder / 'type') not in _DATA_TYPES or not size or not level:
                continue
            line = parse_size(_read(folder / 'coherency_line_size'))
            ways = parse_size(_read(folder / 'ways_of_associativity'))
            sharers = set(parse_cpu_list(_read(folder / 'shared_cpu_list'))) & set(cpus)
            found = _cache(level, size, line, ways, max(1, len(sharers)))
            by_level.setdefault(level, []).append(found)
    return tuple(
        min(found, key=lambda c: (c.bytes / c.shared_by, c.bytes))
        for _, found in sorted(by_level.items())
        if len(found) == len(cpus)
    )


def _getconf_caches(text: str, cores: int) -> tuple[Cache, ...]:
    """Caches from the output of `getconf -a`; level 3 is taken as shared by all cores."""
    values = dict(re.findall(r'^(LEVEL\d_\w+)\s+(\d+)', text, flags=re.MULTILINE))
    caches: list[Cache] = []
    for level, key in ((1, 'LEVEL1_DCACHE'), (2, 'LEVEL2_CACHE'), (3, 'LEVEL3_CACHE')):
        size, line, ways = (int(values.get(f'{key}_{f}', 0)) for f in ('SIZE', 'LINESIZE', 'ASSOC'))
        if not size:
            break
        caches.append(_cache(level, size, line, ways, cores if level == 3 else 1))
    return tuple(caches)


def _run_getconf() -> str:
    command = shutil.which('getconf')
    if not command:
        return ''
    try:
        answer = subprocess.run(
            [command, '-a'], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return answer.stdout


def _cpuinfo_field(root: Path, name: str) -> str:
    pattern = rf'^{re.escape(name)}\s*:\s*(.+)$'
    match = re.search(pattern, _read(root / 'proc/cpuinfo'), flags=re.MULTILINE)
    return match[1].strip() if match else ''


def model_name(root: Path, arch: str) -> str:
    """The processor's name: as given on x86-64, from its part number on ARM."""
    name = _cpuinfo_field(root, 'model name')
    if name:
        return ' '.join(name.split())
    implementer, part = (_cpuinfo_field(root, f'CPU {f}') for f in ('implementer', 'part'))
    try:
        number = int(implementer, 16), int(part, 16)
    except ValueError:
        return f'{arch} processor'
    return _ARM_PARTS.get(number, f'{arch} processor {number[0]:#x}/{number[1]:#x}')


def reported_clock(root: Path, cpu: int) -> float | None:
    """GHz by cpufreq's maximum, the model name ('@ 3.60GHz'), or the current 'cpu MHz'; or None."""
    text = _read(root / f'sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq')
    if text.isdigit() and int(text):
        return int(text) / 1e6
    match = re.search(r'@\s*([\d.]+)\s*GHz', _cpuinfo_field(root, 'model name'))
    if match:
        return float(match[1])
    match = re.fullmatch(r'\d+(\.\d+)?', _cpuinfo_field(root, 'cpu MHz'))
    return float(match[0]) / 1e3 if match and float(match[0]) else None
