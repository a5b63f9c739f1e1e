"""The importer: what it makes of good files, and one sentence for every bad one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, external_data_helper, helper, numpy_helper

from tilewright.errors import ModelError
from tilewright.importers.onnx import import_onnx

FLOAT = TensorProto.FLOAT


KINDS = [
    np.float32, np.float64, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32,
    np.uint16, np.uint8, np.bool_,
]  # fmt: skip


def model(
    nodes: list,
    inputs: dict | None = None,
    outputs: tuple[str, ...] = ('y',),
    tensors: dict | None = None,
    opset: int = 21,
    kind: int = FLOAT,
) -> ModelProto:
    given = {'x': (2, 3)} if inputs is None else inputs
    graph = helper.make_graph(
        nodes,
        'test',
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in given.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=9)


def relu(source: str = 'x', target: str = 'y', **attributes: object):
    return helper.make_node('Relu', [source], [target], **attributes)


def refused(given: object, part: str, **options: object) -> None:
    with pytest.raises(ModelError, match=part) as caught:
        import_onnx(given, **options)  # pyright: ignore
    text = str(caught.value)
    assert '\n' not in text
    assert text[-1] != '.'


def test_a_model_by_path_bytes_and_message(tmp_path: Path) -> None:
    made = model([relu()])
    path = tmp_path / 'm.onnx'
    path.write_bytes(made.SerializeToString())
    for given in (made, made.SerializeToString(), path, str(path)):
        graph = import_onnx(given)
        assert [v.name for v in graph.inputs] == ['x']
        assert graph.inputs[0].shape == (2, 3)
        assert graph.outputs == (('y', 'y'),)
        assert [node.op for node in graph.nodes] == ['Relu']


def test_constants_come_from_initialisers_and_nodes() -> None:
    node = helper.make_node('Constant', [], ['k'], value_ints=[1, 2])
    graph = import_onnx(model([node, relu()], tensors={'w': np.ones((2, 2), np.float16)}))
    assert graph.constants['k'].tolist() == [1, 2]
    assert graph.constants['k'].dtype == np.int64
    assert graph.constants['w'].dtype == np.float16


@pytest.mark.parametrize('kind', KINDS)
def test_tensors_of_every_type_raw_and_in_fields(kind: type) -> None:
    array = np.array([[0, 1, 2], [3, 100, 127]]).astype(kind)
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    raw = numpy_helper.from_array(array, 'w')
    fields = helper.make_tensor('w', number, array.shape, array.ravel().tolist())
    for tensor in (raw, fields):
        made = model([relu()])
        made.graph.initializer.append(tensor)
        found = import_onnx(made).constants['w']
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_nodes_out_of_order_are_sorted() -> None:
    graph = import_onnx(model([relu('a', 'y'), relu('x', 'a')]))
    assert [node.outputs[0] for node in graph.nodes] == ['a', 'y']


def test_nodes_without_names_get_some_and_names_are_unique() -> None:
    graph = import_onnx(model([relu('x', 'a', name='r'), relu('a', 'b', name='r'), relu('b', 'y')]))
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == 3
    assert names[2] == 'y'


def test_open_sizes_are_fixed_by_shapes() -> None:
    made = model([relu()], {'x': ('N', 3, None), 'z': ('N', 1)})
    graph = import_onnx(made, shapes={'x': (4, 3, 5)})
    assert [v.shape for v in graph.inputs] == [(4, 3, 5), (4, 1)]
    refused(made, r"shape \[N, 3, \?\], which is open; fix it with shapes=\{'x'")
    refused(made, r'shape \[4, 3, \?\]; shapes gives it as \[4, 2, 5\]', shapes={'x': (4, 2, 5)})
    refused(made, "no input 'w', which shapes names; its inputs are 'x', 'z'", shapes={'w': (1,)})
    refused(made, 'give whole numbers', shapes={'x': ('a', 3, 5)})


def test_sizes_that_are_given_override_names() -> None:
    made = model([relu()], {'x': ('?', 3, '?'), 'z': ('?', 1)})
    given = {'x': (4, 3, 5), 'z': (6, 1)}
    with pytest.warns(UserWarning, match=r"calls several sizes '\?', .* as 4 and as 5 and as 6"):
        graph = import_onnx(made, shapes=given)
    assert {v.name: v.shape for v in graph.inputs} == given


def test_a_batch_that_is_free_is_one() -> None:
    for batch in ('N', None):
        made = model([relu()], {'x': (batch, 3, 5), 'z': (batch, 1)})
        assert [v.shape for v in import_onnx(made).inputs] == [(1, 3, 5), (1, 1)]
    made = model([relu()], {'x': ('N', 3, 5), 'z': ('N', 1)})
    graph = import_onnx(made, shapes={'z': (7, 1)})
    assert [v.shape for v in graph.inputs] == [(7, 3, 5), (7, 1)]
    for shape in (('N',), ('N', 3, 'N'), ('N', 'M')):
        refused(model([relu()], {'x': shape}), 'which is open')


def test_a_shape_that_is_missing_altogether() -> None:
    made = model([relu()])
    made.graph.input[0].type.tensor_type.ClearField('shape')
    assert import_onnx(made, shapes={'x': (7,)}).inputs[0].shape == (7,)
    refused(made, 'which is open')


def test_inputs_can_be_fixed() -> None:
    made = model([helper.make_node('Reshape', ['x', 's'], ['y'])], {'x': (2, 3)})
    made.graph.input.append(helper.make_tensor_value_info('s', TensorProto.INT64, (1,)))
    graph = import_onnx(made, constants={'s': np.array([6])})
    assert [v.name for v in graph.inputs] == ['x']
    assert graph.constants['s'].tolist() == [6]
    refused(made, 'constants gives it as float64', constants={'s': np.array([6.0])})


@pytest.mark.parametrize(
    ('made', 'part'),
    [
        (b'', 'holds no graph'),
        (b'\x00garbage', 'is no ONNX file'),
        (model([relu()]).SerializeToString()[:-3], 'cut off or damaged'),
        (model([relu('nowhere')]), "reads 'nowhere', which no node"),
        (model([relu('y', 'a'), relu('a', 'y')]), 'wait for each other in a cycle'),
        (model([relu(), relu()]), "writes 'y', which exists already"),
        (model([relu('x', 'x')]), "writes 'x', which exists already"),
        (model([relu()], outputs=()), 'has no output'),
        (model([relu()], outputs=('y', 'y')), 'an output twice'),
        (model([relu()], outputs=('y', 'q')), "output 'q' is computed by no node"),
        (model([relu()], opset=29), 'opset 29; the newest known is 28'),
        (model([helper.make_node('Add', ['x', 'x'], ['y'])], opset=6), 'Add meant something else'),
        (model([relu()], {'x': (2**20, 2**20)}), 'elements; the limit is'),
        (model([relu()], {'x': (0, 2**62)}), 'the limit is'),
        (model([relu()], {'x': (1,) * 17}), '17 dimensions; the limit is 16'),
        (model([relu()], kind=TensorProto.BFLOAT16), 'elements of type bfloat16'),
        (model([relu()], kind=TensorProto.STRING), 'elements of type string'),
        (model([helper.make_node('A\nB', ['x'], ['y'])]), 'damaged'),
        (model([helper.make_node('', ['x'], ['y'])]), 'that gives nothing'),
        (model([helper.make_node('Constant', [], ['y'], value_string='a')]), 'not a dense tensor'),
    ],
)  # fmt: skip
def test_bad_models_are_one_sentence(made: object, part: str) -> None:
    refused(made, part)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refused(tmp_path / 'none.onnx', 'none.onnx cannot be read: No such file')
    refused(tmp_path, 'cannot be read')


def test_a_device_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    """A device may give bytes without end, and a pipe may never give one."""
    refused('/dev/zero', 'is not a plain file')
    os.mkfifo(tmp_path / 'pipe.onnx')
    refused(tmp_path / 'pipe.onnx', 'is not a plain file')


@pytest.mark.parametrize('given', [[(2, 3)], 'x=2,3', {'x': 2}, {'x': '2,3'}, {'x': (2, 0.5)}])
def test_shapes_that_cannot_be_read(given: object) -> None:
    refused(model([relu()]), '^shapes ', shapes=given)


def test_names_with_several_lines_are_quoted() -> None:
    made = model([relu('a\nb')], {'a\nb': (3, 'N')})
    refused(made, r"shapes=\{'a\\nb': \(..\)\}")


def test_attributes_beyond_what_numbers_hold() -> None:
    """Before opset 13 axes were attributes; files may say anything there."""
    squeeze = helper.make_node('Squeeze', ['x'], ['y'], name='n', axes=1e30)
    refused(model([squeeze], opset=11), "Squeeze 'n' has axes .*e.30, which is no int64")
    texts = helper.make_node('Constant', [], ['k'], value_floats=['a', 'b'])
    refused(model([texts, relu()]), "constant 'k', which is not a dense tensor of numbers")


def test_sparse_weights_and_other_types_are_refused() -> None:
    made = model([relu()])
    values = numpy_helper.from_array(np.ones(1, np.float32), 'w')
    indices = numpy_helper.from_array(np.zeros(1, np.int64), 'i')
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    refused(made, 'sparse weights')
    listed = model([relu()])
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    listed.graph.input[0].type.CopyFrom(kind)
    refused(listed, 'is of type sequence; only tensors')


def test_weights_with_less_data_than_their_shape() -> None:
    for shape in ((2**30, 2**30), (2, 4), (-1, 3)):
        made = model([relu()], tensors={'w': np.ones((2, 3), np.float32)})
        made.graph.initializer[0].dims[:] = shape
        refused(made, 'elements; the limit|where its shape needs|at least 0')
    made = model([relu()])
    made.graph.initializer.append(helper.make_tensor('w', TensorProto.INT8, (1,), [5]))
    made.graph.initializer[0].int32_data[0] = 300
    refused(made, 'outside the range of i8')


def test_names_that_are_no_text() -> None:
    data = model([relu()], tensors={'weights': np.ones(2, np.float32)}).SerializeToString()
    refused(data.replace(b'weights', b'we\xffghts'), 'not text')


def save_external(folder: Path, location: str = 'data.bin') -> Path:
    """A model whose weights lie in a file beside it."""
    array = np.arange(512, dtype=np.float32)
    made = model([helper.make_node('Add', ['x', 'w'], ['y'])], {'x': (512,)}, tensors={'w': array})
    tensor = made.graph.initializer[0]
    external_data_helper.set_external_data(tensor, location, offset=64, length=2048)
    tensor.ClearField('raw_data')
    (folder / 'data.bin').write_bytes(bytes(64) + array.tobytes())
    (folder / 'm.onnx').write_bytes(made.SerializeToString())
    return folder / 'm.onnx'


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    assert import_onnx(path).constants['w'].tolist() == list(range(512))
    refused(path.read_bytes(), 'give the path of the model file')


@pytest.mark.parametrize(
    ('location', 'part'),
    [
        ('../data.bin', "out of the model's folder"),
        ('a/../../data.bin', "out of the model's folder"),
        ('..\\data.bin', "out of the model's folder"),
        ('/etc/hostname', 'absolute path'),
        ('C:\\data.bin', 'absolute path'),
        ('', 'not a file name'),
        ('missing.bin', 'No such file'),
        ('a' * 5000, 'File name too long'),
        ('a/' * 3000 + 'b', 'File name too long'),
        ('.', 'not a file name|not a plain file'),
    ],
)
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str, part: str) -> None:
    inner = tmp_path / 'model'
    inner.mkdir()
    (tmp_path / 'data.bin').write_bytes(bytes(4096))
    refused(save_external(inner, location), part)


def test_links_and_short_files_are_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    data, elsewhere = tmp_path / 'data.bin', tmp_path / 'elsewhere.bin'
    data.rename(elsewhere)
    data.symlink_to(elsewhere)
    refused(path, 'symbolic link')
    data.unlink()
    os.link(elsewhere, data)
    refused(path, 'hard link')
    data.unlink()
    data.write_bytes(bytes(100))
    refused(path, 'bytes 64 to 2112 of .* which has 100')
    data.unlink()
    data.mkdir()
    refused(path, 'not a plain file|directory')
    data.rmdir()
    os.mkfifo(data)
    refused(path, 'not a plain file')


def test_folders_that_are_links_are_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path, 'sub/data.bin')
    (tmp_path / 'other').mkdir()
    (tmp_path / 'data.bin').rename(tmp_path / 'other' / 'data.bin')
    (tmp_path / 'sub').symlink_to(tmp_path / 'other')
    refused(path, 'symbolic link')


@pytest.mark.parametrize(
    ('key', 'value'), [('offset', '-1'), ('offset', 'x'), ('length', '9' * 30)]
)
def test_offsets_that_are_no_numbers(tmp_path: Path, key: str, value: str) -> None:
    path = save_external(tmp_path)
    made = ModelProto.FromString(path.read_bytes())
    for entry in made.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(made.SerializeToString())
    refused(path, 'must be a whole number')
