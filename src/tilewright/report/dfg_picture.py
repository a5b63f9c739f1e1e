"""The data-flow graph of a thread block, drawn: `tilewright explain SPEC --dfg FILE`.

Goes in: a group and a GPU. Comes out: a picture (.svg, .png, .pdf) or the graph itself (.json,
networkx's node-link form), the same bytes every time. Nodes are those of the `dfg` schema
(kernels/gpu/schemas/dfg/graph.py) and the tensors in memory; an edge says where its value lies:

    register         handed on inside a thread
    shared memory    stored by one thread and loaded by another, with a barrier between; how many
                     bytes that takes is of the schedule that the time model prefers
    memory           tensors of the group, global memory of the device

networkx keeps the graph and its layers, matplotlib draws it; extra `report` has both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilewright.errors import InputError, MissingError, ScheduleError
from tilewright.kernels.gpu.registry import schema_named
from tilewright.kernels.gpu.schemas.dfg.graph import (
    SHARED,
    Apply,
    BlockGraph,
    Combine,
    Load,
    Node,
    Store,
    block_graph,
)
from tilewright.kernels.gpu.schemas.dfg.plan import NAME, plan
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import bytes_text
from tilewright.model.gpu.time import is_priced, predict_gpu
from tilewright.ops.group import Group
from tilewright.report.pictures import canvas, save
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text

PICTURES = ('.svg', '.png', '.pdf')
SUFFIXES = (*PICTURES, '.json')
REGISTER, SHARED_MEMORY, MEMORY = 'register', 'shared memory', 'memory'
# Kind of node -> its colour; storage of an edge -> colour and style.
_NODES = {
    'tensor': '#ffffff', 'load': '#dbe9f6', 'product': '#f7d6b5', 'reduction': '#f5e6a8',
    'element-wise': '#d9ead3', 'store': '#cfd8e8',
}  # fmt: skip
_EDGES = {REGISTER: ('#404040', '-'), SHARED_MEMORY: ('#c0392b', '--'), MEMORY: ('#2e6da4', ':')}
_CELL = 2.6, 0.85  # inches of a node with the space around it
_LONGEST = 96  # letters of a title
# Text stays text, and names of clipping paths do not change from one run to the next.
_STYLE: Any = {'svg.fonttype': 'none', 'svg.hashsalt': NAME}
_UNDATED = {'.svg': {'Date': None}, '.pdf': {'CreationDate': None}}


def check_suffix(path: Path) -> None:
    """Raise InputError for a format that is not known, before any work is done."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f'--dfg {path} ends in {path.suffix or "nothing"}; end it in one of '
            f'{", ".join(SUFFIXES)}'
        )


def write_dfg(
    group: Group, machine: GpuMachine, path: Path, schedule: GpuSchedule | None = None
) -> None:
    """Write the data-flow graph of a group; `schedule`: whose shared memory is shown."""
    check_suffix(path)
    if schedule is None or schedule.schema != NAME:
        schedule = preferred(group, machine)
    graph = dfg_graph(group, schedule)
    if path.suffix == '.json':
        networkx = _networkx()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(networkx.node_link_data(graph, edges='edges'), indent=1))
        except OSError as error:
            raise InputError(f'the graph cannot be written to {path}: {error}') from None
    else:
        _draw(graph, path)


def preferred(group: Group, machine: GpuMachine) -> GpuSchedule | None:
    """The fastest by the model of what the schema proposes; None where it proposes nothing."""
    propose = schema_named(NAME).propose
    found = propose(group, machine) if propose is not None else ()
    priced = [s for s in found if is_priced(group, s, machine)]
    return min(priced, key=lambda s: predict_gpu(group, s, machine).seconds, default=None)


def dfg_graph(group: Group, schedule: GpuSchedule | None = None) -> Any:
    """[Group] -> [networkx.DiGraph]: `kind`, `label` and `layer` of nodes, `storage` of edges."""
    if not group.is_plain:
        raise ScheduleError(
            f'{group.label} has no data-flow graph: {NAME} computes float32 at affine indices only'
        )
    block = block_graph(group)
    made = _networkx().DiGraph(label=group.label)
    if schedule is not None:
        made.graph['schedule'] = schedule_text(schedule)
    for node in block.nodes:
        made.add_node(node.name, kind=_kind(group, node), label=_label(node))
    for source, to in block.edges:
        made.add_edge(source, to, storage=REGISTER)
    sizes = _shared_bytes(group, schedule)
    for store, load in _crossings(block):
        tensor = store.tensor
        level = SHARED_MEMORY if store.level == SHARED else MEMORY
        more = {'bytes': sizes[tensor]} if tensor in sizes and level == SHARED_MEMORY else {}
        made.add_edge(store.name, load.name, storage=level, tensor=tensor, **more)
    _add_tensors(made, group, block)
    _add_layers(made)
    return made


def _networkx() -> Any:
    try:
        import networkx  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingError(
            'a data-flow graph needs networkx, which is not installed; install tilewright[report]'
        ) from None
    return networkx


