"""`python -m tilewright_lab VERB`: the command line with the lab's verbs, installed or not."""

from importlib.metadata import entry_points

from tilewright.cli.main import COMMANDS, app, main
from tilewright_lab.cli.commands import register

if __name__ == '__main__':
    if not any(found.load() is register for found in entry_points(group=COMMANDS)):
        register(app)
    main()
