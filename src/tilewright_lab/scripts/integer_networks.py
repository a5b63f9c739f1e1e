"""Quantised networks of the zoo: ours against ONNX Runtime, OpenVINO and MNN, answers and times.

    python -m tilewright_lab.scripts.integer_networks resnet18 mobilenet_v1 --json int8.json

Goes in: names of networks; `--models FOLDER` keeps or finds quantised models there. Comes out: for
each a line with the largest difference to ONNX Runtime, when it may not saturate, in units of the
quantised result, how many results differ, and the median milliseconds of our int8, ONNX Runtime's,
OpenVINO's and MNN's, each with its defaults. Each contestant is a process of its own, stopped while
others run, and all of them take a turn in every round. Models are quantised by ONNX Runtime's own
tool (QDQ, activations u8, weights i8 for each channel, ranges of a few random images).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.fallback.sessions import Session
from tilewright.report.grid import Grid
from tilewright_lab.peers.mobile import convert_to_mnn

SAMPLES = 4


def quantise(
    name: str, path: Path, *, per_channel: bool = True, signed: bool = False, **small: int
) -> Path:
    """A network of the zoo as a QDQ model in a file; `signed`: activations are i8, too."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader
    from onnxruntime.quantization.shape_inference import quant_pre_process

    made = zoo.network(name, **small)

    class Samples(CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[dict[str, np.ndarray]] = (
                zoo.inputs(made, seed) for seed in range(1, 1 + SAMPLES)
            )

        def get_next(self) -> Any:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        plain, prepared = Path(folder) / 'plain.onnx', Path(folder) / 'prepared.onnx'
        onnx.save(zoo.onnx_model(name, **small), plain)
        quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared, path, Samples(), quant_format=QuantFormat.QDQ, per_channel=per_channel,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
    return path


def unit(path: Path) -> float:
    """The scale of a model's result: what one unit of it is."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    last = next(n for n in graph.node if n.output[0] == graph.output[0].name)
    scale = next(t for t in graph.initializer if t.name == last.input[1])
    return float(numpy_helper.to_array(scale).reshape(-1)[0])


def onnxruntime_session(path: Path, threads: int) -> Callable[[Mapping[str, np.ndarray]], Any]:
    """ONNX Runtime on a model, as a function of its inputs, with its defaults: on x86 processors
    without dot products of bytes its sums saturate.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    return lambda inputs: session.run(None, dict(inputs))[0]


def exact_results(path: Path, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The first result of a model by ONNX Runtime, whose sums of integers do not saturate."""
    import onnx

    return next(iter(Session(onnx.load(path), 1, str(path)).run(inputs).values()))


def openvino_model(
    path: Path, threads: int, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Callable[[Mapping[str, np.ndarray]], Any] | None:
    """OpenVINO on a model, with sizes that it leaves open; None where it is not installed."""
    try:
        import openvino
    except ImportError:
        return None
    core = openvino.Core()
    config = {'INFERENCE_NUM_THREADS': threads, 'PERFORMANCE_HINT': 'LATENCY'}
    model = core.read_model(path)
    if shapes:
        model.reshape({name: list(shape) for name, shape in shapes.items()})
    compiled = core.compile_model(model, 'CPU', config)
    return lambda inputs: compiled(dict(inputs))[0]


def in_turns(
    runners: Mapping[str, Callable[[Mapping[str, np.ndarray]], Any]],
    inputs: Mapping[str, np.ndarray],
    rounds: int,
    gap_s: float = 0.0,
) -> dict[str, float]:
    """Median milliseconds of each in one process; all have a turn in every round.

    Threads of one keep a core for a while after its call: a gap lets them fall asleep first.
    """
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(rounds + 1):
        for name, run in runners.items():
            time.sleep(gap_s)
            run(inputs)
            for _ in range(3 if gap_s else 1):
                begin = time.perf_counter()
                run(inputs)
                if turn:
                    times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(found) for name, found in times.items()}


def ours(path: Path, threads: int) -> Callable[[Mapping[str, np.ndarray]], Any]:
    """Our network, as a function of its inputs."""
    net = tw.compile(path, threads=threads)
    return lambda inputs: next(iter(net.run(dict(inputs)).values()))


def mnn_model(path: Path, threads: int) -> Callable[[Mapping[str, np.ndarray]], Any] | None:
    """MNN's own int8: weights of 8 bits from the network of floats, activations quantised as it
    runs. Its converter makes nothing of QDQ files: it takes a quantised image for three of them.
    None where MNN is not installed.
    """
    if find_spec('MNN') is None:
        return None
    import onnx

    nn, expr = import_module('MNN.nn'), import_module('MNN.expr')
    made = zoo.onnx_model(path.stem)
    results = [value.name for value in made.graph.output]
    setting = {'backend': 'CPU', 'numThread': threads, 'precision': 'low', 'memory': 'low'}
    manager = nn.create_runtime_manager(({**setting, 'power': 'high'},))
    with tempfile.TemporaryDirectory() as folder:
        floats, converted = Path(folder, 'floats.onnx'), Path(folder, 'a.mnn')
        onnx.save(made, floats)
        convert_to_mnn(floats, converted, '--weightQuantBits', '8')
        given = [value.name for value in made.graph.input]
        module = nn.load_module_from_file(str(converted), given, results, runtime_manager=manager)

    def run(inputs: Mapping[str, np.ndarray]) -> Any:
        variables = []
        for array in inputs.values():
            variables.append(expr.placeholder(list(array.shape), expr.NCHW, expr.float))
            variables[-1].write(array)
        return module.forward(variables)[0].read()

    return run


CONTESTANTS = {
    'ours': ours, 'onnxruntime': onnxruntime_session, 'openvino': openvino_model,
    'mnn': mnn_model,
}  # fmt: skip


def serve(who: str, name: str, path: Path, threads: int) -> None:
    """A contestant: reads how many milliseconds to run for, and writes what every call took; the
    first line that it writes is its answer.
    """
    said = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # libraries that greet people do so elsewhere
    inputs = zoo.inputs(zoo.network(name))
    run = CONTESTANTS[who](path, threads)
    if run is None:
        print('null', file=said, flush=True)
        return
    print(json.dumps(np.asarray(run(inputs)).ravel().tolist()), file=said, flush=True)
    for line in sys.stdin:
        run(inputs)
        times, end = [], time.perf_counter() + 1e-3 * float(line)
        while time.perf_counter() < end:
            begin = time.perf_counter()
            run(inputs)
            times.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps(times), file=said, flush=True)


class Contestant:
    """The process of a contestant, which stands still unless it is asked."""

    def __init__(self, who: str, name: str, path: Path, threads: int) -> None:
        command = [
            sys.executable, '-m', 'tilewright_lab.scripts.integer_networks', name, '--serve', who,
            '--models', str(path.parent), '--threads', str(threads),
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.samples: list[float] = []
        self.answer = self._reply()
        self.process.send_signal(signal.SIGSTOP)

    def _reply(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or 'null')

    def turn(self, ms: float) -> None:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f'{ms}\n')
        self.process.stdin.flush()
        self.samples.append(statistics.median(self._reply()))
        self.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def compared(name: str, path: Path, threads: int, rounds: int, turn_ms: float) -> dict:
    """One network: units that differ, medians and samples of every contestant."""
    found = {who: Contestant(who, name, path, threads) for who in CONTESTANTS}
    runners = {who: one for who, one in found.items() if one.answer is not None}
    for _ in range(rounds):
        for one in runners.values():
            one.turn(turn_ms)
    for one in found.values():
        one.close()
    right = exact_results(path, zoo.inputs(zoo.network(name)))
    units = np.rint((np.array(found['ours'].answer) - np.ravel(right)) / unit(path))
    times = {who: statistics.median(one.samples) for who, one in runners.items()}
    ratios = [
        min(samples[1:]) / samples[0]
        for samples in zip(*(one.samples for one in runners.values()), strict=True)
    ]
    return {
        'network': name, 'threads': threads, 'units': int(abs(units).max()),
        'differ': int(np.count_nonzero(units)), 'results': units.size, 'ms': times,
        'samples_ms': {who: one.samples for who, one in runners.items()},
        'best_peer_over_ours': statistics.median(ratios),
    }  # fmt: skip


TITLES = {'ours': 'ours', 'onnxruntime': 'ONNX Runtime', 'openvino': 'OpenVINO', 'mnn': 'MNN'}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds of each network, the fastest other over ours, and how many results differ."""
    who = [name for name in TITLES if any(name in row['ms'] for row in rows)]
    head = ('network', *(f'{TITLES[name]} ms' for name in who), 'best peer / ours', 'differ')
    lines = [
        (
            row['network'],
            *(f'{row["ms"][name]:.2f}' if name in row['ms'] else '-' for name in who),
            f'{row["best_peer_over_ours"]:.2f}', f'{row["differ"]} of {row["results"]}',
        )
        for row in rows
    ]  # fmt: skip
    mean = statistics.geometric_mean(row['best_peer_over_ours'] for row in rows)
    lines.append(('geometric mean', *['' for _ in who], f'{mean:.2f}', ''))
    return Grid(head, tuple(lines)).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('networks', nargs='+')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--turn-ms', type=float, default=100.0)
    parser.add_argument('--models', type=Path)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--serve', choices=CONTESTANTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, rows = chosen.models or Path(made), []
        for name in chosen.networks:
            path = folder / f'{name}.onnx'
            if chosen.serve:
                serve(chosen.serve, name, path, chosen.threads)
                return
            if not path.exists():
                quantise(name, path)
            row = compared(name, path, chosen.threads, chosen.rounds, chosen.turn_ms)
            rows.append(row)
            said = ', '.join(f'{who} {ms:.2f} ms' for who, ms in row['ms'].items())
            print(f'{name}: {row["units"]} units at most, {row["differ"]} of {row["results"]} '
                  f'results differ; {said}; best peer / ours {row["best_peer_over_ours"]:.2f}',
                  flush=True)  # fmt: skip
            if chosen.json:
                chosen.json.write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    main()
