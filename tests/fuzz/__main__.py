"""`python -m tests.fuzz`: random networks on every target, against ONNX Runtime.

    python -m tests.fuzz --graphs 1000 --seed 1 --targets numpy,cpu --json found.json
    python -m tests.fuzz --replay 1:42 --targets cpu            a graph by its number
    python -m tests.fuzz --replay finds/cpu-1-42.onnx --targets cpu --passes fuse

Exit code 1 where something failed.
"""

from __future__ import annotations

import sys

from .run import main

if __name__ == '__main__':
    sys.exit(main())
