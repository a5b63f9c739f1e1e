"""How PyTorch's own exporter is asked: a module and its inputs as ATen's core operators.

    torch.nn.Module, inputs  --exported-->  torch.export.ExportedProgram  --decomposed-->  the same

Goes in: a module that runs on its inputs. Comes out: an exported program, taken apart but for the
operators of which a node of ours is the whole; where PyTorch cannot follow a module, one sentence
with the line of the user's code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import traceback
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.errors import ModelError
from tilewright.importers import aten_recurrent

# Operators that PyTorch would take apart although a node of ours is the whole of them.
_KEPT = (
    'linear.default', 'upsample_nearest1d.vec', 'upsample_nearest2d.vec', 'upsample_nearest3d.vec',
    'upsample_linear1d.vec', 'upsample_bilinear2d.vec', 'upsample_trilinear3d.vec',
    'upsample_bicubic2d.vec', 'hardsigmoid.default', 'hardswish.default', 'mish.default',
    'pixel_shuffle.default', 'adaptive_avg_pool1d.default', 'matmul.default',
    'scaled_dot_product_attention.default', *aten_recurrent.HANDLERS,
)  # fmt: skip


# PyTorch's tracer has one state for all threads, and what it prints is kept away for all of them.
_EXPORTS = threading.RLock()
# Operators that PyTorch takes apart only where it is asked to.
_TAKEN_APART = ('grid_sampler_2d.default',)


def exported(
    torch: Any, module: Any, inputs: tuple[Any, ...], name: str, training: bool = False
) -> Any:
    before = [m for m in module.modules() if m.training]
    if before or training:  # what `torch.export` made cannot be asked to change
        module.train(training)
    try:
        with _EXPORTS, _quiet(), torch.no_grad(), _without_onednn(torch):
            return decomposed(torch, torch.export.export(module, inputs, strict=False))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(_reason(torch, module, inputs, name, error)) from None
    finally:
        for part in before:
            part.training = True


@contextlib.contextmanager
def _without_onednn(torch: Any) -> Iterator[None]:
    """Last states of recurrent layers by oneDNN had four dimensions in PyTorch 2.11; 2.13 is right.

    Some decompositions ask whether it is enabled, older ones whether it is there.
    """
    before = torch._C._has_mkldnn
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            torch._C._has_mkldnn = False
            yield
    finally:
        torch._C._has_mkldnn = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the pages that PyTorch prints and logs of a graph that it cannot trace."""
    before = logging.root.manager.disable
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter('ignore')
            logging.disable(logging.CRITICAL)
            yield
    finally:
        logging.disable(before)


def _reason(torch: Any, module: Any, inputs: tuple[Any, ...], name: str, error: Exception) -> str:
    """Why a module cannot be traced: it does not run at all, or PyTorch cannot follow it."""
    try:
        with _quiet(), torch.no_grad():
            module(*inputs)
    except Exception as refused:
        said = first_line(refused)
        return f'{name} does not run on the example inputs: {said}{_place(torch, refused)}'
    return f'{name} cannot be traced by torch.export: {first_line(error)}{_place(torch, error)}'


def _place(torch: Any, error: Exception) -> str:
    """The line of the user's code that led to an error, to end a sentence with."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), '<')
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(ours):
            return f' (at {frame.filename}:{frame.lineno}, {frame.line})'
    return ''


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def decomposed(torch: Any, program: Any) -> Any:
    """ATen's core operators, without mutation, and those that are kept."""
    table = torch.export.default_decompositions()
    for name in _KEPT:
        packet, _, overload = name.partition('.')
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    apart = [
        getattr(getattr(torch.ops.aten, packet), overload)
        for packet, _, overload in (name.partition('.') for name in _TAKEN_APART)
    ]
    table.update(import_module('torch._decomp').get_decompositions(apart))
    with _EXPORTS, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return program.run_decompositions(table)
