"""What NEON micro-kernels share: addresses that instructions can reach, accumulators, registers."""

from __future__ import annotations

from tilewright.kernels.cpu.isa import micro

ADDRESS_REGISTERS = ('x9', 'x10', 'x11', 'x12')


class Addresses:
    """Turns a byte offset from a pointer into an operand, adding a base where none reaches it."""

    def __init__(self, pointer: str, bases: tuple[str, ...] = ADDRESS_REGISTERS) -> None:
        self.pointer, self.bases = pointer, bases
        self.base = 0
        self.register = pointer
        self.turn = 0

    def operand(self, offset: int, size: int, out: list[str]) -> str:
        for register, base in ((self.pointer, 0), (self.register, self.base)):
            rest = offset - base
            if (0 <= rest <= 4095 * size and rest % size == 0) or -256 <= rest <= 255:
                return f'[{register}, #{rest}]'
        self.turn = (self.turn + 1) % len(self.bases)
        self.register, self.base = self.bases[self.turn], offset
        out += add_immediate(self.register, self.pointer, offset)
        return f'[{self.register}]'


def add_immediate(target: str, source: str, value: int) -> list[str]:
    """target = source + value, for any 0 <= value < 2^32."""
    if value < 4096:
        return [f'add {target}, {source}, #{value}']
    if value < 1 << 24:
        lines = [f'add {target}, {source}, #{value >> 12}, lsl #12']
        return lines + ([f'add {target}, {target}, #{value & 4095}'] if value & 4095 else [])
    return [
        f'movz x13, #{value & 0xFFFF}',
        f'movk x13, #{value >> 16}, lsl #16',
        f'add {target}, {source}, x13',
    ]


def accumulators(kernel: micro.MicroKernel, instruction: str) -> list[str]:
    """Load or store every accumulator from its place in acc."""
    lines: list[str] = []
    addresses = Addresses('%[acc]')
    for p, offset in enumerate(kernel.acc):
        for v in range(kernel.vectors):
            operand = addresses.operand(4 * offset + 16 * v, 16, lines)
            lines.append(f'{instruction} q{p * kernel.vectors + v}, {operand}')
    return lines


def clobbers() -> list[str]:
    """What a micro-kernel overwrites."""
    return [f'v{i}' for i in range(32)] + [*ADDRESS_REGISTERS, 'x13', 'x14', 'cc', 'memory']
