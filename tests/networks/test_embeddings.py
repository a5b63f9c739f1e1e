"""Embeddings: PyTorch's bags in every form, indices outside a table, tables that are not copied."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.errors import ArrayError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.limits import index_limits
from tilewright.graph.lower import lower
from tilewright.importers.torch import import_torch
from tilewright.zoo.as_onnx import graph_to_onnx

torch = pytest.importorskip('torch', reason='install the extra tilewright[torch]')
ROWS, COLUMNS = 9, 5
OFFSETS = (None, (0, 3, 3, 5), (0, 2, 7, 9), (0, 0, 9, 9))


def bags(mode: str, offsets: tuple | None, weighted: bool, last: bool, padding: int | None):
    """A module, and inputs for it; no offsets: indices in two dimensions."""
    torch.manual_seed(3)
    layer = torch.nn.EmbeddingBag(
        ROWS, COLUMNS, mode=mode, include_last_offset=last, padding_idx=padding
    ).double()
    indices = torch.randint(0, ROWS, (3, 4) if offsets is None else (9,))
    indices.view(-1)[:3] = 4  # a bag of padding alone
    given = [indices]
    if offsets is not None:
        given.append(torch.tensor([*offsets, 9] if last else offsets))
    elif weighted:
        given.append(None)
    if weighted:
        given.append(torch.randn(indices.shape, dtype=torch.float64))
    return layer.eval(), given


CASES = [
    case
    for case in product(('sum', 'mean', 'max'), OFFSETS, (False, True), (False, True), (None, 4))
    if (case[0] == 'sum' or not case[2]) and (case[1] is not None or not case[3])
]


@pytest.mark.parametrize(
    'case',
    [pytest.param(c, marks=[pytest.mark.slow] * (n % 25 > 0)) for n, c in enumerate(CASES)],
    ids=str,
)
def test_bags_are_what_pytorch_computes(case) -> None:
    """Modes, offsets at the call, weights, padding, empty bags; exactly as PyTorch in float64."""
    layer, given = bags(*case)
    graph = import_torch(layer, example_inputs=given)
    arrays = [tensor.numpy() for tensor in given if tensor is not None]
    named = dict(zip((v.name for v in graph.inputs), arrays, strict=True))
    (got,) = evaluate(lower(graph), named).values()
    np.testing.assert_allclose(got, layer(*given).detach().numpy(), rtol=1e-12, atol=1e-14)


def looked_up(rows: int = 7) -> Graph:
    """Two tables, of which two columns of one input choose rows; the second has fewer."""
    parts = [
        Node('Split', 'parts', ('ids',), ('a', 'b'), {'axis': 1, 'num_outputs': 2}),
        Node('Transpose', 'turned', ('b',), ('c',), {'perm': (1, 0)}),
        Node('Gather', 'first', ('large', 'a'), ('x',), {'axis': 0}),
        Node('Gather', 'second', ('small', 'c'), ('y',), {'axis': 0}),
    ]
    tables = {
        'large': np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
        'small': np.arange(6, dtype=np.float32).reshape(3, 2),
    }
    return Graph(
        'bags', (Value('ids', (4, 2), 'i64'),), (('x', 'x'), ('y', 'y')), tuple(parts), tables
    )


@pytest.mark.parametrize('target', ['cpu', pytest.param('host', marks=pytest.mark.slow)])
def test_an_index_outside_its_table_is_one_sentence(target: str) -> None:
    """Each element is held against the table that it chooses from, through moves."""
    net = tw.compile(looked_up(), target=target, check=False)
    ids = np.array([[6, 2], [0, 0], [-7, -3], [3, 1]])
    x, y = net(ids)
    np.testing.assert_array_equal(x[:, 0], looked_up().constants['large'][ids[:, 0]])
    np.testing.assert_array_equal(y[0], looked_up().constants['small'][ids[:, 1]])
    for place, wrong, rows in (((0, 0), 7, 7), ((3, 1), 3, 3), ((2, 1), -4, 3), ((1, 0), 2**40, 7)):
        bad = ids.copy()
        bad[place] = wrong
        said = rf"bags: input 'ids' is {wrong} at \[{place[0]}, {place[1]}\], which .* {rows} rows"
        with pytest.raises(ArrayError, match=said):
            net(bad)


@pytest.mark.parametrize(('border', 'read'), [(0, (0, 1, 2, 3)), (3, (3,)), (-3, (0,)), (9, ())])
def test_a_border_of_indices_chooses_nothing(border: int, read: tuple[int, ...]) -> None:
    """A lookup by at[j + border]: outside `at` there is padding, not one of its elements."""
    node = Node('Gather', 'look', ('table', 'at'), ('y',), {'axis': 0})
    table = np.ones((7, 2), np.float32)
    program = lower(
        Graph('net', (Value('at', (4,), 'i64'),), (('y', 'y'),), (node,), {'table': table})
    )
    (task,) = program.tasks
    (stage,) = task.group.stages
    moved = [
        replace(a, index=(replace(a.index[0], const=border),)) if a.tensor == 'Indices' else a
        for a in stage.reads
    ]
    group = replace(task.group, stages=(replace(stage, reads=tuple(moved)),))
    limits = index_limits(program.with_tasks((replace(task, group=group),)))
    assert [place for place in range(4) if limits and limits['at'][place] == 7] == [*read]


def test_tables_are_read_where_they_are() -> None:
    """Neither a packed copy nor a copy of the caller's array."""
    graph = looked_up(rows=5000)
    net = tw.compile(graph, check=False)
    assert net.weight_bytes == sum(array.nbytes for array in graph.constants.values())
    assert any(np.shares_memory(kept, graph.constants['large']) for kept in net._kept.values())


