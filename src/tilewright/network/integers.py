"""`precision='int8'` and `'auto'`: the model that is compiled instead of the model of floats.

Goes in: a model of floats, samples, an accuracy, how networks are compiled and priced. Comes out:
a QDQ model, and for 'auto' what chose the type of each layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.check.data import random_inputs
from tilewright.graph.lower import lower
from tilewright.graph.passes import HALF, apply_passes, with_half
from tilewright.importers.onnx import import_onnx
from tilewright.ops.dtypes import PRECISIONS
from tilewright.precision.accuracy import Accuracy
from tilewright.precision.calibrate import QuantizeOptions, calibrate
from tilewright.precision.mix import FEWEST as FEWEST_FOR_MIX
from tilewright.precision.mix import MixSearch, Price, Run
from tilewright.precision.quantize import FEWEST
from tilewright.precision.reference import Floats
from tilewright.precision.samples import Sample, samples_of
from tilewright.runtime.cpu.network import Network
from tilewright.targets.chained import passes_at
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.site import Asked

if TYPE_CHECKING:
    from onnx import ModelProto

RANDOM = 8  # samples that are drawn where none are given
CALLS = 9  # that a task's time is the median of
FLOATS = ('fp16', 'bf16')  # types of layers in a mix, beside fp32 and int8


@dataclass(frozen=True)
class Pricing:
    """Where and how a network will be compiled, and what its tasks take there."""

    site: CpuSite
    asked: Asked
    passes: set[str]
    compiled: Callable[..., Network]

    def prices(self, sample: Sample) -> dict[str, Price]:
        """Type of floats, of those that the machine computes in -> `price`."""
        kinds = [name for name in FLOATS if self.site.machine.computes(PRECISIONS[name])]
        is_near = bool(kinds)
        return {floats: self.price(sample, floats, is_near) for floats in ('fp32', *kinds)}

    def price(self, sample: Sample, floats: str = 'fp32', is_near: bool = False) -> Price:
        """[model] -> (nodes, seconds) of each task: predicted; or measured, where kernels are, and
        where types are so `near` to each other that errors of the models decide between them.
        """

        def predicted(model: ModelProto) -> list[tuple[tuple[str, ...], float]]:
            site_passes, passes = passes_at(self.site, self.asked), set(self.passes)
            if floats != 'fp32':
                site_passes = with_half(site_passes, PRECISIONS[floats], on_cpu=True)
                passes |= {HALF}
            program = apply_passes(import_onnx(model), passes, self.site.cost, site_passes)
            chosen = self.site.choose(program, self.asked)
            return [(t.origin, chosen[t.group.digest][0].predicted_s) for t in program.tasks]

        def measured(model: ModelProto) -> list[tuple[tuple[str, ...], float]]:
            network = self.compiled(model, precision=floats)
            arrays = [sample[value.name] for value in network.inputs]
            found = network.profile(*arrays, calls=CALLS)
            return [(task.origin, 1e-3 * task.time_ms) for task in found.tasks]

        return predicted if self.asked.tune == 'model' and not is_near else measured

    def runner(self, model: ModelProto, floats: str) -> Run:
        network = self.compiled(model, precision=floats)
        return lambda sample: network.run(dict(sample))


def all_in_integers(source: Floats, given: Any) -> ModelProto:
    """[Floats, samples or None] -> [ModelProto]"""
    samples = samples_of(_given(source, given), source.inputs, FEWEST)
    return calibrate(source.model, samples, QuantizeOptions()).quantised()


def in_a_mix(
    source: Floats, given: Any, accuracy: Any, pricing: Pricing
) -> tuple[ModelProto, str, dict[str, Any]]:
    """[Floats, samples, accuracy] -> [ModelProto, its type of floats, the mix as JSON]"""
    wanted = Accuracy.of(accuracy)
    samples = samples_of(_given(source, given), source.inputs, FEWEST_FOR_MIX)
    search = MixSearch.of(
        source, samples, QuantizeOptions(), pricing.prices(samples[0]), pricing.runner
    )
    mix = search.choose(wanted, pricing.runner)
    if not mix.reached:
        warnings.warn(
            f'no mix reaches accuracy {wanted}; the closest that was found has {mix.error}',
            stacklevel=3,
        )
    types = tuple(kind == 'int8' for kind in mix.types.values())
    return search.model(types), mix.floats, mix.to_json()


def _given(source: Floats, given: Any) -> Any:
    """The samples; random ones where there are none."""
    if given is not None:
        return given
    warnings.warn(
        'no samples are given: ranges and errors are those of random inputs', stacklevel=4
    )
    program = lower(import_onnx(source.model))
    return [random_inputs(program, seed) for seed in range(RANDOM)]
