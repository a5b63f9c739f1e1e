"""The time of an FFT schedule on one machine: Winograd's model with other transforms.

Goes in: a group, a schedule of the fft schema, a machine. Comes out: a `Prediction`. Micro-kernels,
traffic and bounds are those of model/cpu/winograd_time.py; here are the vector instructions of the
transforms, from the programs (ops/fft_programs.py):

    in    a tile of as many channels as there are lanes: transposed, down each column, across each
          row; every value is loaded and stored in each pass
    out   the same back, a vector of output channels at a time, then rows of pixels
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.kernels.cpu.schemas.winograd.plan import transform_lanes
from tilewright.machine.isa import Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.winograd_time import (
    OUT_ROW_CYCLES,
    PIXELS_CYCLES,
    PointsModel,
    predict_points,
)
from tilewright.ops.fft import FftGeometry, geometry
from tilewright.ops.fft_programs import packed, points, results, unpacked
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Set on one core of a Xeon with AVX-512 and 7x7 and 11x11 filters; docs/fft.md has the figures.
VECTOR_CYCLES = 1.0  # one vector instruction: programs are longer than there are registers
LINE_CYCLES = 16.0  # one cache line of V written, or of M read, points being far apart
TRANSPOSED = 1.0  # instructions for each number that is transposed into vectors, in blocks of 4 x 4


@lru_cache(maxsize=65536)
def _input_row(shape: FftGeometry, isa: Isa, _widest: int, columns: int) -> float:
    """The input transform of a row of tiles, for every channel."""
    down, across = shape.down.length, shape.across.length
    lanes = transform_lanes(isa.lanes, shape.c)
    each = across * (packed(down).operations + 2 * down)
    each += 2 * points(across, is_real=True).operations
    each += shape.complex_rows * points(across, is_real=False).operations
    each += down * across * (1 + TRANSPOSED * lanes) + shape.t
    vectors = -(-shape.c // lanes)
    lines = shape.t * vectors * lanes / 16
    return columns * (VECTOR_CYCLES * vectors * each + LINE_CYCLES * lines)


@lru_cache(maxsize=65536)
def _output_row(shape: FftGeometry, isa: Isa, width: int, columns: int, k: int) -> float:
    """The output transform of a row of tiles for k channels, and its rows of pixels."""
    down, across = shape.down, shape.across
    each = 2 * results(across.length, across.m, is_real=True).operations
    each += shape.complex_rows * results(across.length, across.m, is_real=False).operations
    each += across.m * (unpacked(down.length, down.m).operations + 2 * down.length + down.m)
    each += shape.t
    pixels = down.m * across.m * columns * k / 4
    rows = down.m * -(-k // width) * columns
    vectors = -(-k // isa.lanes)
    lines = shape.t * vectors * isa.lanes / 16
    through = columns * (VECTOR_CYCLES * vectors * each + LINE_CYCLES * lines)
    return through + PIXELS_CYCLES * pixels + OUT_ROW_CYCLES * rows


FFT = PointsModel(geometry, _input_row, _output_row)


def predict_fft(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    return predict_points(group, schedule, machine, FFT)
