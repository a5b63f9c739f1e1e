"""Damaged ONNX models, for tests of the importer: bytes flipped and cut, fields set to nonsense.

    python tests/property/onnx_mutants.py 600          for so many seconds, from a seed of the clock
    python tests/property/onnx_mutants.py 600 SEED     from this one

Every mutant has to end in a program or in one `ModelError`, within seconds and without gigabytes.
A program has gone through every pass of `tilewright.compile`, and its memory plan is proved.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from tilewright.errors import ModelError
from tilewright.graph.lower import lower
from tilewright.graph.memory import plan
from tilewright.graph.memory_proof import prove_memory
from tilewright.importers.onnx import import_onnx
from tilewright.network.compile import prepare

SECONDS, BYTES = 20, 6 * 2**30
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**40, 2**62, -(2**62), 2**63 - 1)


def _model(nodes: list, inputs: dict, outputs: list[str], tensors: dict, opset: int) -> bytes:
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        'mutant',
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in tensors.items() if a.dtype in kinds],
    )
    opsets = [helper.make_opsetid('', opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


@cache
def seeds() -> tuple[bytes, ...]:
    """Small models that between them have every kind of node, attribute and tensor."""
    rng = np.random.default_rng(0)

    def noise(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def whole(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    node = helper.make_node
    image = [
        node('Conv', ['x', 'w', 'b'], ['c'], pads=[1, 1, 1, 1], strides=[2, 2], name='conv'),
        node('BatchNormalization', ['c', 's', 's', 's', 's'], ['n'], epsilon=1e-3),
        node('Relu', ['n'], ['r']),
        node('MaxPool', ['r'], ['p', 'i'], kernel_shape=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]),
        node('AveragePool', ['r'], ['q'], kernel_shape=[2, 2], auto_pad='SAME_UPPER'),
        node('ConvTranspose', ['q', 'w2'], ['t'], strides=[2, 2], output_padding=[1, 1]),
        node('Resize', ['t', '', 'scales'], ['u'], mode='linear'),
        node('Concat', ['p', 'p'], ['k'], axis=1),
        node('GlobalAveragePool', ['k'], ['g']),
        node('Flatten', ['g'], ['f']),
        node('Gemm', ['f', 'm', 'v'], ['y'], transB=1, alpha=0.5),
        node('Softmax', ['y'], ['z'], axis=-1),
        node('LRN', ['r'], ['l'], size=3),
    ]
    tensors = {
        'w': noise(4, 3, 3, 3), 'b': noise(4), 's': np.abs(noise(4)), 'w2': noise(4, 2, 3, 3),
        'scales': np.array([1, 1, 2, 1.5], np.float32), 'm': noise(5, 8), 'v': noise(5),
    }  # fmt: skip
    first = _model(image, {'x': (1, 3, 12, 12)}, ['z', 'u', 'l'], tensors, 17)
    moving = [
        node('Shape', ['x'], ['s']),
        node('Gather', ['s', 'two'], ['h']),
        node('Concat', ['h', 'minus'], ['to'], axis=0),
        node('Reshape', ['x', 'to'], ['r']),
        node('Transpose', ['x'], ['t'], perm=[0, 2, 3, 1]),
        node('Slice', ['t', 'starts', 'ends', 'axes', 'steps'], ['c']),
        node('Pad', ['c', 'pads'], ['p'], mode='reflect'),
        node('Split', ['p', 'sizes'], ['a', 'b'], axis=-1),
        node('Unsqueeze', ['a', 'two'], ['u']),
        node('Tile', ['a', 'repeats'], ['e']),
        node('ReduceMean', ['e', 'axes'], ['m'], keepdims=0),
        node('ArgMax', ['r'], ['g'], axis=-1),
        node('CumSum', ['r', 'zero'], ['cs']),
        node('LayerNormalization', ['r', 'scale'], ['ln'], axis=-1),
        node('MatMul', ['r', 'scale'], ['mm']),
        node('Clip', ['mm', '', 'limit'], ['cl']),
        node('Constant', [], ['k'], value=numpy_helper.from_array(noise(1))),
        node('Mul', ['cl', 'k'], ['o1']),
        node('Cast', ['g'], ['o2'], to=1),
        node('DepthToSpace', ['e'], ['o3'], blocksize=1),
        node('Identity', ['ln'], ['o4']),
        node('Identity', ['u'], ['o5']),
    ]
    tensors = {
        'two': whole(2), 'minus': whole(-1), 'starts': whole(0, 5), 'ends': whole(2**62, -100),
        'axes': whole(1, 2), 'steps': whole(1, -1), 'pads': whole(0, 1, 1, 0, 0, 1, 1, 0),
        'sizes': whole(1, 2), 'repeats': whole(1, 2, 1, 3), 'zero': whole(0).reshape(()),
        'scale': noise(18), 'limit': noise().reshape(()),
    }  # fmt: skip
    outputs = ['m', 'cs', 'o1', 'o2', 'o3', 'o4', 'o5', 'b']
    second = _model(moving, {'x': (1, 3, 6, 6)}, outputs, tensors, 20)
    old = [
        node('Softmax', ['x'], ['y'], axis=1),
        node('Squeeze', ['x'], ['q'], axes=[0]),
        node('Upsample', ['x', 'scales'], ['u'], mode='nearest'),
        node('ReduceSum', ['x'], ['r'], axes=[1], keepdims=0),
        node('Clip', ['x'], ['c'], min=0.0, max=6.0),
        node('Sum', ['x', 'x', 'c'], ['o']),
    ]
    third = _model(old, {'x': (1, 4, 5, 5)}, ['y', 'q', 'u', 'r', 'o'],
                   {'scales': np.array([1, 1, 2, 2], np.float32)}, 9)  # fmt: skip
    return first, second, third


def mutants(seed: int) -> Iterator[bytes]:
    """Endless damaged models; the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        data = rng.choice(seeds())
        yield _bytes(data, rng) if rng.random() < 0.4 else _fields(data, rng)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(damaged))
        kind = rng.random()
        if kind < 0.5:
            damaged[at] = rng.randrange(256)
        elif kind < 0.7:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind < 0.85:
            del damaged[at : at + rng.choice((1, 2, 8, 64))]
        else:
            damaged[at:at] = damaged[at : at + rng.choice((1, 4, 32))]
        if len(damaged) < 2:
            break
    return bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.1 else damaged)


