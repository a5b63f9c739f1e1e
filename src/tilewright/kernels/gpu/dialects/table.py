"""What a dialect of CUCL is: a table of words, some lines of text, and how a kernel begins.

One file for each: cuda.py, opencl.py, host.py. Words that stand for more than a keyword (16-byte
loads, asynchronous copies, matrix instructions) are macros or functions in `head`, under the same
names in every dialect; docs/cucl.md lists them. A dialect from anywhere is made known by
`DIALECTS.register` and found by its name; a `Device` that runs it takes the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.kernels.gpu.language import Kernel
from tilewright.registry import Registry


def _nothing(_: object) -> str:
    return ''


# Both factors of a product of 8-bit numbers.
BYTE_KINDS = ('u8_u8', 'u8_i8', 'i8_u8', 'i8_i8')


def warpgroup_products(kernels: Sequence[Kernel]) -> list[tuple[str, int]]:
    """('tf32', 'bf16', 'half_f16', 'half_bf16' or 'int8_' and one of `BYTE_KINDS`, columns) of
    every product that a need such as 'wgmma_tf32/64' names.
    """
    needs = sorted({need for kernel in kernels for need in kernel.needs if '/' in need})
    split = [need.removeprefix('wgmma_').split('/') for need in needs]
    return sorted((kind, int(columns)) for kind, columns in split)


def matrix_units(
    kernels: Sequence[Kernel], head: str, bf16: str, bulk: str, product: Callable[[str, int], str],
    half: str = '', common_half: str = '',
) -> str:  # fmt: skip
    """What kernels need of matrix units: the texts that all, some or bulk copies begin with, and
    one `product` of each size; of products in half types, and of 8-bit numbers, those of
    warpgroups, and of all.
    """
    wanted = warpgroup_products(kernels)
    heads = [head] * bool(wanted) + [bf16] * any(kind == 'bf16' for kind, _ in wanted)
    heads += [half] * any(kind.startswith(('half', 'int8')) for kind, _ in wanted)
    heads += [bulk] * any('bulk_copy' in kernel.needs for kernel in kernels)
    needs = {need for kernel in kernels for need in kernel.needs}
    heads += [common_half] * any('half' in need or 'int8' in need for need in needs)
    return '\n'.join([*heads, *(product(*one) for one in wanted)])


def what_lanes_need(
    kernels: Sequence[Kernel], lanes: str, together: str, clusters: str = ''
) -> str:
    """The texts of words for lanes, for blocks, and for blocks of a cluster, that exchange values,
    where one needs them.
    """
    needs = {need for kernel in kernels for need in kernel.needs}
    texts = {'lane_xor': lanes, 'resident_grid': together, 'cluster': clusters}
    return ''.join(text for need, text in texts.items() if need in needs)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One target language.

    family        the language that foreign bodies for it are written in
    words         identifier of CUCL -> text
    head          text before every kernel
    entry         (kernel, parameters) -> the line that opens its function
    pointer       (element type, name, written) -> a parameter
    shared        kernel -> declarations of its shared arrays
    capabilities  what kernels may need: 'mma_tf32', 'wgmma_tf32', 'wgmma_bf16', 'mma_half',
                  'wgmma_half_f16', 'wgmma_half_bf16', 'mma_int8', 'wgmma_int8_' and one of
                  `BYTE_KINDS`, 'bulk_copy', 'device_fence', 'lane_xor' (lanes of a warp exchange
                  values), 'resident_grid' (all blocks run together), 'cluster' (some blocks do,
                  and read each other's shared memory)
    extra         kernels -> text between head and kernels: what their needs ask for
    tail          text behind the kernel
    begins        whether kernels may be started early, and wait at the line `BEGINS`
    """

    name: str
    family: str
    words: Mapping[str, str]
    head: str
    entry: Callable[[Kernel, str], str]
    pointer: Callable[[str, str, bool], str]
    shared: Callable[[Kernel], list[str]]
    capabilities: frozenset[str] = frozenset()
    extra: Callable[[Sequence[Kernel]], str] = _nothing
    tail: Callable[[Kernel], str] = _nothing
    begins: bool = False


_FOLDER = 'tilewright.kernels.gpu.dialects'
# The dialect of NVIDIA's OpenCL (nvidia.py) depends on the device, so it has no entry.
DIALECTS: Registry[Dialect] = Registry(
    'a dialect of CUCL',
    [f'{_FOLDER}.{name}:{name.upper()}' for name in ('cuda', 'opencl', 'host')],
)
