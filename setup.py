"""What pyproject.toml cannot say: ``syncopate.pth`` goes to site-packages, where Python reads it.

Everything else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithStartup(build_py):
    """Puts the file beside the package, in a wheel and in that of an editable install."""

    def run(self):
        """Build the package, and add the file."""
        super().run()
        folder = self.build_lib
        if self.editable_mode:  # nothing that is built is installed then, but what lies here
            folder = self.get_finalized_command("install").install_lib
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.copy_file("src/syncopate.pth", folder)


setup(cmdclass={"build_py": BuildWithStartup})
