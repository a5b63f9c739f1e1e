"""Some nodes of an ONNX file as a model of their own, in ONNX Runtime.

Goes in: nodes as the file has them, the types of what they read, constants. Comes out: a session
that runs them, and the types of what they give, as far as ONNX Runtime knows them before it runs.
What it gives when it runs is compared with that. onnxruntime is imported here alone, when a network
asks for it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from tilewright.errors import MissingError, ModelError
from tilewright.fallback.subgraphs import operators, ready
from tilewright.graph.graph import Value

# Sums of u8 times i8 as the standard defines them: without this setting, x86 processors that lack
# dot products of bytes add pairs of them up in 16 bits, which saturate.
EXACT_INTEGERS = ('session.x64quantprecision', '1')

# What ONNX Runtime calls our dtypes, and the others that values may have between its own nodes.
_NAMES = {
    'f32': 'float',
    'f64': 'double',
    'f16': 'float16',
    'i64': 'int64',
    'i32': 'int32',
    'i16': 'int16',
    'i8': 'int8',
    'u64': 'uint64',
    'u32': 'uint32',
    'u16': 'uint16',
    'u8': 'uint8',
    'bool': 'bool',
}
_DTYPES = {f'tensor({name})': dtype for dtype, name in _NAMES.items()}
_LEAST_IR = 4  # since which constants need not be inputs
_MOST_IR = 10  # later ones add element types and devices, which do not occur here


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value: `tensor(float)` and such; sizes, None where they are open.

    `sizes` is None where not even their number is known.
    """

    text: str
    sizes: tuple[int | None, ...] | None

    @classmethod
    def of(cls, value: Value) -> Kind:
        return cls(f'tensor({_NAMES[value.dtype]})', value.shape)

    def value(self, name: str) -> Value | None:
        """The value that kernels of ours can read; None where its type or shape is open."""
        if self.text not in _DTYPES or self.sizes is None:
            return None
        sizes = tuple(size for size in self.sizes if size is not None)
        return Value(name, sizes, _DTYPES[self.text]) if len(sizes) == len(self.sizes) else None

    def proto(self) -> TypeProto:
        return _type_proto(self.text, self.sizes)

    @property
    def is_tensor(self) -> bool:
        return self.text.startswith('tensor(')

    def holds(self, shape: tuple[int, ...]) -> bool:
        """An array of this shape is one of these."""
        return self.sizes is None or (
            len(shape) == len(self.sizes)
            and all(want in (None, size) for want, size in zip(self.sizes, shape, strict=True))
        )


def _type_proto(text: str, sizes: tuple[int | None, ...] | None) -> TypeProto:
    match = re.fullmatch(r'(\w+)\((.*)\)', text)
    if match is None:
        raise ModelError(f'values of type {text!r} cannot be handed to ONNX Runtime')
    outer, inner = match.groups()
    if outer == 'tensor':
        return helper.make_tensor_type_proto(TensorProto.DataType.Value(inner.upper()), sizes)
    if outer == 'seq':
        return helper.make_sequence_type_proto(_type_proto(inner, None))
    return helper.make_optional_type_proto(_type_proto(inner, None))


class Session:
    """Nodes of a file, ready to run: by name in, by name out."""

    def __init__(
        self,
        model: ModelProto,
        threads: int,
        what: str,
        expected: Mapping[str, Kind] | None = None,
    ) -> None:
        """`what` names the nodes in messages; `expected` is what others rely on of the results."""
        runtime = _onnxruntime()
        self.what, self.model, self._expected = what, model, dict(expected or {})
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # what goes wrong is said by the error
        options.add_session_config_entry(*EXACT_INTEGERS)
        # Its idle threads would take cores from ours.
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        try:
            self._session = _session(runtime, model, options)
        except Exception as error:  # of kinds that onnxruntime keeps to itself
            raise ModelError(f'ONNX Runtime cannot run {what} either: {_said(error)}') from None
        self.reads = tuple(value.name for value in model.graph.input)
        self.gives = tuple(value.name for value in model.graph.output)

    def kinds(self) -> dict[str, Kind]:
        """What is known of the results."""
        return {out.name: Kind(out.type, self._sizes(out)) for out in self._session.get_outputs()}

    def _sizes(self, out: Any) -> tuple[int | None, ...] | None:
        if out.shape:
            return tuple(size if isinstance(size, int) else None for size in out.shape)
        # No sizes may mean a single number, or that nothing is known.
        inferred = onnx.shape_inference.infer_shapes(self.model)
        for value in inferred.graph.output:
            if value.name == out.name and value.type.tensor_type.HasField('shape'):
                return None if value.type.tensor_type.shape.dim else ()
        return None

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        try:
            results = self._session.run(self.gives, {name: arrays[name] for name in self.reads})
        except Exception as error:  # of kinds that onnxruntime keeps to itself
            raise ModelError(f'ONNX Runtime failed at {self.what}: {_said(error)}') from None
        given = dict(zip(self.gives, results, strict=True))
        for name, kind in self._expected.items():
            array = given[name]
            if isinstance(array, np.ndarray) and not kind.holds(array.shape):
                raise ModelError(
                    f'ONNX Runtime gives {name!r} of {self.what} with shape {list(array.shape)}, '
                    f'where it had inferred {_shown(kind.sizes)}: the model contradicts itself; '
                    f'run it in ONNX Runtime alone'
                )
        return given


