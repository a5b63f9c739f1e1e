"""A program as JSON and back, its groups and constants aside: for `.tw` files and for families.

Goes in: a program, and what stands for the group of each task. Comes out: dictionaries, lists,
words and numbers; from them, with the groups and constants, the program again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.graph.graph import Value
from tilewright.graph.program import Program, Task
from tilewright.ops.group import Group


def program_to_json(program: Program, key: Callable[[Task], Any]) -> dict:
    """`key` of a task stands for its group."""
    return {
        'name': program.name,
        'inputs': list(program.inputs),
        'outputs': [list(pair) for pair in program.outputs],
        'values': [[v.name, list(v.shape), v.dtype] for v in program.values.values()],
        'views': dict(program.views),
        'inside': {value: list(place) for value, place in program.inside.items()},
        **({'carried': dict(program.carried)} if program.carried else {}),
        **({'in_order': True} if program.in_order else {}),
        **({'behind': dict(program.behind)} if program.behind else {}),
        'tasks': [
            {
                'name': t.name,
                'group': key(t),
                'operands': dict(t.operands),
                'result': t.result,
                'origin': list(t.origin),
                'writes_part': t.writes_part,
            }
            for t in program.tasks
        ],
    }


def values_of(body: Mapping) -> dict[str, Value]:
    return {name: Value(name, tuple(shape), dtype) for name, shape, dtype in body['values']}


def program_from_json(
    body: Mapping, groups: Mapping[Any, Group], constants: Mapping[str, np.ndarray]
) -> Program:
    """The inverse of `program_to_json`; every check of construction runs."""
    return Program(
        body['name'],
        tuple(body['inputs']),
        tuple((name, value) for name, value in body['outputs']),
        tuple(
            Task(
                t['name'], groups[t['group']], t['operands'], t['result'], tuple(t['origin']),
                t['writes_part'],
            )
            for t in body['tasks']
        ),
        values_of(body),
        constants,
        body['views'],
        {value: (holder, offset) for value, (holder, offset) in body['inside'].items()},
        body.get('carried', {}),
        bool(body.get('in_order', False)),
        body.get('behind', {}),
    )  # fmt: skip
