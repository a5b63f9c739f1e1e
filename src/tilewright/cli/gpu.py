"""The GPU's side of the verbs `bench` and `machine`, with --target, and of `explain`."""

from __future__ import annotations

import typer

from tilewright.cli.output import Output
from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.ops.suites import expand_all
from tilewright.report.gpu_explain import explain_gpu, explanation_text
from tilewright.runtime.gpu.bandwidth import described
from tilewright.runtime.gpu.session import TARGETS, open_device


def peak_text(machine: GpuMachine) -> str:
    peak = machine.peak_gflops
    text = f'{peak / 1e3:.1f} TFLOP/s' if peak >= 1e3 else f'{peak:.1f} GFLOP/s'
    return f'{text} in fp32 multiply-adds'


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
        from tilewright.runtime.gpu.cuda_devices import cuda_devices

        return [str(number) for number in range(len(cuda_devices()))]
    if target == 'opencl':
        from tilewright.runtime.gpu.opencl import devices

        return devices()
    return ['host']


def machine_text(name: str, m: GpuMachine) -> str:
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
