"""What GPU compilers say: the first complaint with its source line, and the assembler's report."""

from __future__ import annotations

import re

from tilewright.runtime.gpu.device import Resources

_REPORT = re.compile(
    r'(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, '
    r'(?P<loads>\d+) bytes spill loads'
)
_ERRORS = (
    r':(\d+):(\d+:)?\s*(?:fatal )?error:?\s*(.+)',
    r'\((\d+)\)()\s*: error:?\s*(.+)',  # NVRTC
    r'error: \S*?:(\d+):(\d+):\s*(.+)',  # PoCL
)


def complaint(log: str, source: str) -> str:
    """The first error of a compiler's log, with the source line that it is about."""
    match = next((m for pattern in _ERRORS if (m := re.search(pattern, log))), None)
    if not match:
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        said = [line for line in lines if re.search(r'\berror\b', line)]
        return (said or lines[-1:] or ['no message'])[0]
    lines = source.splitlines()
    number = int(match[1])
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ''
    return f'line {number}: {match[3].strip()}: {line}'


def resources_of(report: str, name: str = '') -> Resources:
    """Registers and spills of a kernel, by its name, in the report of NVIDIA's assembler.

    Without a name, those of the only kernel that it reports on.
    """
    begin = report.find(f"entry function '{name}'") if name else 0
    part = report[begin:] if begin >= 0 else ''
    end = part.find('Compiling entry function', 1) if name else -1
    part = part[:end] if end > 0 else part
    registers, spills = re.search(r'Used (\d+) registers', part), _REPORT.search(part)
    return Resources(
        int(registers[1]) if registers else None,
        int(spills['stores']) + int(spills['loads']) if spills else None,
    )
