"""Cores, quotas, caches, model and clock from invented /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import InputError
from tilewright.machine import isa
from tilewright.machine.detect import (
    HostFacts,
    cpu_quota,
    describe_host,
    one_per_core,
    parse_cpu_list,
    parse_size,
)

X86_FLAGS = 'fpu sse2 avx2 fma avx512f avx512vl avx512dq avx512bw'


def put(root: Path, path: str, text: object) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{text}\n')


def put_cpuinfo(root: Path, flags: str = X86_FLAGS, cpus: int = 2) -> None:
    one = f'model name\t: Some  CPU @ 2.80GHz\ncpu MHz\t\t: 2000.0\nflags\t\t: {flags}\n'
    put(root, 'proc/cpuinfo', '\n'.join([one] * cpus))


def put_cache(
    root: Path, cpu: int, index: int, level: int, kind: str, size: str, shared: str, ways: int = 8
) -> None:
    folder = f'sys/devices/system/cpu/cpu{cpu}/cache/index{index}'
    fields = {
        'level': level,
        'type': kind,
        'size': size,
        'coherency_line_size': 64,
        'ways_of_associativity': ways,
        'shared_cpu_list': shared,
    }
    for name, value in fields.items():
        put(root, f'{folder}/{name}', value)


def put_vm(root: Path, cpus: int = 2, l3: str = '33792K') -> None:
    """An x86-64 virtual machine: private L1 and L2, one L3 that a 64-CPU host shares out."""
    put_cpuinfo(root, cpus=cpus)
    for cpu in range(cpus):
        put_cache(root, cpu, 0, 1, 'Data', '48K', str(cpu), 12)
        put_cache(root, cpu, 1, 1, 'Instruction', '32K', str(cpu))
        put_cache(root, cpu, 2, 2, 'Unified', '2048K', str(cpu), 16)
        put_cache(root, cpu, 3, 3, 'Unified', l3, '0-63', 11)


def describe(root: Path, affinity: range | tuple[int, ...], arch: str = 'x86_64') -> HostFacts:
    return describe_host(root, affinity=affinity, arch=arch, getconf=lambda: '')


def test_virtual_machine(tmp_path: Path) -> None:
    put_vm(tmp_path)
    facts = describe(tmp_path, range(2))
    assert (facts.model, facts.cores, facts.quota) == ('Some CPU @ 2.80GHz', 2, None)
    assert facts.isas == ('avx512', 'avx2', 'portable')
    assert facts.clock_ghz == 2.8
    assert facts.cache_source == 'sysfs'
    rows = [(c.name, c.bytes, c.line_bytes, c.ways, c.shared_by) for c in facts.caches]
    assert rows == [
        ('l1', 48 << 10, 64, 12, 1),
        ('l2', 2 << 20, 64, 16, 1),
        ('l3', 33 << 20, 64, 11, 2),  # 64 CPUs share it, two of them are ours
    ]
    # Not measured: the caches inside a core count fully, the L3 half.
    assert [c.usable_bytes for c in facts.caches] == [48 << 10, 2 << 20, 33 << 19]


def test_affinity_counts_only_our_cores(tmp_path: Path) -> None:
    put_vm(tmp_path, cpus=8)
    facts = describe(tmp_path, (1, 5, 6))
    assert facts.cpus == (1, 5, 6)
    assert facts.caches[2].shared_by == 3


def test_smt_siblings_are_one_core(tmp_path: Path) -> None:
    put_vm(tmp_path, cpus=4)
    for cpu in range(4):
        pair = f'{cpu % 2},{cpu % 2 + 2}'
        put(tmp_path, f'sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list', pair)
    facts = describe(tmp_path, range(4))
    assert (facts.cpus, facts.allowed) == ((0, 1), (0, 1, 2, 3))
    assert facts.caches[2].shared_by == 2
    # A sibling that is not ours does not count: CPU 3 then stands for its core.
    assert one_per_core(tmp_path, (0, 2, 3)) == (0, 3)
    trusting = describe_host(tmp_path, affinity=range(4), arch='x86_64', smt=True)
    assert trusting.cores == 4


def test_hybrid_takes_the_least_share(tmp_path: Path) -> None:
    """Two large cores with an L2 each, four small ones that share one."""
    put_cpuinfo(tmp_path, 'avx2 fma', cpus=6)
    for cpu in range(6):
        big = cpu < 2
        put_cache(tmp_path, cpu, 0, 1, 'Data', '48K' if big else '32K', str(cpu))
        put_cache(tmp_path, cpu, 1, 2, 'Unified', '2M' if big else '4M', str(cpu) if big else '2-5')
        put_cache(tmp_path, cpu, 2, 3, 'Unified', '30M', '0-5', 12)
    facts = describe(tmp_path, range(6))
    assert [(c.bytes, c.shared_by) for c in facts.caches] == [
        (32 << 10, 1),
        (4 << 20, 4),
        (30 << 20, 6),
    ]
    assert facts.isas == ('avx2', 'portable')
    # With the large cores alone the small ones play no part.
    assert [(c.bytes, c.shared_by) for c in describe(tmp_path, (0, 1)).caches] == [
        (48 << 10, 1),
        (2 << 20, 1),
        (30 << 20, 2),
    ]


def test_a_level_that_a_core_lacks_is_left_out(tmp_path: Path) -> None:
    put_cpuinfo(tmp_path)
    put_cache(tmp_path, 0, 0, 1, 'Data', '32K', '0')
    put_cache(tmp_path, 1, 0, 1, 'Data', '32K', '1')
    put_cache(tmp_path, 0, 1, 3, 'Unified', '8M', '0')
    assert [c.name for c in describe(tmp_path, range(2)).caches] == ['l1']


def test_unknown_ways_and_line_get_usual_figures(tmp_path: Path) -> None:
    put_cpuinfo(tmp_path)
    put_cache(tmp_path, 0, 0, 1, 'Data', '32K', '0', ways=0)
    (tmp_path / 'sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size').unlink()
    (cache,) = describe(tmp_path, (0,)).caches
    assert (cache.line_bytes, cache.ways) == (64, 8)


def test_missing_cache_folder_falls_back_to_getconf(tmp_path: Path) -> None:
    put_cpuinfo(tmp_path, cpus=4)
    text = (
        'LEVEL1_DCACHE_SIZE                 32768\nLEVEL1_DCACHE_ASSOC                8\n'
        'LEVEL1_DCACHE_LINESIZE             64\nLEVEL2_CACHE_SIZE                  1048576\n'
        'LEVEL2_CACHE_ASSOC                 16\nLEVEL2_CACHE_LINESIZE              64\n'
        'LEVEL3_CACHE_SIZE                  4194304\nLEVEL3_CACHE_ASSOC                 11\n'
        'LEVEL3_CACHE_LINESIZE              64\nLEVEL4_CACHE_SIZE                  0\n'
    )
    facts = describe_host(tmp_path, affinity=range(4), arch='x86_64', getconf=lambda: text)
    assert facts.cache_source == 'getconf'
    assert [(c.bytes, c.ways, c.shared_by) for c in facts.caches] == [
        (32768, 8, 1),
        (1048576, 16, 1),
        (4194304, 11, 4),
    ]


def test_nothing_known_at_all(tmp_path: Path) -> None:
    facts = describe(tmp_path, range(2), arch='riscv64')
    assert facts.cache_source == 'nominal'
    assert [c.bytes for c in facts.caches] == [32 << 10, 256 << 10, 2 << 20]
    assert (facts.model, facts.isas) == ('riscv64 processor', ('portable',))
    assert facts.clock_ghz is None


def test_arm_names(tmp_path: Path) -> None:
    text = 'Features\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {}\n'
    put(tmp_path, 'proc/cpuinfo', text.format('0xd0c'))
    facts = describe(tmp_path, (0,), 'aarch64')
    assert (facts.model, facts.isas) == ('Neoverse-N1', ('neon', 'portable'))
    put(tmp_path, 'proc/cpuinfo', text.format('0xfff'))
    assert describe(tmp_path, (0,), 'aarch64').model == 'aarch64 processor 0x41/0xfff'


def test_clock_prefers_cpufreq(tmp_path: Path) -> None:
    put_vm(tmp_path)
    put(tmp_path, 'sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq', 3900000)
    assert describe(tmp_path, (0,)).clock_ghz == 3.9
    put(tmp_path, 'proc/cpuinfo', 'model name : X\ncpu MHz : 2450.5\n')
    assert describe(tmp_path, (1,)).clock_ghz == 2.4505


@pytest.mark.parametrize(
    ('files', 'quota', 'cores'),
    [
        ({'cpu.max': 'max 100000'}, None, 8),
        ({'cpu.max': '250000 100000'}, 2.5, 2),
        ({'cpu.max': '50000 100000'}, 0.5, 1),
        ({'cpu.max': 'max 100000', 'a/cpu.max': '400000 100000', 'a/b/cpu.max': 'max 1'}, 4.0, 4),
        ({'a/cpu.max': '600000 100000', 'a/b/cpu.max': '300000 100000'}, 3.0, 3),
        ({'cpu.max': 'rubbish'}, None, 8),
        ({'cpu.max': '1600000 100000'}, 16.0, 8),
    ],
)
def test_cgroup_v2_quota(
    tmp_path: Path, files: dict[str, str], quota: float | None, cores: int
) -> None:
    put_vm(tmp_path, cpus=8)
    put(tmp_path, 'proc/self/cgroup', '0::/a/b')
    for name, text in files.items():
        put(tmp_path, f'sys/fs/cgroup/{name}', text)
    facts = describe(tmp_path, range(8))
    assert (facts.quota, facts.cores) == (quota, cores)
    assert facts.caches[2].shared_by == cores


@pytest.mark.parametrize('mount', ['cpu', 'cpu,cpuacct'])
@pytest.mark.parametrize(('quota', 'expected'), [(-1, None), (150000, 1.5)])
def test_cgroup_v1_quota(tmp_path: Path, mount: str, quota: int, expected: float | None) -> None:
    put(tmp_path, 'proc/self/cgroup', '3:cpuset:/\n1:cpu,cpuacct:/docker/../x\n0::/')
    put(tmp_path, f'sys/fs/cgroup/{mount}/x/cpu.cfs_quota_us', -1)
    put(tmp_path, f'sys/fs/cgroup/{mount}/docker/x/cpu.cfs_quota_us', quota)
    put(tmp_path, f'sys/fs/cgroup/{mount}/docker/x/cpu.cfs_period_us', 100000)
    assert cpu_quota(tmp_path) == expected


def test_quota_without_proc_is_that_of_the_mount(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    put(tmp_path, 'sys/fs/cgroup/cpu.max', '200000 100000')
    assert cpu_quota(tmp_path) == 2.0


def test_lists_and_sizes() -> None:
    assert parse_cpu_list('0-2,8, 10-11') == (0, 1, 2, 8, 10, 11)
    assert parse_cpu_list('') == parse_cpu_list('none') == ()
    sizes = [parse_size(t) for t in ('32K', '12M', '1G', '64', '2MB', '', '?K')]
    assert sizes == [32 << 10, 12 << 20, 1 << 30, 64, 2 << 20, 0, 0]


def test_flags_must_be_on_every_cpu(tmp_path: Path) -> None:
    put(tmp_path, 'proc/cpuinfo', 'flags : avx2 fma avx512f\n\nflags : avx2 fma\n')
    assert isa.cpu_flags(tmp_path) == {'avx2', 'fma'}
    assert isa.host_isas(tmp_path, 'x86_64') == ('avx2', 'portable')
    assert isa.host_isas(tmp_path, 'aarch64') == ('portable',)


def test_isa_table() -> None:
    assert {n: (i.vector_bytes, i.registers) for n, i in isa.ISAS.items()} == {
        'avx512': (64, 32),
        'avx2': (32, 16),
        'neon': (16, 32),
        'portable': (16, 16),
    }
    assert isa.ISAS['avx2'].flops_per_cycle == 32  # two FMAs of eight lanes, two operations each
    for row in isa.ISAS.values():  # enough registers for the accumulators of Little's law
        assert row.fma_per_cycle * row.fma_latency_cycles < row.registers


def test_isa_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    runnable = ('avx2', 'portable')
    monkeypatch.delenv('TILEWRIGHT_ISA', raising=False)
    assert isa.best_isa(runnable) == 'avx2'
    assert isa.best_isa() == isa.host_isas()[0]
    monkeypatch.setenv('TILEWRIGHT_ISA', 'portable')
    assert isa.best_isa(runnable) == isa.best_isa() == 'portable'
    monkeypatch.setenv('TILEWRIGHT_ISA', 'avx512')
    with pytest.raises(InputError, match=r"'avx512' cannot run on this host.*avx2, portable"):
        isa.best_isa(runnable)
    monkeypatch.setenv('TILEWRIGHT_ISA', 'mmx')
    with pytest.raises(InputError, match=r"'mmx' is not an instruction set.*avx2, portable"):
        isa.best_isa(runnable)


def test_this_host() -> None:
    facts = describe_host()
    assert facts.cores >= 1
    assert set(facts.cpus) <= set(facts.allowed)
    assert facts.isas[-1] == 'portable'
    assert facts.caches[0].name == 'l1'
