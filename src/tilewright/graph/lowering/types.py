"""Limits and element types that importers and lowerings share."""

from __future__ import annotations

from tilewright.ops.convolution import MAX_ELEMENTS as MAX_ELEMENTS

MAX_RANK = 16
# ONNX's number of an element type (TensorProto.DataType) -> dtype of a value.
ELEMENT_TYPES = {
    1: 'f32',
    2: 'u8',
    3: 'i8',
    4: 'u16',
    5: 'i16',
    6: 'i32',
    7: 'i64',
    9: 'bool',
    10: 'f16',
    11: 'f64',
    12: 'u32',
    13: 'u64',
}
