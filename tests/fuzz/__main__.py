"""`python -m tests.fuzz`: random networks on every target, against ONNX Runtime.

    python -m tests.fuzz --graphs 1000 --seed 1 --targets numpy,cpu --json found.json
    python -m tests.fuzz --replay 1:42 --targets cpu            a graph by its number
    python -m tests.fuzz --replay finds/cpu-1-42.onnx --targets cpu --passes fuse
    python -m tests.fuzz --quantised 100 --seed 1               operators in eight bits, exactly
    python -m tests.fuzz --replay quantised:1:42                a chain of them by its number

Exit code 1 where something failed.
"""

from __future__ import annotations

import sys

from .run import main

if __name__ == '__main__':
    sys.exit(main())