def _kind(group: Group, node: Node) -> str:
    if isinstance(node, Load):
        return 'load'
    if isinstance(node, Store):
        return 'store'
    if isinstance(node, Apply):
        return 'element-wise'
    stage = next(s for s in group.stages if s.name == node.name)
    return 'product' if stage.is_product_sum else 'reduction'


def _label(node: Node) -> str:
    if isinstance(node, Load):
        return f'load {node.tensor}'
    if isinstance(node, Store):
        return f'store {node.tensor}'
    if isinstance(node, Combine):
        over = ', '.join(f'{name}={size}' for name, size in node.over)
        return f'{node.name}\n{node.combiner} over {over}'
    return node.name


def _crossings(block: BlockGraph) -> list[tuple[Store, Load]]:
    """Every store with the loads of what it has stored."""
    loads = [n for n in block.nodes if isinstance(n, Load)]
    return [(s, n) for s in block.stores for n in loads if s.tensor == n.tensor]


def _add_tensors(made: Any, group: Group, block: BlockGraph) -> None:
    """The tensors in memory that the kernel begins with and ends in."""
    crossing = {store.tensor for store, _ in _crossings(block)}
    for node in block.nodes:
        if not isinstance(node, Load | Store) or node.tensor in crossing:
            continue
        tensor = group.tensor(node.tensor)
        name = f'{tensor.role} {tensor.name}'
        sizes = 'x'.join(map(str, tensor.shape))
        made.add_node(name, kind='tensor', label=f'{name}\n{sizes}')
        ends = (node.name, name) if isinstance(node, Store) else (name, node.name)
        made.add_edge(*ends, storage=MEMORY, tensor=tensor.name)


def _add_layers(made: Any) -> None:
    """`layer`: how far a node is from the end, so that operands are drawn beside their use."""
    networkx = _networkx()
    layers = list(networkx.topological_generations(made.reverse(copy=False)))
    for number, names in enumerate(layers):
        for name in names:
            made.nodes[name]['layer'] = len(layers) - 1 - number


def _shared_bytes(group: Group, schedule: GpuSchedule | None) -> dict[str, int]:
    """tensor -> bytes of a block's shared memory that it takes."""
    if schedule is None:
        return {}
    return {name: kept.bytes for name, kept in plan(group, schedule).kept.items()}


def _draw(graph: Any, path: Path) -> None:
    networkx = _networkx()
    places, columns, rows = _places(graph)
    figure = canvas(_CELL[0] * max(columns, 2), _CELL[1] * (rows + 1))
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]

    axis = figure.add_subplot()
    axis.set_axis_off()
    title = graph.graph['label']
    axis.set_title(
        (title if len(title) <= _LONGEST else f'{title[: _LONGEST - 2]}..')
        + (f'\n{graph.graph["schedule"]}' if 'schedule' in graph.graph else ''),
        fontsize=7,
    )
    for storage, (colour, style) in _EDGES.items():
        edges = [(a, b) for a, b, said in graph.edges(data='storage') if said == storage]
        networkx.draw_networkx_edges(
            graph, places, edges, ax=axis, edge_color=colour, style=style, node_size=900,
            node_shape='s', arrowsize=8,
        )  # fmt: skip
        axis.plot([], [], color=colour, linestyle=style, label=storage)
    words = {
        (a, b): f'{said["tensor"]}: {bytes_text(said["bytes"])}'
        for a, b, said in graph.edges(data=True)
        if 'bytes' in said
    }
    networkx.draw_networkx_edge_labels(
        graph,
        places,
        words,
        ax=axis,
        font_size=6,
        rotate=False,
        font_color=_EDGES[SHARED_MEMORY][0],
    )
    for name, (x, y) in places.items():
        said = graph.nodes[name]
        box = {'boxstyle': 'round', 'facecolor': _NODES[said['kind']], 'edgecolor': '#606060'}
        axis.text(x, y, said['label'], ha='center', va='center', fontsize=7, bbox=box)
    for kind in dict.fromkeys(said for _, said in graph.nodes(data='kind')):
        axis.plot([], [], 's', color=_NODES[kind], markeredgecolor='#606060', label=kind)
    axis.legend(fontsize=6, ncols=9, loc='upper center', bbox_to_anchor=(0.5, 0.0))
    axis.margins(0.15, 0.03)
    with rc_context(_STYLE):
        save(figure, path, metadata=_UNDATED.get(path.suffix))


def _places(graph: Any) -> tuple[dict[str, tuple[float, float]], int, int]:
    """(place of each node, most nodes of a layer, layers), top down, each above those it feeds."""
    layers: dict[int, list[str]] = {}
    for name, layer in graph.nodes(data='layer'):
        layers.setdefault(layer, []).append(name)
    across: dict[str, float] = {}
    for layer in sorted(layers, reverse=True):

        def feeds(name: str) -> float:
            after = [across[n] for n in graph.successors(name) if n in across]
            return sum(after) / len(after) if after else 0.0

        names = sorted(layers[layer], key=feeds)
        for number, name in enumerate(names):
            across[name] = number - (len(names) - 1) / 2
    places = {name: (x, -float(graph.nodes[name]['layer'])) for name, x in across.items()}
    return places, max(map(len, layers.values())), len(layers)
