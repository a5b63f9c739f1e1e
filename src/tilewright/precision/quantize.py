"""`tw.quantize`: a model of floats and samples become a model of 8-bit integers, QDQ.

[file, name, module] -> proto      -> [ModelProto]      check.source, zoo
[ModelProto, samples] -> calibrate -> [Calibrated]      precision.calibrate
[Calibrated]          -> quantised -> [ModelProto]      ONNX Runtime's tool
[both, samples]       -> layers    -> [error by layer]  precision.layers
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import InputError
from tilewright.files import path_of, replacing
from tilewright.precision.accuracy import OutputError, output_error
from tilewright.precision.calibrate import Calibrated, QuantizeOptions, calibrate
from tilewright.precision.layers import LayerError, layer_errors, layer_table
from tilewright.precision.reference import Floats
from tilewright.precision.samples import Sample, samples_of

if TYPE_CHECKING:
    from onnx import ModelProto

FEWEST = 2
# Samples that errors are measured on; ranges come of all of them.
MOST_FOR_ERRORS = 8


@dataclass(frozen=True)
class Quantized:
    """What quantising gave: the model, and how far it is from the model of floats.

    samples   how many ranges were measured on
    layers    error by layer
    output    of the results
    """

    model: ModelProto
    options: QuantizeOptions
    samples: int
    layers: tuple[LayerError, ...]
    output: OutputError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an .onnx file, which appears only when it is complete."""
        import onnx

        target = Path(path)
        try:
            with replacing(target) as made:
                onnx.save(self.model, made)
        except OSError as error:
            raise InputError(f'{target} cannot be written: {error.strerror or error}') from None

    def to_json(self) -> dict:
        return {
            'samples': self.samples,
            'ranges': self.options.ranges,
            'activations': self.options.activations,
            'symmetric': self.options.symmetric,
            'per_channel': self.options.per_channel,
            'exclude': list(self.options.exclude),
            'output': self.output.to_json(),
            'layers': [row.to_json() for row in self.layers],
        }

    def __str__(self) -> str:
        return f'{layer_table(self.layers)}\nresults: {self.output}'


def quantize(
    model: Any,
    /,
    samples: Any,
    *,
    save: str | os.PathLike[str] | None = None,
    ranges: str = 'minmax',
    percentile: float = 99.99,
    activations: str = 'u8',
    symmetric: bool = False,
    per_channel: bool = True,
    exclude: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    example_inputs: Sequence[Any] | None = None,
    threads: int | None = None,
) -> Quantized:
    """A model whose convolutions and products compute on 8-bit integers (docs/precision.md).

    model    an .onnx file, its bytes or ModelProto, a network of the zoo, a torch.nn.Module
    samples  inputs as they will occur, at least 2: an array or arrays by name with the samples
             along the first axis, a list of such, an .npz or .npy file, or a folder of these
    save     where to write the .onnx file
    ranges   'minmax': all that was seen; 'percentile': that share of it; 'entropy': what loses the
             least information
    activations  'u8' or 'i8'; weights are i8
    symmetric    zero points of activations are 0, or the middle of u8
    per_channel  a scale for each output channel of weights
    exclude  nodes that stay floats, by name
    shapes, constants, example_inputs  as `tilewright.compile` takes them
    """
    if save is not None and path_of('save', save).suffix != '.onnx':
        raise InputError(f'save={os.fspath(save)!r} does not end in .onnx')
    options = QuantizeOptions(
        ranges, float(percentile), activations, symmetric, per_channel, tuple(exclude)
    )
    source = Floats.of(model, shapes, constants, example_inputs, threads or os.cpu_count() or 1)
    given = samples_of(samples, source.inputs, FEWEST)
    made = quantized_by(source, calibrate(source.model, given, options), given)
    if save is not None:
        made.save(save)
    return made


def quantized_by(source: Floats, calibrated: Calibrated, samples: Sequence[Sample]) -> Quantized:
    """All of a calibrated model in integers, with its errors on some of the samples."""
    made = calibrated.quantised()
    shown = samples[:MOST_FOR_ERRORS]
    output = output_error([source.run(sample) for sample in shown], source.results_of(made, shown))
    rows = layer_errors(calibrated, made, shown, source.threads)
    return Quantized(made, calibrated.options, len(samples), rows, output)
