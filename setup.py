"""Puts constraints.txt into the wheel: `tilewright doctor` compares installed versions with it."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConstraints(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            where = Path(self.build_lib) / 'tilewright' / 'constraints.txt'
            self.copy_file('constraints.txt', str(where))


setup(cmdclass={'build_py': BuildWithConstraints})