LOAD = """
import sys
from pathlib import Path
import numpy as np
import tilewright as tw
from tilewright import zoo

def peak():
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith('VmHWM'))

before = peak()
net = tw.compile(sys.argv[1], threads=1, check=False)
given = zoo.inputs(zoo.network('dlrm', 2, int(sys.argv[2]), width=16))
given['sparse'][:] = 5
np.save(sys.argv[3], net.run(given)['scores'])
print(peak() - before)
"""


def write_dlrm(path: Path, rows: int) -> np.ndarray:
    """A DLRM whose tables lie in a file beside it, zeros but for row 5; comes out: that row."""
    network = zoo.network('dlrm', 2, rows, width=16)
    drawn = replace(network, rows=1).draw_weights()
    table = drawn['table0']
    whole = {
        name: np.broadcast_to(array, (rows, array.shape[1])) if name.startswith('table') else array
        for name, array in drawn.items()
    }
    graph = network.to_graph(whole)
    small = {n: a for n, a in graph.constants.items() if not n.startswith('table')}
    tables = [n for n in graph.constants if n.startswith('table')]
    size = rows * table.nbytes
    types = tuple(Value(n, (rows, table.shape[1])) for n in tables)
    bare = replace(graph, constants=small, inputs=(*graph.inputs, *types))
    model = graph_to_onnx(bare, network.outputs)
    del model.graph.input[len(graph.inputs) :]
    for n, name in enumerate(tables):
        tensor = model.graph.initializer.add(name=name, dims=[rows, table.shape[1]], data_type=1)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (('location', 'tables'), ('offset', n * size), ('length', size)):
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    with (path.parent / 'tables').open('wb') as file:
        file.truncate(size * len(tables))  # holes of zeros take no room on the disk
        for n in range(len(tables)):
            file.seek(n * size + 5 * table.nbytes)
            file.write(table.tobytes())
    return table


def check_loaded(tmp_path: Path, rows: int) -> tuple[int, int]:
    """The bytes that compiling and running a DLRM takes, and those of its tables."""
    table = write_dlrm(tmp_path / 'dlrm.onnx', rows)
    words = [str(tmp_path / 'dlrm.onnx'), str(rows), str(tmp_path / 'y.npy')]
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', LOAD, *words], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    network = zoo.network('dlrm', 2, 6, width=16)
    weights = replace(network, rows=1).draw_weights() | {
        f'table{n}': np.repeat(table, 6, 0) for n in range(26)
    }
    given = network.draw_inputs()
    given['sparse'][:] = 5
    want = evaluate(lower(network.to_graph(weights)), given)['scores']
    np.testing.assert_allclose(np.load(tmp_path / 'y.npy'), want, rtol=1e-5)
    return int(done.stdout), 26 * rows * table.nbytes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='peak memory is read from /proc')
def test_large_tables_are_in_memory_once(tmp_path: Path) -> None:
    """26 tables of a million rows: compiling takes little more memory than the tables have."""
    taken, held = check_loaded(tmp_path, 1_000_000)
    assert held < taken < held + 2**28
