"""Networks in bf16 and int8 on CPUs with AMX: ours against PyTorch, ONNX Runtime and OpenVINO.

    python -m tilewright_lab.scripts.tile_networks resnet50 bert_base_128 --threads 2 8

Goes in: names of networks of the zoo. Comes out: for each number of threads the median milliseconds
of every contestant, and how far our bf16 is from our fp32. Each contestant is a process of its own,
stopped while others run; all have a turn in every round. All are prepared at once, since that takes
longest; those that are not ready in time, or fail, are named.

    ours-bf16, ours-int8    the latter on the QDQ file that ONNX Runtime's tool makes
    torch-bf16              the module in bf16, channels last, in inference mode
    torch-bf16-jit          traced and frozen, with oneDNN's fusion
    torch-bf16-inductor     torch.compile with frozen weights
    torch-int8              FX quantisation by oneDNN; Linear quantised as it runs in transformers
    onnxruntime-int8        on the same QDQ file as ours
    openvino-bf16           the network in OpenVINO's default type, which is bf16 where tiles are
    openvino-int8           on the same QDQ file as ours
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.report.grid import Grid
from tilewright_lab.peers import libraries
from tilewright_lab.scripts.integer_networks import onnxruntime_session, quantise

KINDS = (
    'ours-bf16', 'ours-int8', 'torch-bf16', 'torch-bf16-jit', 'torch-bf16-inductor', 'torch-int8',
    'onnxruntime-int8', 'openvino-bf16', 'openvino-int8',
)  # fmt: skip
CALLS, WARM = 6, 2


def ours(kind: str, name: str, models: Path, threads: int) -> Callable[[], Any]:
    """Our network, as a function of nothing."""
    inputs = zoo.inputs(zoo.network(name))
    if kind == 'ours-int8':
        net = tw.compile(models / f'{name}.onnx', threads=threads)
    else:
        net = tw.compile(name, threads=threads, precision=kind.removeprefix('ours-'))
    return lambda: next(iter(net.run(dict(inputs)).values()))


def theirs(kind: str, name: str, models: Path, threads: int) -> Callable[[], Any]:
    """PyTorch, OpenVINO, or ONNX Runtime on the quantised file."""
    inputs = zoo.inputs(zoo.network(name))
    if kind == 'onnxruntime-int8':
        run = onnxruntime_session(models / f'{name}.onnx', threads)
        return lambda: run(inputs)
    if kind.startswith('openvino'):
        return _openvino(kind, name, models, threads, inputs)
    torch = import_module('torch')
    torch.set_num_threads(threads)
    module = zoo.torch_module(name).eval()
    given = [torch.from_numpy(np.array(array)) for array in inputs.values()]
    images = given[0].dim() == 4
    if images:
        module = module.to(memory_format=torch.channels_last)
        given = [array.to(memory_format=torch.channels_last) for array in given]
    with torch.no_grad():
        if kind == 'torch-int8':
            module = _quantised(torch, module, given, images)
        else:
            module = module.to(torch.bfloat16)
            given = [a.to(torch.bfloat16) if a.is_floating_point() else a for a in given]
        if kind == 'torch-bf16-jit':
            torch.jit.enable_onednn_fusion(True)
            traced = torch.jit.trace(module, given, strict=False, check_trace=False)
            module = torch.jit.freeze(traced)
        if kind == 'torch-bf16-inductor':
            inductor: Any = import_module('torch._inductor.config')
            inductor.freezing = True
            module = torch.compile(module)
    mode = torch.no_grad if kind == 'torch-bf16-inductor' else torch.inference_mode

    def run_module() -> Any:
        with mode():
            return module(*given)

    return run_module


def _openvino(
    kind: str, name: str, models: Path, threads: int, inputs: Mapping[str, np.ndarray]
) -> Callable[[], Any]:
    """OpenVINO with its latency hint, threads pinned or not, whichever is the faster."""
    model = models / f'{name}{"" if kind == "openvino-int8" else "-fp32"}.onnx'
    shapes = {key: array.shape for key, array in inputs.items()}
    ov: Any = import_module('openvino')
    runs: dict[float, Callable[[], None]] = {}
    tensors = {key: ov.Tensor(np.array(array)) for key, array in inputs.items()}
    for settings in libraries.openvino_settings(''):
        compiled = libraries.openvino_compiled(str(model), threads, settings, shapes)
        found = compiled.get_property('INFERENCE_PRECISION_HINT')
        if kind == 'openvino-bf16' and found != ov.Type.bf16:
            raise RuntimeError(f'openvino computes in {found} here, not in bf16')
        request = compiled.create_infer_request()
        for key, tensor in tensors.items():
            request.set_tensor(key, tensor)
        run = libraries.openvino_run(request)
        runs[min(_seconds(run) for _ in range(CALLS))] = run
    return runs[min(runs)]


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def plain(name: str, path: Path) -> Path:
    """A network of the zoo as an ONNX file of floats."""
    onnx: Any = import_module('onnx')
    onnx.save(zoo.onnx_model(name), path)
    return path


def _quantised(torch: Any, module: Any, given: list[Any], images: bool) -> Any:
    """PyTorch's own int8: ranges of the inputs at hand for images, dynamic for transformers."""
    quantization = import_module('torch.ao.quantization')
    if not images:
        return quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    torch.backends.quantized.engine = 'onednn'
    by_graph = import_module('torch.ao.quantization.quantize_fx')
    mapping = quantization.get_default_qconfig_mapping('x86')
    prepared = by_graph.prepare_fx(module, mapping, tuple(given))
    prepared(*given)
    return by_graph.convert_fx(prepared)


