"""Small kernels at the end of a call as few launches: a training step updates hundreds of vectors.

Goes in: the kernels of a call and what each waits for (order.py). Comes out: which of them are one
launch, and the kernel of such a bundle. A kernel's height is the length of the longest way from it
to the end: kernels of one height never wait for each other, and whatever waits for one of them is
lower, so that those that are small may start together once all are due. Near the end, where only
updates are left (`graph/levels.py` puts them there), nothing else is kept waiting. A block of a
bundle runs the body of one of its kernels, and each body waits for itself where the bundle was
started early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from tilewright.kernels.gpu.language import BEGINS, ELEMENT, Array, Kernel, waits_itself
from tilewright.runtime.gpu.recorded import Waits

LOWEST = 6  # heights at which kernels are put together
MOST_BLOCKS = 256  # of a kernel that counts as small
MOST_POINTERS = 480  # of one launch: its arguments have at most 4096 bytes


def bundles(kernels: Sequence[Kernel], waits: Waits) -> list[tuple[int, ...]]:
    """[Kernel], [what each waits for] -> the numbers of those that start together, two or more."""
    found: dict[tuple, list[list[int]]] = {}
    for number, height in enumerate(_heights(waits)):
        kernel = kernels[number]
        if height >= LOWEST or not _is_small(kernel):
            continue
        open_ones = found.setdefault((height, kernel.threads, kernel.helpers), [[]])
        held = sum(len(kernels[other].args) for other in open_ones[-1])
        if held + len(kernel.args) > MOST_POINTERS:
            open_ones.append([])
        open_ones[-1].append(number)
    return [tuple(one) for same in found.values() for one in same if len(one) > 1]


def _heights(waits: Waits) -> list[int]:
    """For every kernel the number of kernels behind it, on the longest way."""
    heights = [0] * len(waits)
    for number in range(len(waits) - 1, -1, -1):
        for earlier in waits[number]:
            heights[earlier] = max(heights[earlier], heights[number] + 1)
    return heights


def _is_small(kernel: Kernel) -> bool:
    """Whether its blocks need nothing of each other, and are few."""
    return (
        kernel.language == 'cucl' and not (kernel.shared or kernel.needs or kernel.resident)
        and kernel.grid[0] <= MOST_BLOCKS and kernel.grid[1:] == (1, 1)
        and '@' not in kernel.body and 'BLOCK_Y' not in kernel.body
        and all(isinstance(one, Array) and not one.dynamic for one in kernel.args)
    )  # fmt: skip


def argument_name(number: int, name: str) -> str:
    """The argument of a bundle that is `name` of its kernel `number`."""
    return f'of{number}_{name}'


def bundle(kernels: Sequence[Kernel]) -> Kernel:
    """Several kernels as one: blocks of the first, then those of the second, .."""
    lines, args, first = [], [], 0
    for number, kernel in enumerate(kernels):
        end = first + kernel.grid[0]
        lines.append(f'{"else " if number else ""}if (BLOCK_X < {end}) {{')
        for array in kernel.arrays:
            own = argument_name(number, array.name)
            constant = '' if array.written else 'const '
            lines.append(
                f'    {constant}GLOBAL {ELEMENT[array.dtype]} *const {array.name} = {own};'
            )
            args.append(replace(array, name=own))
        if not waits_itself(kernel.body):
            lines.append(f'    {BEGINS}')
        body = kernel.body.replace('BLOCK_X', f'(BLOCK_X - {first})')
        lines += [*(f'    {line}' for line in body.splitlines()), '}']
        first = end
    return replace(
        kernels[0], name='bundle', args=tuple(args), body='\n'.join(lines), grid=(first, 1, 1)
    )  # fmt: skip


def put_together(
    waits: Waits, found: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """(numbers of each launch in an order in which they may run, what each of those waits for)."""
    launch_of = {number: one for one in found for number in one}
    whole = {number: launch_of.get(number, (number,)) for number in range(len(waits))}
    needs: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for number, earlier in enumerate(waits):
        needs.setdefault(tuple(whole[number]), set()).update(tuple(whole[n]) for n in earlier)
    order = list(TopologicalSorter(needs).static_order())
    at = {one: number for number, one in enumerate(order)}
    return order, [tuple(sorted(at[other] for other in needs[one])) for one in order]
