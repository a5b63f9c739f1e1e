"""The command line: `python -m tilewright`, and the script `tilewright`."""

import sys


def main() -> None:
    """Run the command line. Imports take a second, in which Ctrl-C means the same as later."""
    try:
        from tilewright.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print('tilewright: interrupted', file=sys.stderr)
        sys.exit(130)


if __name__ == '__main__':
    main()