def serve(kind: str, name: str, models: Path, threads: int) -> None:
    """A contestant: says 'ready' or why not, then for each line on its input what calls took."""
    said = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    try:
        make = ours if kind.startswith('ours') else theirs
        run = make(kind, name, models, threads)
        run()
    except Exception as error:
        print(json.dumps(repr(error)[:300]), file=said, flush=True)
        return
    print(json.dumps('ready'), file=said, flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(CALLS):
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps(times[WARM:]), file=said, flush=True)


class Contestant:
    """The process of a contestant, which stands still unless it is asked."""

    def __init__(self, kind: str, name: str, models: Path, threads: int) -> None:
        command = [
            sys.executable, '-m', 'tilewright_lab.scripts.tile_networks', name, '--serve', kind,
            '--models', str(models), '--threads', str(threads),
        ]  # fmt: skip
        self.key, self.samples, self.trouble = (name, threads, kind), [], 'not ready in time'
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True, env={**os.environ, 'OMP_NUM_THREADS': str(threads)},
        )  # fmt: skip

    def reply(self, seconds: float) -> Any:
        """What it says within so many seconds, or None."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(seconds, 0.0))
        return json.loads(self.process.stdout.readline() or '"ended"') if ready else None

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def turn(self) -> None:
        assert self.process.stdin is not None
        self.signal(signal.SIGCONT)
        self.process.stdin.write('\n')
        self.process.stdin.flush()
        self.samples.append(self.reply(60))
        self.signal(signal.SIGSTOP)

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait()


def prepared(running: list[Contestant], seconds: float) -> list[Contestant]:
    """Those that are ready within so many seconds, standing still."""
    waiting, end = list(running), time.monotonic() + seconds
    while waiting and time.monotonic() < end:
        for one in list(waiting):
            answer = one.reply(0.02)
            if answer is not None:
                one.trouble = '' if answer == 'ready' else answer
                waiting.remove(one)
    ready = [one for one in running if not one.trouble]
    for one in ready:
        one.signal(signal.SIGSTOP)
    return ready


def off_by(name: str, threads: int) -> float:
    """The largest difference of our bf16 from our fp32, as a share of the largest result."""
    want, got = (
        np.asarray(ours(f'ours-{kind}', name, Path(), threads)(), np.float32)
        for kind in ('fp32', 'bf16')
    )
    return float(np.abs(got - want).max() / np.abs(want).max())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each network and number of threads: both types of ours beside the fastest of the others."""
    head = (
        'network', 'threads', 'bf16, ms', 'fastest other', 'ms', 'ratio', 'int8, ms',
        'fastest other', 'ms', 'ratio',
    )  # fmt: skip
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        if 'ms' in row:
            found.setdefault((row['network'], row['threads']), {})[row['kind']] = row['ms']
    lines, ratios = [], {'bf16': [], 'int8': []}
    for (name, threads), ms in found.items():
        line = [name, str(threads)]
        for dtype, all_of_them in ratios.items():
            others = {k: v for k, v in ms.items() if dtype in k and not k.startswith('ours')}
            best = min(others, key=others.__getitem__)
            own = ms[f'ours-{dtype}']
            all_of_them.append(others[best] / own)
            line += [f'{own:.2f}', best, f'{others[best]:.2f}', f'{all_of_them[-1]:.2f}']
        lines.append(tuple(line))
    bf16, int8 = (f'{statistics.geometric_mean(found):.2f}' for found in ratios.values())
    lines.append(('geometric mean', '', '', '', '', bf16, '', '', '', int8))
    return Grid(head, tuple(lines)).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('networks', nargs='+')
    parser.add_argument('--threads', type=int, nargs='+', default=[2])
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=KINDS)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--prepare-s', type=float, default=120.0)
    parser.add_argument('--models', type=Path)
    parser.add_argument('--times-alone', action='store_true', help='no errors of bf16')
    parser.add_argument('--json', type=Path)
    parser.add_argument('--serve', choices=(*KINDS, 'ours-fp32'), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, chosen.networks[0], chosen.models, chosen.threads[0])
        return
    with tempfile.TemporaryDirectory() as made, ProcessPoolExecutor() as pool:
        models = chosen.models or Path(made)
        missing = [n for n in chosen.networks if not (models / f'{n}.onnx').exists()]
        list(pool.map(quantise, missing, [models / f'{n}.onnx' for n in missing]))
        missing = [n for n in chosen.networks if not (models / f'{n}-fp32.onnx').exists()]
        list(pool.map(plain, missing, [models / f'{n}-fp32.onnx' for n in missing]))
        running = [
            Contestant(kind, name, models, threads)
            for threads in chosen.threads for name in chosen.networks for kind in chosen.kinds
        ]  # fmt: skip
        try:
            ready = prepared(running, chosen.prepare_s)
            for _ in range(chosen.rounds):
                for one in ready:
                    one.turn()
        finally:
            for one in running:
                one.close()
    rows = []
    for one in running:
        name, threads, kind = one.key
        row = {'network': name, 'threads': threads, 'kind': kind, 'samples_ms': one.samples}
        row |= {'trouble': one.trouble} if one.trouble else {}
        if one.samples:
            row['ms'] = statistics.median(ms for turn in one.samples for ms in turn)
        if kind == 'ours-bf16' and one.samples and not chosen.times_alone:
            row['off_by'] = off_by(name, threads)
        rows.append(row)
        figure = f'{row["ms"]:.3f} ms' if one.samples else one.trouble
        print(f'{name}, {threads} threads, {kind}: {figure}', flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    main()
