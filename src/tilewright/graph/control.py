"""If, Loop and Scan, written out: the nodes of their bodies take their place.

    If(c), c known                 ->   the nodes of the branch
    Loop(3, true, x), body f       ->   f(0, x) -> x1;  f(1, x1) -> x2;  f(2, x2) -> x3
    Scan(s, xs), body f            ->   f(s, xs[0]) -> s1, y0;  f(s1, xs[1]) -> s2, y1;  ..

Goes in: a node with bodies, and what is known of the values before it. Comes out: nodes and
constants that compute the same. How often a body runs has to be known: a count that is constant, or
conditions that follow from constants. A Loop is written out step by step, since whether there is
another step may only be known behind the last one; its rest is a Loop again. A body's own names get
the node's name in front. Values of the network that it reads are the node's last inputs
(`captures`), so that passes see who reads what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import Body, Node
from tilewright.graph.lowering.result import Known, Result, Unsupported

CONTROL = ('If', 'Loop', 'Scan')
Fresh = Callable[[str], str]


@dataclass
class Expansion:
    """What takes a node's place, as it grows."""

    node: Node
    found: Mapping[str, Result]
    fresh: Fresh
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def given(self) -> tuple[str, ...]:
        """Inputs, without what bodies read of the network."""
        return self.node.inputs[: len(self.node.inputs) - len(self.captures)]

    @property
    def captures(self) -> tuple[str, ...]:
        names = self.node.attributes.get('captures', ())
        return tuple(map(str, names)) if isinstance(names, tuple) else ()

    def body(self, name: str) -> Body:
        found = self.node.attributes.get(name)
        if not isinstance(found, Body):
            raise Unsupported(f'whose {name} is not understood')
        return found

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """An attribute of so many whole numbers, zeros where it is left out."""
        value = self.node.attributes.get(name, (0,) * count)
        if not isinstance(value, tuple) or len(value) != count:
            raise ModelError(f'{self.node}: its {name} is {value!r}; it must be {count} numbers')
        return tuple(int(v) for v in value)

    def constant(self, word: str, value: object, dtype: type) -> str:
        name = self.fresh(f'{self.node.name}/{word}')
        self.constants[name] = np.asarray(value, dtype)
        return name

    def add(self, op: str, inputs: Sequence[str], output: str = '', **attributes: int) -> str:
        made = output or self.fresh(f'{self.node.name}/{op.lower()}')
        name = self.fresh(f'{self.node.name}/{op.lower()} of {made}')
        self.nodes.append(Node(op, name, tuple(inputs), (made,), attributes))
        return made

    def known(self, name: str, what: str) -> np.ndarray:
        result = self.found[name]
        if not isinstance(result, Known):
            raise Unsupported(f'with {what} {name!r}, known only when it runs')
        return result.array

    def inline(self, body: Body, given: Sequence[str], word: str) -> list[str]:
        """The body's nodes on these values; comes out: its results."""
        if len(given) != len(body.inputs):
            raise ModelError(
                f'{self.node} gives its body {len(given)} values; it takes {len(body.inputs)}'
            )
        where = f'{self.node.name}/{word}'
        outside = self.node.inputs[len(self.given) :]
        names = dict(zip(self.captures, outside, strict=True))
        names |= dict(zip(body.inputs, given, strict=True))
        inner = [*body.constants, *(n for node in body.nodes for n in node.outputs if n)]
        names |= {name: self.fresh(f'{where}/{name}') for name in inner}
        self.constants |= {names[name]: array for name, array in body.constants.items()}
        for node in body.nodes:
            inputs, outputs = (
                tuple(names[name] if name else '' for name in listed)
                for listed in (node.inputs, node.outputs)
            )
            name = self.fresh(f'{where}/{node.name}')
            self.nodes.append(replace(node, name=name, inputs=inputs, outputs=outputs))
        return [names[name] for name in body.outputs]

    def give(self, results: Sequence[str]) -> None:
        """The node's outputs, which are these values."""
        for output, result in zip(self.node.outputs, results, strict=False):
            if output:
                self.add('Identity', [result], output)

    def stack(self, parts: Sequence[str], output: str, axis: int = 0) -> str:
        """Values of every step side by side, along a new axis."""
        if not output:
            return ''
        if not parts:
            raise Unsupported('of no step, whose results have shapes that nothing says')
        axes = self.constant('axis', [axis], np.int64)
        rows = [self.add('Unsqueeze', [part, axes]) for part in parts]
        return self.add('Concat', rows, output, axis=axis)


def expand(node: Node, found: Mapping[str, Result], fresh: Fresh) -> Expansion:
    """[Node, what is known before it] -> [nodes and constants]; Unsupported where too little is."""
    made = Expansion(node, found, fresh)
    {'If': _if, 'Loop': _loop, 'Scan': _scan}[node.op](made)
    return made


def deciding(nodes: Sequence[Node], wanted: set[str], shape: Callable[[Node, int], bool]) -> None:
    """Add to `wanted` what its values are computed from, and what shapes depend on.

    `shape` says whether an input of a node decides shapes.
    """
    for node in reversed(nodes):
        whole = node.op not in ('Shape', 'Size') and any(o in wanted for o in node.outputs)
        inner: set[str] = set()
        for body in node.bodies:
            deciding(body.nodes, inner, shape)
        wanted |= {
            name for number, name in enumerate(node.inputs)
            if whole or shape(node, number) or name in inner
        }  # fmt: skip


