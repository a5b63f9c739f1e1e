"""OpenCL's functions, straight from the vendors' libraries: no loader, no binding package.

Goes in: the `.icd` files of this host, and libraries that are there without one. Comes out:
`Platform`s, whose `Api` calls OpenCL by name and turns a status into an `OpenCLError`.

What a loader does is little (cl_khr_icd): a vendor's library gives its platforms, and every object
of OpenCL begins with a pointer to a table of functions, whose order the extension fixes. So hosts
that have a driver and no loader, which is how NVIDIA's containers come, need nothing else.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

VENDORS = Path('/etc/OpenCL/vendors')
# Libraries that often lack an .icd file; and the wheel that carries PoCL.
LIBRARIES = ('libnvidia-opencl.so.1',)
WHEELS = ('pocl_binary_distribution',)

PLATFORM_NAME, DEVICE_NAME, DEVICE_VENDOR = 0x0902, 0x102B, 0x102C
MAX_COMPUTE_UNITS, MAX_WORK_GROUP_SIZE, MAX_CLOCK = 0x1002, 0x1004, 0x100C
LOCAL_MEM_SIZE, GLOBAL_MEM_SIZE, MAX_ALLOCATION = 0x1023, 0x101F, 0x1010
GLOBAL_CACHE_SIZE = 0x101E
BASE_ALIGNMENT, REGION = 0x1019, 0x1220
ALL_DEVICES, PROFILING, READ_WRITE, BUILD_LOG = 0xFFFFFFFF, 2, 1, 0x1183
PROGRAM_BINARY_SIZES, PROGRAM_BINARIES, KERNEL_PROGRAM = 0x1165, 0x1166, 0x1194
COMMAND_START, COMMAND_END = 0x1282, 0x1283
# cl_nv_device_attribute_query
NV_CAPABILITY_MAJOR, NV_CAPABILITY_MINOR, NV_REGISTERS, NV_WARP = 0x4000, 0x4001, 0x4002, 0x4003

_NAMES = {
    -1: 'DEVICE_NOT_FOUND', -4: 'MEM_OBJECT_ALLOCATION_FAILURE', -5: 'OUT_OF_RESOURCES',
    -6: 'OUT_OF_HOST_MEMORY', -11: 'BUILD_PROGRAM_FAILURE', -30: 'INVALID_VALUE',
    -42: 'INVALID_BINARY', -43: 'INVALID_BUILD_OPTIONS',
    -46: 'INVALID_KERNEL_NAME', -48: 'INVALID_KERNEL', -49: 'INVALID_ARG_INDEX',
    -50: 'INVALID_ARG_VALUE', -51: 'INVALID_ARG_SIZE', -52: 'INVALID_KERNEL_ARGS',
    -54: 'INVALID_WORK_GROUP_SIZE', -61: 'INVALID_BUFFER_SIZE', -1001: 'PLATFORM_NOT_FOUND',
}  # fmt: skip
NO_MEMORY = ('MEM_OBJECT_ALLOCATION_FAILURE', 'OUT_OF_RESOURCES', 'OUT_OF_HOST_MEMORY',
             'INVALID_BUFFER_SIZE')  # fmt: skip

_many = POINTER(c_void_p)
_sizes = POINTER(c_size_t)
# (place in the table, argument types). Functions that make an object end in a status by reference.
_STATUS: dict[str, tuple[int, tuple]] = {
    'GetPlatformInfo': (1, (c_void_p, c_uint32, c_size_t, c_void_p, _sizes)),
    'GetDeviceIDs': (2, (c_void_p, c_uint64, c_uint32, _many, POINTER(c_uint32))),
    'GetDeviceInfo': (3, (c_void_p, c_uint32, c_size_t, c_void_p, _sizes)),
    'ReleaseContext': (7, (c_void_p,)),
    'ReleaseCommandQueue': (11, (c_void_p,)),
    'ReleaseMemObject': (18, (c_void_p,)),
    'ReleaseProgram': (29, (c_void_p,)),
    'BuildProgram': (30, (c_void_p, c_uint32, _many, c_char_p, c_void_p, c_void_p)),
    'GetProgramInfo': (32, (c_void_p, c_uint32, c_size_t, c_void_p, _sizes)),
    'GetProgramBuildInfo': (33, (c_void_p, c_void_p, c_uint32, c_size_t, c_void_p, _sizes)),
    'ReleaseKernel': (37, (c_void_p,)),
    'SetKernelArg': (38, (c_void_p, c_uint32, c_size_t, c_void_p)),
    'GetKernelInfo': (39, (c_void_p, c_uint32, c_size_t, c_void_p, _sizes)),
    'WaitForEvents': (41, (c_uint32, _many)),
    'ReleaseEvent': (44, (c_void_p,)),
    'GetEventProfilingInfo': (45, (c_void_p, c_uint32, c_size_t, c_void_p, _sizes)),
    'Finish': (47, (c_void_p,)),
    'EnqueueReadBuffer': (
        48, (c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p, c_uint32, _many, _many)
    ),
    'EnqueueWriteBuffer': (
        49, (c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p, c_uint32, _many, _many)
    ),
    'EnqueueNDRangeKernel': (
        59, (c_void_p, c_void_p, c_uint32, _sizes, _sizes, _sizes, c_uint32, _many, _many)
    ),
}  # fmt: skip
_OBJECT: dict[str, tuple[int, tuple]] = {
    'CreateContext': (4, (c_void_p, c_uint32, _many, c_void_p, c_void_p)),
    'CreateCommandQueue': (9, (c_void_p, c_void_p, c_uint64)),
    'CreateBuffer': (14, (c_void_p, c_uint64, c_size_t, c_void_p)),
    'CreateProgramWithSource': (26, (c_void_p, c_uint32, POINTER(c_char_p), _sizes)),
    'CreateProgramWithBinary': (
        27, (c_void_p, c_uint32, _many, _sizes, POINTER(c_char_p), POINTER(c_int32))
    ),
    'CreateKernel': (34, (c_void_p, c_char_p)),
    'CreateSubBuffer': (82, (c_void_p, c_uint64, c_uint32, c_void_p)),
}  # fmt: skip


class OpenCLError(TilewrightError):
    """A status of OpenCL that is not success; callers turn it into an error of ours."""

    def __init__(self, function: str, code: int) -> None:
        self.name = _NAMES.get(code, f'status {code}')
        super().__init__(f'cl{function}: {self.name}')


class Api:
    """The functions of one platform's library, by name and without the `cl`."""

    def __init__(self, platform: int) -> None:
        table = ctypes.cast(platform, POINTER(_many)).contents
        self._functions: dict[str, Any] = {}
        for name, (place, types) in _STATUS.items():
            self._functions[name] = ctypes.CFUNCTYPE(c_int32, *types)(table[place] or 0)
        for name, (place, types) in _OBJECT.items():
            kind = ctypes.CFUNCTYPE(c_void_p, *types, POINTER(c_int32))
            self._functions[name] = kind(table[place] or 0)

    def call(self, name: str, *values: Any) -> None:
        """A function that returns a status."""
        status = self._functions[name](*values)
        if status:
            raise OpenCLError(name, status)

    def make(self, name: str, release: str, *values: Any) -> Handle:
        """A function that makes an object; `release` is the one that gives it back."""
        status = c_int32()
        made = self._functions[name](*values, byref(status))
        if status.value:
            raise OpenCLError(name, status.value)
        return Handle(made, self._functions[release])

    def address(self, name: str) -> int:
        """Where a function lies, for callers that are not Python."""
        return ctypes.cast(self._functions[name], c_void_p).value or 0

    def binary(self, program: int) -> bytes:
        """What a program was compiled to, in whatever form its driver keeps it; for one device."""
        size = self.number('GetProgramInfo', program, PROGRAM_BINARY_SIZES)
        text = ctypes.create_string_buffer(max(size, 1))
        place = c_void_p(ctypes.addressof(text))
        self.call(
            'GetProgramInfo', program, PROGRAM_BINARIES, ctypes.sizeof(place), byref(place), None
        )
        return text.raw[:size]

    def info(self, function: str, *what: Any) -> bytes:
        """The bytes that a Get...Info function answers."""
        size = c_size_t()
        self.call(function, *what, 0, None, byref(size))
        text = ctypes.create_string_buffer(max(size.value, 1))
        self.call(function, *what, size.value, text, None)
        return text.raw[: size.value]

    def text(self, function: str, *what: Any) -> str:
        return self.info(function, *what).split(b'\0')[0].decode(errors='replace').strip()

    def number(self, function: str, *what: Any) -> int:
        return int.from_bytes(self.info(function, *what), 'little')