def _session(runtime: Any, model: ModelProto, options: Any) -> Any:
    """A session of the model. Where ONNX Runtime refuses it, others that compute the same are
    tried; comes out, or is raised, what it says of the first that it takes, or of the first.

    - Without folding of constants: an If whose condition is constant becomes the branch it takes,
      and checks that were put off until it ran then fail, though it would run.
    - With constants of 8 bits that are not shared: what makes sums exact fails on a zero point that
      several nodes read.
    - In an older opset, where the file's is too new for it.
    """

    def attempt(tried: ModelProto, disabled: list[str]) -> Any:
        return runtime.InferenceSession(
            tried.SerializeToString(), options, providers=['CPUExecutionProvider'],
            disabled_optimizers=disabled,
        )  # fmt: skip

    try:
        return attempt(model, [])
    except Exception:
        older = _in_older_opset(model)
        for tried in (model, older):
            with suppress(Exception):
                if tried is not None:
                    return attempt(tried, ['ConstantFolding'])
        with suppress(Exception):
            return attempt(_unshared(model), [])
        raise


def _unshared(model: ModelProto) -> ModelProto:
    """The model, where every reader of a constant of 8 bits has one of its own."""
    made, seen = copy.deepcopy(model), set()
    small = (TensorProto.INT8, TensorProto.UINT8)
    kept = {t.name: t for t in made.graph.initializer if t.data_type in small}
    names = {name for node in made.graph.node for name in (*node.input, *node.output)}
    for number, node in enumerate(made.graph.node):
        for at, name in enumerate(node.input):
            if name in kept and name in seen:
                own = f'{name}/{number}/{at}'
                while own in names:
                    own += '/'
                added = made.graph.initializer.add()
                added.CopyFrom(kept[name])
                added.name = node.input[at] = own
            seen.add(name)
    return made


def _in_older_opset(model: ModelProto) -> ModelProto | None:
    """None where it is as old as it can be, or where functions have opsets of their own."""
    if model.functions:
        return None
    ours = ('', 'ai.onnx')
    now = max((entry.version for entry in model.opset_import if entry.domain in ours), default=0)
    try:
        needed = max(
            (
                onnx.defs.get_schema(op, max_inclusive_version=now).since_version
                for domain, op in operators(model.graph.node)
                if domain in ours
            ),
            default=now,
        )
    except onnx.defs.SchemaError:
        return None
    if needed >= now:
        return None
    made = ModelProto()
    made.CopyFrom(model)
    for entry in made.opset_import:
        if entry.domain in ours:
            entry.version = needed
    return made


def _shown(sizes: tuple[int | None, ...] | None) -> str:
    if sizes is None:
        return 'any'
    return f'[{", ".join("?" if size is None else str(size) for size in sizes)}]'


def sub_model(
    source: ModelProto,
    nodes: Sequence[NodeProto],
    reads: Mapping[str, Kind],
    constants: Mapping[str, np.ndarray],
    gives: Sequence[str],
    folder: Path | None = None,
) -> ModelProto:
    """The nodes as a model that reads and gives these values; external data lies in `folder`."""
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    taken |= {*reads, *constants, *gives}
    graph = helper.make_graph(
        ready(nodes, taken, folder),
        'fallback',
        [helper.make_value_info(name, kind.proto()) for name, kind in reads.items()],
        [onnx.ValueInfoProto(name=name) for name in gives],
        [numpy_helper.from_array(np.array(a), name) for name, a in constants.items()],
    )
    made = ModelProto(
        ir_version=min(max(source.ir_version, _LEAST_IR), _MOST_IR),
        producer_name='tilewright',
        graph=graph,
    )
    made.opset_import.extend(source.opset_import)
    made.functions.extend(source.functions)
    return made


def _onnxruntime() -> Any:
    try:
        return import_module('onnxruntime')
    except ImportError:
        raise MissingError(
            "fallback='onnxruntime' needs onnxruntime, which is not installed; "
            "pip install 'tilewright[bench]' brings it"
        ) from None


def _said(error: Exception) -> str:
    """The first line of what onnxruntime says, without its prefixes and the place in its source."""
    text = ' '.join(str(error).split('\n', 1)[0].split())
    text = re.sub(r'^\[ONNXRuntimeError\] : \d+ : \w+ : ', '', text)
    return re.sub(r'/onnxruntime_src/\S+:\d+ .*?\) (?=[A-Z[])', '', text)[:300]