def _fields(data: bytes, rng: random.Random) -> bytes:
    model = ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_node, _node, _attribute, _attribute, _attribute, _tensor, _input))(model, rng)
    return model.SerializeToString()


def _number(rng: random.Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randrange(-8, 40)


def _node(model: ModelProto, rng: random.Random) -> None:
    nodes = model.graph.node
    node = rng.choice(nodes)
    names = [name for other in nodes for name in (*other.input, *other.output)]
    kind = rng.randrange(6)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*names, '', 'nowhere'])
    elif kind == 1 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice([*names, '', 'elsewhere'])
    elif kind == 2:
        node.op_type = rng.choice([rng.choice(nodes).op_type, 'Loop', 'Gather', 'Where', 'Nothing'])
    elif kind == 3:
        node.input.append(rng.choice(names))
    elif kind == 4:
        nodes.append(rng.choice(nodes))
    elif node.input:
        del node.input[rng.randrange(len(node.input))]


def _attribute(model: ModelProto, rng: random.Random) -> None:
    found = [a for node in model.graph.node for a in node.attribute]
    if not found:
        return
    attribute = rng.choice(found)
    if attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = _number(rng)
        if rng.random() < 0.3:
            attribute.ints.append(_number(rng))
    elif attribute.type == AttributeProto.INT:
        attribute.i = _number(rng)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b'', b'linear', b'VALID', b'cubic', b'\xff\xfe'))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, 1e30, float('nan'), float('inf')))
    if rng.random() < 0.2:
        attribute.type = rng.randrange(0, 15)
    if rng.random() < 0.1:
        attribute.name = rng.choice(found).name


def _tensor(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    kind = rng.randrange(5)
    if kind == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = _number(rng)
    elif kind == 1:
        tensor.data_type = rng.randrange(0, 30)
    elif kind == 2 and tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) >= 8:
        values = np.frombuffer(tensor.raw_data[:8], np.int64).copy()
        values[0] = _number(rng)
        tensor.raw_data = values.tobytes() + tensor.raw_data[8:]
    elif kind == 3:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    else:
        tensor.name = rng.choice(model.graph.initializer).name


def _input(model: ModelProto, rng: random.Random) -> None:
    info = rng.choice(model.graph.input).type.tensor_type
    if rng.random() < 0.2:
        info.elem_type = rng.randrange(0, 25)
    elif info.shape.dim:
        dim = rng.choice(info.shape.dim)
        if rng.random() < 0.2:
            dim.dim_param = 'N'
        else:
            dim.dim_value = _number(rng)
    if rng.random() < 0.1:
        model.opset_import[0].version = _number(rng) % 40


def survive(data: bytes) -> str:
    """What became of a mutant: 'program', or 'error'; anything else is raised."""
    try:
        graph = import_onnx(data)
        lower(graph)
        program = prepare(graph)
        prove_memory(program, plan(program))
    except ModelError as error:
        if '\n' in str(error):
            raise ValueError(f'an error of several lines: {error}') from error
        return 'error'
    return 'program'


def too_long(*_: object) -> None:
    raise TimeoutError(f'a mutant took more than {SECONDS} s')


def main(seconds: float, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.signal(signal.SIGPROF, too_long)  # by processor time, whatever else the machine does
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))  # ends with the figures
    print(f'seed {seed}', flush=True)
    counts, begin, slowest = Counter(), time.process_time(), 0.0
    for number, data in enumerate(mutants(seed)):
        if ended or time.process_time() - begin > seconds:
            break
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        start = time.process_time()
        try:
            counts[survive(data)] += 1
        except BaseException:
            print(f'mutant {number} of seed {seed}')
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - start)
    spent = time.process_time() - begin
    print(
        f'{counts.total()} mutants in {spent:.0f} s of processor time: {dict(counts)}, '
        f'slowest {slowest:.2f} s'
    )


if __name__ == '__main__':
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()))
