"""The GPU's side of the verbs `bench` and `machine`, with --target, and of `explain`."""

from __future__ import annotations

import math
import secrets
import sys

import typer

from tilewright.bench.gpu_layers import GpuBench, GpuOptions
from tilewright.bench.gpu_results import GpuLayer, GpuTable, geometric_mean
from tilewright.bench.suites import expand_all
from tilewright.cli.output import Output
from tilewright.errors import CheckError, InputError, MissingError, TilewrightError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.report.gpu_explain import explain_gpu, explanation_text
from tilewright.runtime.gpu_bandwidth import described
from tilewright.runtime.gpu_session import TARGETS, open_device
from tilewright.store.records import open_store

INTERRUPTED = 130

# Options of `bench` that say nothing about a GPU.
CPU_ONLY = (
    'flush', 'caches', 'direct', 'turn-ms', 'tvm-trials', 'top', 'algorithm', 'max-rel-err',
    'threads',
)  # fmt: skip


def bench(
    spec: str,
    out: Output,
    *,
    target: str,
    against: str | None = None,
    device: str = '',
    trials: int = 128,
    seconds: float | None = None,
    batch: int | None = None,
    rounds: int = 9,
    seed: int | None = None,
) -> int:
    """Search and compare layer by layer; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt; losing rows stay.
    """
    default = {'cuda': 'cudnn', 'opencl': 'general', 'host': 'general'}.get(target, 'cudnn')
    names = tuple(n.strip() for n in (against or default).split(',') if n.strip())
    options = GpuOptions(
        target, device, names, trials, math.inf if seconds is None else seconds, rounds=rounds
    )
    options.check()
    expansion = expand_all(spec, batch)
    for skipped in expansion.skipped:
        out.warn(f'line {skipped.line} is left out: {skipped.reason}')
    layers = [
        (name if batch is None else f'{name}@{batch}', group) for name, group, _ in expansion.layers
    ]
    drawn = secrets.randbits(32) if seed is None else seed
    done: list[GpuLayer] = []
    code = 0
    table = GpuTable([name for name, _ in layers], names)
    with open_store() as store, GpuBench(options, store, drawn, say=_progress) as arena:
        out.say(f'{arena.opened.device} ({target}), peak {_peak(arena.opened.machine)}')
        out.say(table.head())
        try:
            for name, group in layers:
                try:
                    done.append(arena.layer(name, group))
                except TilewrightError as error:  # too large for the device, say: the others go on
                    done.append(
                        GpuLayer(
                            name, group.label, group.digest, group.flops, arena.opened.machine,
                            names[0], message=str(error),
                        )
                    )  # fmt: skip
                _progress('')
                out.say(table.row(done[-1]))
        except KeyboardInterrupt:
            out.warn(
                f'interrupted after {len(done)} of {len(layers)} layers; what was measured is '
                f'in {store.path}, and the same command goes on from there'
            )
            code = INTERRUPTED
        opened = arena.opened
    out.say(table.foot(done))
    out.write(
        {
            'spec': spec, 'batch': batch, 'seed': drawn, 'target': target,
            'device': opened.device, 'machine': opened.machine.to_json(),
            'device_versions': opened.versions, 'peers': list(names), 'trials': trials,
            'seconds': seconds, 'rounds': rounds, 'complete': len(done) == len(layers),
            'geometric_mean': {name: geometric_mean(done, name) for name in names},
            'layers': [layer.to_json() for layer in done],
        }
    )  # fmt: skip
    return code or _exit_code(done, names, out)


def _peak(machine: GpuMachine) -> str:
    peak = machine.peak_gflops
    text = f'{peak / 1e3:.1f} TFLOP/s' if peak >= 1e3 else f'{peak:.1f} GFLOP/s'
    return f'{text} in fp32 multiply-adds'


def _progress(text: str) -> None:
    """A line that the next one replaces, on a terminal."""
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def _exit_code(done: list[GpuLayer], names: tuple[str, ...], out: Output) -> int:
    """1 when nothing of ours worked on a layer, 3 when a contestant is missing."""
    if any(layer.ours_us is None for layer in done):
        for layer in done:
            if layer.ours_us is None:
                out.warn(f'{layer.name}: {layer.message or "no schedule of ours was timed"}')
        return CheckError.exit_code
    others = [(layer, c) for layer in done for c in layer.contestants if not c.get('median_us')]
    missing = {c['name']: c['message'] for _, c in others if c.get('status') == 'missing'}
    for name, message in missing.items():
        out.warn(f'{name}: {message}')
    for layer, c in others:
        if c['name'] not in missing:
            out.warn(f'{layer.name}: {c["name"]} was not timed ({c["status"]}): {c["message"]}')
    return MissingError.exit_code if missing else 0


def machine(out: Output, *, target: str, seed: int | None = None) -> int:
    """List the devices of a target with the figures that the models need."""
    if target not in TARGETS:
        raise InputError(f'--target {target!r}; choose one of cpu, {", ".join(TARGETS)}')
    found = [(name, described(open_device(target, name))) for name in _names(target)]
    if not found:
        found = [('', described(open_device(target)))]  # says what is missing
    for number, (name, one) in enumerate(found):
        out.say(('\n' if number else '') + machine_text(name, one))
    out.write(
        {
            'seed': seed, 'target': target,
            'devices': [{'name': name, 'machine': one.to_json()} for name, one in found],
        }
    )  # fmt: skip
    return 0


def _names(target: str) -> list[str]:
    if target == 'cuda':
        from tilewright.runtime.cuda_devices import cuda_devices

        return [str(number) for number in range(len(cuda_devices()))]
    if target == 'opencl':
        from tilewright.runtime.opencl import devices

        return devices()
    return ['host']


def machine_text(name: str, m: GpuMachine) -> str:
    """A GPU for people."""
    capability = '.'.join(map(str, m.capability)) if any(m.capability) else 'none'
    return '\n'.join(
        [
            f'{m.name}' + (f'  [{name}]' if name and name != m.name else ''),
            f'  {m.multiprocessors} multiprocessors at {m.clock_ghz:.2f} GHz, {m.fp32_lanes} '
            f'multiply-adds a cycle each: {_peak(m)}',
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


def given(ctx: typer.Context, *names: str) -> dict[str, bool]:
    """Which of these options stand on the command line."""
    sources = {name: ctx.get_parameter_source(name.replace('-', '_')) for name in names}
    return {
        name: source is not None and source.name == 'COMMANDLINE'
        for name, source in sources.items()
    }


def refuse(target: str, given: dict[str, bool]) -> None:
    """Raise InputError where options that mean nothing on a target were given, by their names."""
    wrong = [f'--{name}' for name, there in given.items() if there]
    if wrong:
        raise InputError(f'{", ".join(wrong)} mean nothing with --target {target}; leave them out')


def explain(spec: str, out: Output, *, machine: str, seed: int | None = None) -> int:
    """Explain every layer that `spec` names on a known GPU; nothing is measured or compiled."""
    target = known_gpu(machine)
    found = []
    for number, (name, group, _) in enumerate(expand_all(spec).layers):
        explained = explain_gpu(name, group, target)
        out.say(('\n' if number else '') + explanation_text(explained))
        found.append(explained.to_json())
    out.write(
        {
            'spec': spec, 'seed': seed, 'measured': False, 'machine': target.to_json(),
            'layers': found,
        }
    )  # fmt: skip
    return 0
