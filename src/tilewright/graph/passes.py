"""The passes over a network, by name and in their order: over nodes, then over groups.

Goes in: a graph or a program, the names of the passes that are wanted, what they decide by. Comes
out: a program. Targets differ in the passes over groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tilewright.errors import InputError
from tilewright.graph.attention import join_attention
from tilewright.graph.batch_norm import fold_batch_norm
from tilewright.graph.boxes import share
from tilewright.graph.byte_rows import byte_rows
from tilewright.graph.channels_last import filters_last, images_last
from tilewright.graph.combine import combine
from tilewright.graph.concat import concat
from tilewright.graph.dead import drop_dead
from tilewright.graph.fold import fold
from tilewright.graph.fuse import Cost, fuse
from tilewright.graph.graph import Graph
from tilewright.graph.half import halved
from tilewright.graph.half_bytes import quantised_at_once
from tilewright.graph.integer import on_integers
from tilewright.graph.layout import assign_layouts
from tilewright.graph.levels import by_levels
from tilewright.graph.lookups import at_once
from tilewright.graph.lower import lower, remembered, written_out
from tilewright.graph.narrow import narrowed
from tilewright.graph.pool_order import order_pools
from tilewright.graph.program import Program
from tilewright.graph.prologue import put_before
from tilewright.graph.signs import with_sign
from tilewright.graph.simplify import simplify
from tilewright.ops.group import Group

ProgramPasses = Mapping[str, Callable[[Program, Cost], Program]]

NODE_PASSES: dict[str, Callable[[Graph, Cost], Graph]] = {
    'integer': lambda graph, _: on_integers(graph),
    'signs': lambda graph, cost: with_sign(graph, getattr(cost, 'words', '')),
    'fold': lambda graph, _: fold(graph),
    'simplify': lambda graph, _: simplify(graph),
    'batch_norm': lambda graph, _: fold_batch_norm(graph),
    'pool_order': order_pools,
    'combine': combine,
    'dead': lambda graph, _: drop_dead(graph),
}


def unchained(program: Program, _: Cost) -> Program:
    """The program as it is: what 'chain' does where no site says what chains cost.

    A site puts its own pass in this place (targets/chained.py). Values that concatenations place in
    others are not inner tensors, and inner tensors have no layout, so it comes between the two.
    """
    return program


PROGRAM_PASSES: dict[str, Callable[[Program, Cost], Program]] = {
    'attention': lambda program, _: join_attention(program),
    'fuse': fuse,
    'prologue': put_before,
    'channels_last': lambda program, _: images_last(program),
    'concat': lambda program, _: concat(program),
    'chain': unchained,
    'layout': assign_layouts,
}
PASSES = (*NODE_PASSES, *PROGRAM_PASSES)
# On a GPU branches run side by side.
GPU_PASSES: dict[str, Callable[[Program, Cost], Program]] = {
    'attention': lambda program, _: join_attention(program),
    'fuse': lambda program, cost: fuse(by_levels(at_once(program)), cost),
    'prologue': put_before,
    'channels_last': lambda program, _: filters_last(images_last(byte_rows(program))),
    'concat': lambda program, _: concat(program),
    'chain': unchained,
}
# What is joined -> the passes that are left out then.
FUSIONS: dict[str, tuple[str, ...]] = {
    'none': ('attention', 'fuse', 'prologue', 'concat', 'chain'),
    'elementwise': ('chain',),
    'all': (),
}
# On a GPU chains do not pay yet (docs/deepcuts.md).
_DEFAULTS = {'cpu': 'all'}
MOST_AXES = 3  # of rows, one behind the other; images have more
HALF = 'half'  # a pass that only a precision asks for
# What CPUs leave out with it: kernels of f16 take images as they are, channels last, one by one.
_NOT_IN_HALF = ('prologue', 'chain', 'layout')


def with_half(passes: ProgramPasses, dtype: str, on_cpu: bool = False) -> ProgramPasses:
    """Passes of a target with 'half' behind fusion: values are stored as `dtype` from there on. On
    CPUs kernels of halves quantise what integers read, once its layout is known.
    """
    made: dict[str, Callable[[Program, Cost], Program]] = {}
    for name, one in passes.items():
        if not on_cpu or name not in _NOT_IN_HALF:
            made[name] = one
        if name == 'fuse':
            if on_cpu and dtype == 'bf16':
                made[name] = lambda program, cost: fuse(program, _by_bytes(cost))
            made[HALF] = lambda program, _: share(halved(program, dtype, on_cpu))
        if name == 'channels_last' and on_cpu:
            made[name] = lambda program, cost, one=one: quantised_at_once(one(program, cost))
    return made


def _by_bytes(cost: Cost) -> Cost:
    """Groups without images by what they move: behind products in tiles, which wait for memory,
    nothing else counts.
    """

    def price(group: Group) -> float:
        images = any(len(t.shape) > MOST_AXES for t in group.tensors)
        return cost(group) if images else float(group.compulsory_bytes)

    return price


def with_narrow(
    passes: ProgramPasses, dtype: str, why_not: Callable[[Group], str]
) -> ProgramPasses:
    """Passes of a CPU with 'half' at their end: weights of products with few rows are stored as
    `dtype`, where `why_not` has nothing against it.
    """
    return {**passes, HALF: lambda program, _: narrowed(program, dtype, why_not)}


@remembered()
def apply_passes(
    network: Graph | Program, wanted: Collection[str], cost: Cost, program_passes: ProgramPasses
) -> Program:
    """[Graph] or [Program] -> [Program], by the passes that are wanted, in their order."""
    if isinstance(network, Program):
        program = network
    else:
        network = written_out(network)
        for name, node_pass in NODE_PASSES.items():
            if name in wanted:
                network = node_pass(network, cost)
        program = lower(network)
    for name, program_pass in program_passes.items():
        if name in wanted:
            program = program_pass(program, cost)
    return program


def default_fusion(target: str) -> str:
    """What is joined on a target if nobody says."""
    return _DEFAULTS.get(target, 'elementwise')


def passes_of(
    passes: Collection[str] | None, fuse: str | None = None, target: str = 'cpu'
) -> set[str]:
    """The passes that are asked for by their names, or by what is to be joined."""
    if fuse is not None and fuse not in FUSIONS:
        raise InputError(f'fuse is {fuse!r}; choose one of {", ".join(FUSIONS)}')
    if passes is None:
        return set(PASSES) - set(FUSIONS[fuse or default_fusion(target)])
    listed = isinstance(passes, Collection) and not isinstance(passes, str | bytes)
    if not listed or set(passes) - {*PASSES, HALF}:
        raise InputError(f'passes={passes!r}; give a list out of {", ".join(PASSES)}')
    if fuse is not None:
        raise InputError(
            f'fuse={fuse!r} and passes= both say which passes run; give one of them only'
        )
    return set(passes)