class Handle:
    """An object of OpenCL, given back when nobody holds it any more, or by `release`."""

    __slots__ = ('__weakref__', 'release', 'value')

    def __init__(self, value: int, release: Callable[[int], int]) -> None:
        self.value = value
        self.release = weakref.finalize(self, release, value)
        self.release.atexit = False  # a library may have ended before we do


@dataclass(frozen=True, slots=True, eq=False)
class Platform:
    """A vendor's platform, and (device, name) of everything on it."""

    api: Api
    name: str
    devices: tuple[tuple[int, str], ...]


@cache
def platforms() -> tuple[Platform, ...]:
    """All platforms of this host that have a device; none where there is no driver."""
    found: dict[int, Platform] = {}
    for library in _libraries():
        for pointer in _pointers(library):
            if pointer not in found:
                found[pointer] = _platform(pointer)
    return tuple(p for p in found.values() if p.devices)


def _libraries() -> Iterator[Any]:
    """Vendors' libraries: those of .icd files, well-known ones, those that wheels carry."""
    folder = Path(os.environ.get('OCL_ICD_VENDORS') or VENDORS)
    files = [folder] if folder.is_file() else sorted(folder.glob('*.icd'))
    names = [line.strip() for file in files for line in file.read_text().splitlines()[:1]]
    for wheel in WHEELS:
        spec = find_spec(wheel)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            beside = Path(place).parent.glob('*/.libs/libpocl*.so*')  # it lies in pyopencl's folder
            names += sorted(str(path) for path in beside)
    for name in dict.fromkeys([*names, *LIBRARIES]):
        try:
            yield ctypes.CDLL(name)
        except OSError:  # named, but not installed
            continue


