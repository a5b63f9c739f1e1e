"""`tilewright quantize`: a model of floats and samples become a model of 8-bit integers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tilewright.cli.compile import model_of, read_shapes
from tilewright.cli.optimize import check_early
from tilewright.cli.output import Output, check_writable
from tilewright.errors import InputError
from tilewright.precision.quantize import quantize


def run(
    model: Path,
    out: Output,
    *,
    data: Path,
    output: Path,
    ranges: str,
    percentile: float,
    activations: str,
    symmetric: bool,
    per_channel: bool,
    exclude: Sequence[str],
    shapes: Sequence[str],
    threads: int | None,
    seed: int | None,
) -> int:
    """Quantise a model, write it, say what it loses by layer; comes out: the exit code."""
    check_early(None, threads, seed=seed)
    if output.suffix != '.onnx':
        raise InputError(f'--output {output} does not end in .onnx')
    check_writable(output, '--output')
    begin = time.perf_counter()
    made = quantize(
        model_of(str(model), seed), data, save=output, ranges=ranges, percentile=percentile,
        activations=activations, symmetric=symmetric, per_channel=per_channel, exclude=exclude,
        shapes=read_shapes(shapes), threads=threads,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    out.say(str(made))
    out.say(f'wrote {output} ({output.stat().st_size / 2**20:.1f} MiB) in {seconds:.1f} s')
    named = {'model': str(model), 'data': str(data), 'output_file': str(output)}
    out.write({**named, 'seconds': seconds, 'seed': seed, **made.to_json()})
    return 0
