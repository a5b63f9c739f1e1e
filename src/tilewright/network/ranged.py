"""Networks for ranges of sizes: what compile.py is for one size.

[model, ranges]   -> read, lower at some points -> [ProgramFamily]      graph.family
[ProgramFamily]   -> search at few points       -> [Anchor]             the site, as for one size
[Anchor]          -> compare, search further    -> [Certificate]        targets.cpu.certify
[Anchor]          -> build ahead                -> [SizedKernels]
all of it         ->                            -> [RangedNetwork]      runtime.cpu.ranged
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.check.cause import Subject
from tilewright.check.check import Check, check_network
from tilewright.check.failure import Files
from tilewright.errors import InputError, ModelError
from tilewright.graph.family import ProgramFamily, families
from tilewright.graph.fuse import Cost
from tilewright.graph.graph import Graph
from tilewright.graph.passes import apply_passes
from tilewright.graph.program import Program
from tilewright.graph.ranges import Point, Ranges, count, points
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.network.arguments import is_onnx
from tilewright.ops.group import Group
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.cpu.ranged import KEPT_POINTS, RangedNetwork, SeparateNetworks
from tilewright.schedule.choice import Choice
from tilewright.store.ranges_file import Anchor, Certificate, PlannedFamily, SavedRanges
from tilewright.targets.chained import same_chains
from tilewright.targets.cpu.certify import anchor_like, anchor_of, widest, with_anchors
from tilewright.targets.cpu.choose import is_legal
from tilewright.targets.cpu.kernels import distinct
from tilewright.targets.cpu.ranged import RangedPlans, build_ahead
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.site import Asked
from tilewright.targets.target import Report

Reader = Callable[[Mapping[str, tuple[int, ...]]], Graph]


def refuse_with_ranges(where: str = '', **given: object) -> None:
    """Refuse what ranges of sizes cannot be combined with."""
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise InputError(
            f'{wrong[0]}= cannot be combined with ranges of sizes{where}; leave it out, or give a '
            f'number for each size'
        )


def by_size(read: Reader, ranges: Ranges, one: Callable[[Graph], Network]) -> SeparateNetworks:
    """A network for each size, all of them compiled now: for GPUs, whose kernels know their sizes.

    Equal groups of several sizes are searched once.
    """
    many = count(ranges.box)
    if many > KEPT_POINTS:
        raise InputError(
            f'{ranges} has {many} sizes, and a GPU takes a network for each, at most '
            f'{KEPT_POINTS}; give narrower ranges, or larger steps'
        )
    made = {point: one(read(ranges.at(point))) for point in points(ranges.box)}
    return SeparateNetworks(ranges, made, Certificate(0.0, ranges.largest, many))


def shapes_of(model: Any) -> Mapping[str, tuple[int | range, ...]] | None:
    """The shapes that a model brings along: a PyTorch program that was exported with `Dim`s."""
    if type(model).__module__.partition('.')[0] != 'torch':
        return None
    from tilewright.importers.torch import dim_ranges

    return dim_ranges(model)


def reader_of(
    model: Any, read: Callable[..., Graph], example_inputs: Sequence[Any] | None = None
) -> Reader:
    """What reads a model at given shapes: an ONNX model, a PyTorch module or one of the zoo."""
    if isinstance(model, str) and model in zoo.KNOWN and not os.path.exists(model):
        return partial(_zoo_graph, model, {})
    if isinstance(model, Graph | Program):
        raise InputError(
            f'{type(model).__name__} {model.name!r} has one size for everything; give the model '
            f'that it was read from, or a number for each size'
        )
    if is_onnx(model):
        return partial(read, model)
    from tilewright.importers.torch import at_sizes

    return lambda shapes: read(*at_sizes(model, shapes, example_inputs))


def _zoo_graph(
    name: str, drawn: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> Graph:
    """A network of the zoo at a shape of its input; `drawn` are weights of earlier calls."""
    made = zoo.network(name)
    entry = made.inputs[0].name if isinstance(made, zoo.WrittenNetwork) else zoo.INPUT
    if shapes.keys() != {entry}:
        raise ModelError(f'{name} has the input {entry!r}; shapes gives {", ".join(shapes)}')
    batch, *rest = shapes[entry]
    made = zoo.network(name, batch, rest[-1] if rest else None)
    if isinstance(made, zoo.WrittenNetwork):
        drawn.update(made.draw_weights(0, drawn))
        graph = made.to_graph({w: drawn[w] for w in made.weights})
    else:
        graph = zoo.graph(name, 0, batch, rest[-1] if rest else None)
    have = next(value.shape for value in graph.inputs if value.name == entry)
    if have != shapes[entry]:
        raise ModelError(
            f'{entry!r} of {name} cannot be {list(shapes[entry])}; it would be {list(have)}'
        )
    return graph


def plan_ranges(
    read: Reader,
    ranges: Ranges,
    site: CpuSite,
    asked: Asked,
    passes: Collection[str],
    progress: Report | None = None,
) -> SavedRanges:
    """Programs and schedules for every point of the ranges: what a file holds."""

    costs = _SameCosts(site.cost)
    joining = same_chains(site, asked)

    def lowered(point: Point) -> Program:
        graph = read(ranges.at(point))
        return site.ordered(apply_passes(graph, passes, costs.again(), joining))

    planned = _planned(families(lowered, ranges.box), site, asked, progress)
    return SavedRanges(
        ranges, planned, site.machine, site.threads, asked.max_rel_err, asked.algorithm
    )


class _SameCosts:
    """Costs of the first lowering, told again in the same order to those of other sizes: what
    fusion decides by them is then the same at every size, and programs have one form.
    """

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.told: list[tuple[str, float]] = []
        self.is_first = True

    def again(self) -> Cost:
        """For one more lowering; groups that the first did not ask for have costs of their own."""
        first, self.is_first = self.is_first, False
        left = iter(() if first else tuple(self.told))

        def cost(group: Group) -> float:
            form = re.sub(r'\d+', '', group.label)
            if first:
                self.told.append((form, self.cost(group)))
                return self.told[-1][1]
            known, seconds = next(left, ('', 0.0))
            return seconds if known == form else self.cost(group)

        cost.__dict__['words'] = getattr(self.cost, 'words', '')  # as passes ask for it
        return cost


def _planned(
    found: Sequence[ProgramFamily], site: CpuSite, asked: Asked, progress: Report | None
) -> tuple[PlannedFamily, ...]:
    """Schedules searched at the largest point, and from there wherever the model finds them
    wanting; a family with other groups is searched at its own.
    """
    how = (site.machine, site.threads, asked.max_rel_err)
    made: list[PlannedFamily] = []
    for family in sorted(found, key=lambda family: family.largest, reverse=True):
        near = anchor_like(made[0], family, *how, asked.algorithm) if made else ()
        first = near or _searched(family, family.largest, site, asked, progress)
        made.append(with_anchors(PlannedFamily(family, first), *how))
    return tuple(made)


def _searched(
    family: ProgramFamily, point: Point, site: CpuSite, asked: Asked, progress: Report | None
) -> tuple[Anchor, ...]:
    """Schedules that serve every size and, where others are faster for large ones, these, too."""
    program = family.at(point)
    found = site.choose(program, asked, progress)
    best = {digest: choices[0] for digest, choices in found.items()}
    if asked.tune == 'measure':
        best = site.tune(program, found, asked, progress)
    groups = PlannedFamily(family, ()).groups(program)
    digests = [groups[n].digest for n in range(len(groups))]
    large = {d for d, c in best.items() if SCHEMAS[c.schedule.schema].selective}
    served = _serving(found, {d: g for d, g in distinct(program).items() if d in large})
    if served.keys() != large:
        direct = site.choose(program, asked.by('direct'), progress)
        served = {digest: direct[digest][0] for digest in large} | served
    plain = best | served
    kinds = [plain, best] if large else [plain]
    return tuple(
        anchor_of(family, point, [some[d] for d in digests], site.machine, asked.max_rel_err)
        for some in kinds
    )


def _serving(
    found: Mapping[str, Sequence[Choice]], groups: Mapping[str, Group]
) -> dict[str, Choice]:
    """For each of these groups the best choice that serves every size, if a search left one."""
    return {
        digest: choice
        for digest, group in groups.items()
        for choice in reversed(found[digest])
        if not SCHEMAS[choice.schedule.schema].selective and is_legal(group, choice.schedule)
    }


def ranged_network(
    saved: SavedRanges, site: CpuSite, progress: Report | None = None
) -> RangedNetwork:
    """The network of plans that were made, or that a file held."""
    kernels = build_ahead(saved.families, site.machine, progress)
    pairs = zip(saved.families, kernels.shown, strict=True)
    saved = replace(saved, families=tuple(replace(one, shown=shown) for one, shown in pairs))
    plans = RangedPlans(saved, kernels, site.machine, site.threads)
    return RangedNetwork(saved.ranges, plans.bound, certificate_of(saved), plans)


def certificate_of(saved: SavedRanges) -> Certificate:
    return widest(one.certificate for one in saved.families)


def load_ranges(
    path: str | os.PathLike[str],
    saved: SavedRanges,
    threads: int | None,
    wanted_check: Check | None,
    progress: Report | None,
) -> RangedNetwork:
    """The network that a .tw file held; schedules of another machine or number of threads anew."""
    site = CpuSite.for_saved(path, saved, threads)
    if site.is_another(saved) or saved.threads != site.threads:
        asked = Asked(max_rel_err=saved.max_rel_err).by(saved.algorithm)
        found = [one.family for one in saved.families]
        saved = replace(saved, families=_planned(found, site, asked, progress))
    made = ranged_network(saved, site, progress)
    if wanted_check is not None:
        check_ranges(made, saved, wanted_check)
    return made


def check_ranges(network: RangedNetwork, saved: SavedRanges, wanted: Check) -> None:
    """Compare the smallest and the largest size of every family with its program, in float64."""
    for one in saved.families:
        box = one.family.box
        for point in dict.fromkeys((tuple(s[0] for s in box), tuple(s[-1] for s in box))):
            subject = Subject(network.at(*point), one.family.at(point))
            check_network(subject, wanted, Files(None, None))
