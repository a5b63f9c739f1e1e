"""`tilewright machine`: what was found and measured, with a plot on request."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tilewright.cli.optimize import check_early
from tilewright.cli.output import Output
from tilewright.errors import InputError, StoreError
from tilewright.machine.detect import HostFacts, describe_host
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.isa import best_isa
from tilewright.machine.machine import Machine
from tilewright.machine.measure import (
    calibration,
    curve,
    keep_calibration,
    load_machine,
    machine_file,
)
from tilewright.report.machine_page import boundary_names, machine_text, plot_curve
from tilewright.runtime.gpu.bandwidth import described
from tilewright.runtime.gpu.session import TARGETS, device_names, open_device

CALIBRATION_S = 300.0


def run(
    out: Output,
    *,
    machine: str | None,
    plot: Path | None,
    remeasure: bool,
    threads: int | None,
    seed: int | None,
    calibrate: bool = False,
    seconds: float | None = None,
) -> int:
    """Print the page, record it, draw the plot; comes out: the exit code."""
    for given, asked in (('--remeasure', remeasure), ('--calibrate', calibrate)):
        if machine is not None and asked:
            raise InputError(f'{given} measures this host; leave out --machine {machine}')
    if seconds is not None and not calibrate:
        raise InputError(f'--seconds {seconds:g} is how long --calibrate takes; give it as well')
    if threads is not None:
        check_early(machine, threads)
    facts = describe_host() if machine is None else None
    found, warning = _remeasured(facts) if facts and remeasure else load_machine(machine)
    if calibrate:
        found = _calibrated(found, seconds or CALIBRATION_S, seed or 0, out)
    _check_threads(threads, found)
    how = calibration() if facts else {}
    points = curve() if facts else []
    out.say(machine_text(found, facts, warning, how))
    if threads is not None:
        out.say('\n' + _threads_text(found, threads))
    if plot is not None:
        plot_curve(points, found, plot)
        out.say(f'\nwrote {plot}')
    out.write(
        {
            'seed': seed,
            'machine': found.to_json(),
            'warning': warning,
            'calibration': dict(how) or None,
            'curve': [
                {'bytes_per_core': size, 'one_core_gbps': one, 'all_cores_gbps': every}
                for size, one, every in points
            ],
            'host': _facts_json(facts) if facts else None,
            'at_threads': None if threads is None else _threads_json(found, threads),
        }
    )
    return 0


def _calibrated(machine: Machine, seconds: float, seed: int, out: Output) -> Machine:
    """Calibrate and keep it, with lines that say how far it is."""
    from tilewright.targets.cpu.calibrate import calibrate as fit_host

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    result = fit_host(machine, seconds, tell, seed)
    machine, path = keep_calibration(result.constants, result.to_json())
    tell(f'kept in {path}, and used from now on')
    if result.doubtful:
        out.warn(f'the calibration is doubtful: {result.doubtful}; repeat it on a quiet host')
    return machine


def run_target(out: Output, *, target: str, seed: int | None) -> int:
    """List the devices of a target with the figures that the models need."""
    if target not in TARGETS:
        raise InputError(f'--target {target!r}; choose one of cpu, {", ".join(TARGETS)}')
    found = [(name, described(open_device(target, name))) for name in device_names(target)]
    if not found:
        found = [('', described(open_device(target)))]  # says what is missing
    for number, (name, one) in enumerate(found):
        out.say(('\n' if number else '') + gpu_text(name, one))
    out.write(
        {
            'seed': seed, 'target': target,
            'devices': [{'name': name, 'machine': one.to_json()} for name, one in found],
        }
    )  # fmt: skip
    return 0


def peak_text(machine: GpuMachine) -> str:
    peak = machine.peak_gflops
    text = f'{peak / 1e3:.1f} TFLOP/s' if peak >= 1e3 else f'{peak:.1f} GFLOP/s'
    return f'{text} in fp32 multiply-adds'


def gpu_text(name: str, m: GpuMachine) -> str:
    """A GPU for people."""
    capability = '.'.join(map(str, m.capability)) if any(m.capability) else 'none'
    return '\n'.join(
        [
            f'{m.name}' + (f'  [{name}]' if name and name != m.name else ''),
            f'  {m.multiprocessors} multiprocessors at {m.clock_ghz:.2f} GHz, {m.fp32_lanes} '
            f'multiply-adds a cycle each: {peak_text(m)}',
            f'  of a multiprocessor: {m.registers} registers, {m.shared_bytes // 1024} KiB of '
            f'shared memory, {m.threads} threads, {m.blocks} blocks, warps of {m.warp}',
            f'  of a block: {m.threads_per_block} threads, {m.shared_bytes_per_block // 1024} KiB '
            f'of shared memory; of a thread: {m.registers_per_thread} registers',
            f'  L2 {m.l2_bytes / 2**20:.0f} MiB; GB/s: memory {m.global_gbps:.0f}, L2 '
            f'{m.l2_gbps:.0f}, shared memory {m.shared_gbps:.0f}',
            f'  compute capability {capability}; matrix instructions: '
            f'{", ".join(m.instructions) or "none"}',
            *(
                [f'  assumed, neither queried nor measured: {", ".join(m.assumed)}']
                if m.assumed
                else []
            ),
        ]
    )


def _remeasured(facts: HostFacts) -> tuple[Machine, str | None]:
    """Measure again. The old figures stay aside until the new ones are there."""
    path = machine_file(facts, best_isa(facts.isas))
    aside = path.with_suffix('.before')
    try:
        with contextlib.suppress(FileNotFoundError):
            path.replace(aside)
    except OSError as error:
        raise StoreError(
            f'the machine file {path} cannot be replaced ({error.strerror}); make its directory '
            f'writable, or set TILEWRIGHT_CACHE_DIR'
        ) from None
    try:
        return load_machine()
    finally:
        if path.exists():
            aside.unlink(missing_ok=True)
        elif aside.exists():
            aside.replace(path)


def _check_threads(threads: int | None, machine: Machine) -> None:
    if threads is not None and not 1 <= threads <= machine.cores:
        raise InputError(
            f'threads is {threads}; {machine.name} has {machine.cores} usable cores: ask for 1 to '
            f'{machine.cores}'
        )


def _threads_json(machine: Machine, threads: int) -> dict:
    return {
        'threads': threads,
        'peak_gflops_per_s': machine.peak_gflops(threads),
        'bandwidth_gbps': {
            name: machine.bandwidth_gbps(number, threads)
            for number, name in enumerate(boundary_names(machine))
        },
        'capacity_bytes': {
            cache.name: machine.capacity_bytes(number, threads)
            for number, cache in enumerate(machine.caches)
        },
    }


def _threads_text(machine: Machine, threads: int) -> str:
    figures = _threads_json(machine, threads)
    rates = ', '.join(f'{name} {rate:.1f}' for name, rate in figures['bandwidth_gbps'].items())
    return (
        f'  with {threads} threads: {figures["peak_gflops_per_s"]:.1f} GFLOP/s; GB/s together: '
        f'{rates}'
    )


def _facts_json(facts: HostFacts) -> dict:
    return {
        'model': facts.model,
        'arch': facts.arch,
        'isas': list(facts.isas),
        'cpus': list(facts.cpus),
        'allowed_cpus': list(facts.allowed),
        'quota_cpus': facts.quota,
        'cache_source': facts.cache_source,
        'clock_ghz': facts.clock_ghz,
    }
