"""Quantised networks of the zoo: ours against ONNX Runtime and OpenVINO, answers and times.

    python -m tilewright_lab.scripts.integer_networks resnet18 mobilenet_v1 --rounds 5

Goes in: names of networks. Comes out: for each a line with the largest difference to ONNX Runtime
in units of the quantised result, how many results differ, and the median milliseconds of our fp32
and int8, ONNX Runtime's and OpenVINO's int8, run in turns. Models are quantised by ONNX Runtime's
own tool (QDQ, activations u8, weights i8 for each channel, ranges of a few random images).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import zoo

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
    """ONNX Runtime on a model, as a function of its inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    return lambda inputs: session.run(None, dict(inputs))[0]


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
    """Median milliseconds of each; all have a turn in every round.

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('networks', nargs='+')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=5)
    chosen = parser.parse_args()
    for name in chosen.networks:
        with tempfile.TemporaryDirectory() as folder:
            path = quantise(name, Path(folder) / f'{name}.onnx')
            inputs = zoo.inputs(zoo.network(name))
            ours, plain = (tw.compile(m, threads=chosen.threads) for m in (path, name))
            theirs = onnxruntime_session(path, chosen.threads)
            runners = {
                'ours fp32': lambda given, net=plain: net.run(dict(given)),
                'ours int8': lambda given, net=ours: net.run(dict(given)),
                'ONNX Runtime int8': theirs,
            }
            other = openvino_model(path, chosen.threads)
            runners |= {'OpenVINO int8': other} if other else {}
            mine = next(iter(ours.run(dict(inputs)).values()))
            units = np.rint((mine - theirs(inputs)) / unit(path))
            times = in_turns(runners, inputs, chosen.rounds)
            differ = int(np.count_nonzero(units))
            said = ', '.join(f'{who} {ms:.2f} ms' for who, ms in times.items())
            print(f'{name}: {int(abs(units).max())} units at most, {differ} of {units.size} '
                  f'results differ; {said}', flush=True)  # fmt: skip


if __name__ == '__main__':
    main()