def _pointers(library: Any) -> list[int]:
    """The platforms of a library (clIcdGetPlatformIDsKHR)."""
    try:
        find = library.clGetExtensionFunctionAddress
    except AttributeError:
        return []
    find.restype, find.argtypes = c_void_p, (c_char_p,)
    address = find(b'clIcdGetPlatformIDsKHR')
    if not address:
        return []
    ask = ctypes.CFUNCTYPE(c_int32, c_uint32, _many, POINTER(c_uint32))(address)
    count = c_uint32()
    if ask(0, None, byref(count)) or not count.value:
        return []
    places = (c_void_p * count.value)()
    return [p for p in places if p] if not ask(count.value, places, None) else []


def _platform(pointer: int) -> Platform:
    api = Api(pointer)
    name = api.text('GetPlatformInfo', pointer, PLATFORM_NAME)
    count = c_uint32()
    try:
        api.call('GetDeviceIDs', pointer, ALL_DEVICES, 0, None, byref(count))
        places = (c_void_p * count.value)()
        api.call('GetDeviceIDs', pointer, ALL_DEVICES, count.value, places, None)
    except OpenCLError:  # a driver without a device
        return Platform(api, name, ())
    return Platform(
        api,
        name,
        tuple((int(d), api.text('GetDeviceInfo', int(d), DEVICE_NAME)) for d in places if d),
    )