def _if(made: Expansion) -> None:
    then, other = made.body('then_branch'), made.body('else_branch')
    same = _form(then) == _form(other)
    condition = True if same else made.known(made.given[0], 'the condition')
    chosen = then if np.asarray(condition).reshape(-1)[:1].all() else other
    made.give(made.inline(chosen, (), 'then' if chosen is then else 'else'))


def _form(body: Body) -> tuple:
    """What a body computes, whatever it calls its values."""
    names = {name: f'input {n}' for n, name in enumerate(body.inputs)}
    names |= {name: str((a.dtype, a.shape, a.tobytes())) for name, a in body.constants.items()}
    lines = []
    for number, node in enumerate(body.nodes):
        plain = {
            key: _form(value) if isinstance(value, Body)
            else (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray)
            else value
            for key, value in node.attributes.items()
        }  # fmt: skip
        lines.append((node.op, [names.get(n, n) for n in node.inputs], sorted(plain.items())))
        names |= {name: f'{number}.{n}' for n, name in enumerate(node.outputs)}
    return (lines, [names.get(name, name) for name in body.outputs])


def _loop(made: Expansion) -> None:
    node, body = made.node, made.body('body')
    trips, condition, *carried = (*made.given, '', '')[: max(2, len(made.given))]
    limit = int(made.known(trips, 'the number of steps').reshape(())) if trips else None
    step = node.attributes.get('step', 0)
    gathered = node.attributes.get('gathered', ())
    assert isinstance(step, int)
    assert isinstance(gathered, tuple)
    going = bool(made.known(condition, 'the condition').reshape(())) if condition else True
    if limit is None and not condition:
        raise Unsupported('that does not end')
    if not going or (limit is not None and step >= limit):
        made.give(carried)
        rest = node.outputs[len(carried) :]
        for number, output in enumerate(rest):
            made.stack([str(n) for n in gathered[number :: len(body.outputs) - 1 - len(carried)]],
                       output)  # fmt: skip
        return
    given = [made.constant(f'step{step}', step, np.int64), made.constant('going', True, np.bool_)]
    going_on, *results = made.inline(body, [*given, *carried], f'step{step}')
    states, scanned = results[: len(carried)], results[len(carried) :]
    outside = node.inputs[len(made.given) :]
    attributes = {**node.attributes, 'step': step + 1, 'gathered': (*gathered, *scanned)}
    inputs = (trips, going_on, *states, *outside)
    made.nodes.append(replace(node, inputs=inputs, attributes=attributes))


def _scan(made: Expansion) -> None:
    if made.node.attributes.get('batched'):
        return _batched(made)
    body, count = made.body('body'), made.node.attributes.get('num_scan_inputs')
    if not isinstance(count, int) or not 1 <= count <= len(made.given):
        raise ModelError(f'{made.node}: its num_scan_inputs is {count!r}; it has {len(made.given)}')
    states, scanned = list(made.given[:-count]), made.given[-count:]
    kept = len(body.outputs) - len(states)
    axes, backwards = (made.numbers(f'scan_input_{w}', count) for w in ('axes', 'directions'))
    shapes = [made.found[name].shape for name in scanned]
    if any(not -len(s) <= a < len(s) for s, a in zip(shapes, axes, strict=True)):
        raise ModelError(f'{made.node}: its scan_input_axes {axes} are not those of {shapes}')
    sizes = {s[a] for s, a in zip(shapes, axes, strict=True)}
    if len(sizes) != 1:
        raise ModelError(f'{made.node} scans inputs of {sorted(sizes)} steps; they must be as many')
    (steps,) = sizes
    gathered: list[list[str]] = [[] for _ in range(kept)]
    for step in range(steps):
        parts = [
            made.add(
                'Gather',
                [name, made.constant('step', steps - 1 - step if back else step, np.int64)],
                axis=axis,
            )
            for name, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        results = made.inline(body, [*states, *parts], f'step{step}')
        states = results[: len(states)]
        for own, result in zip(gathered, results[len(states) :], strict=True):
            own.append(result)
    made.give(states)
    places, turned = (made.numbers(f'scan_output_{w}', kept) for w in ('axes', 'directions'))
    outputs = (*made.node.outputs[len(states) :], *[''] * kept)
    for own, output, axis, back in zip(gathered, outputs, places, turned, strict=False):
        made.stack(own[::-1] if back else own, output, axis)


def _batched(made: Expansion) -> None:
    """Scan of opset 8: lengths, then states and sequences with the batch in front."""
    lengths, *given = made.given
    if lengths:
        raise Unsupported('with lengths of its sequences')
    body, count = made.body('body'), made.node.attributes.get('num_scan_inputs')
    directions = made.node.attributes.get('directions', ())
    attributes = {'body': body, 'num_scan_inputs': count, 'captures': made.captures}
    attributes |= {'scan_input_directions': directions} if directions else {}
    outside = made.node.inputs[len(made.given) :]
    gathered: list[list[str]] = [[] for _ in made.node.outputs]
    for number in range(made.found[given[0]].shape[0]):
        place = made.constant('sequence', number, np.int64)
        own = [made.add('Gather', [name, place], axis=0) for name in given]
        name = f'{made.node.name}/sequence{number}'
        outputs = tuple(made.fresh(f'{name}/{o}') for o in made.node.outputs)
        inputs = (*own, *outside)
        made.nodes.append(Node('Scan', made.fresh(name), inputs, outputs, attributes))
        for listed, output in zip(gathered, outputs, strict=True):
            listed.append(output)
    for own, output in zip(gathered, made.node.outputs, strict=True):
        made.stack(own, output)
