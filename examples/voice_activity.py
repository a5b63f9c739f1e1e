"""Voice activity while sound comes in: chunks of 32 ms, the state of an LSTM carried between calls.

    python examples/voice_activity.py [--model silero_vad.onnx] [--seconds 10]

Without --model: the file of the package silero-vad where it is installed, else a network of its
shape with random weights. Every chunk also goes through ONNX Runtime, with a state of its own.
"""

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

RATE, CHUNK, CONTEXT, UNITS = 16_000, 512, 64, 128
WINDOW, BANDS = 256, 129
# Encoder: channels in and out, and stride, of convolutions over three frames.
LAYERS = ((BANDS, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))


def random_network() -> onnx.ModelProto:
    """Spectrum of a chunk, four convolutions, one step of an LSTM, one score."""
    random = np.random.default_rng(0)
    nodes, weights = [], {}

    def weight(name: str, *shape: int) -> str:
        scale = np.prod(shape[1:]) ** -0.5
        weights[name] = (scale * random.standard_normal(shape)).astype(np.float32)
        return name

    def node(op: str, inputs: str, output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs.split(), output.split(), **attributes))
        return output.split()[0]

    turns = 2 * np.pi * np.outer(np.arange(BANDS), np.arange(WINDOW)) / WINDOW
    hann = np.hanning(WINDOW)
    waves = np.concatenate([np.cos(turns) * hann, np.sin(turns) * hann])
    weights['waves'] = waves[:, None].astype(np.float32)
    weights |= {'one': np.array([1]), 'zero': np.array([0]), 'two': np.float32(2)}
    weights |= {'pads': np.array([0, 0, 0, CONTEXT]), 'split': np.array([BANDS, BANDS])}
    node('Pad', 'input pads', 'padded', mode='reflect')
    node('Unsqueeze', 'padded one', 'sound')
    node('Conv', 'sound waves', 'spectrum', strides=[WINDOW // 2])
    node('Split', 'spectrum split', 'real imaginary', axis=1)
    node('Pow', 'real two', 'real2')
    node('Pow', 'imaginary two', 'imaginary2')
    node('Add', 'real2 imaginary2', 'power')
    x = node('Sqrt', 'power', 'magnitude')
    for n, (inside, outside, stride) in enumerate(LAYERS):
        names = f'{x} {weight(f"w{n}", outside, inside, 3)} {weight(f"b{n}", outside)}'
        node('Conv', names, f'conv{n}', strides=[stride], pads=[1, 1])
        x = node('Relu', f'conv{n}', f'relu{n}')
    node('Transpose', x, 'steps', perm=[2, 0, 1])
    node('Split', 'state', 'h c', axis=0)
    for name, columns in (('W', UNITS), ('R', UNITS), ('B', 2)):
        weight(name, 1, 4 * UNITS, columns)
    weights['B'] = weights['B'].reshape(1, -1)
    nodes.append(helper.make_node('LSTM', ['steps', 'W', 'R', 'B', '', 'h', 'c'],
                                  ['y', 'hn', 'cn'], hidden_size=UNITS))  # fmt: skip
    node('Concat', 'hn cn', 'stateN', axis=0)
    node('Squeeze', 'hn zero', 'last')
    node('Relu', 'last', 'seen')
    weight('head', UNITS, 1)
    node('MatMul', 'seen head', 'score')
    node('Sigmoid', 'score', 'output')
    graph = helper.make_graph(
        nodes, 'voice_activity',
        [helper.make_tensor_value_info('input', TensorProto.FLOAT, (1, CHUNK + CONTEXT)),
         helper.make_tensor_value_info('state', TensorProto.FLOAT, (2, 1, UNITS))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, (1, 1)),
         helper.make_tensor_value_info('stateN', TensorProto.FLOAT, (2, 1, UNITS))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 15)], ir_version=8)


def sound(seconds: float) -> np.ndarray:
    """Noise, and from every second to the next half a buzz with the pitch of a voice."""
    random = np.random.default_rng(1)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 2 * np.pi * (120 * t + 3 * np.sin(2 * np.pi * 4 * t))
    buzz = sum(np.sin(n * pitch) / n for n in range(1, 20))
    return (0.01 * random.standard_normal(t.size) + 0.1 * buzz * (t % 1 < 0.5)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    package = importlib.util.find_spec('silero_vad')
    parser.add_argument('--model', type=Path)
    parser.add_argument('--seconds', type=float, default=10)
    options = parser.parse_args()
    path = options.model
    if path is None and package is not None and package.origin is not None:
        path = Path(package.origin).parent / 'data' / 'silero_vad.onnx'
    model = onnx.load(path) if path is not None else random_network()
    print(f'{path or "random weights"}, {options.seconds:g} s of sound in chunks of {CHUNK}')

    # What decides branches of the file is constant here; the rest comes with every call.
    rate = {'sr': np.array(RATE)} if 'sr' in [i.name for i in model.graph.input] else {}
    shapes = {'input': (1, CHUNK + CONTEXT), 'state': (2, 1, UNITS)}
    net = tw.compile(model, shapes=shapes, constants=rate, threads=1)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings)

    samples = sound(options.seconds)
    chunk = np.zeros((1, CONTEXT + CHUNK), np.float32)
    ours = theirs = np.zeros((2, 1, UNITS), np.float32)
    times, differences, scores = [], [], []
    for first in range(0, samples.size - CHUNK + 1, CHUNK):
        chunk[0, :CONTEXT] = chunk[0, -CONTEXT:]
        chunk[0, CONTEXT:] = samples[first : first + CHUNK]
        start = time.perf_counter()
        found = net.run({'input': chunk, 'state': ours})
        middle = time.perf_counter()
        score, theirs = session.run(['output', 'stateN'], {'input': chunk, 'state': theirs, **rate})
        times.append((middle - start, time.perf_counter() - middle))
        ours = found['stateN']
        scores.append(found['output'].item())
        differences += [abs(scores[-1] - score.item()), float(np.abs(ours - theirs).max())]
    mine, other = 1e6 * np.median(times, 0)
    print(f'{len(scores)} chunks, scores from {min(scores):.3f} to {max(scores):.3f}')
    print(f'{mine:.0f} us a chunk; ONNX Runtime {other:.0f} us, {other / mine:.2f} times as long')
    print(f'largest difference of scores and states {max(differences):.1e}')


if __name__ == '__main__':
    main()
