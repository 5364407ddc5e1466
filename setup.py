"""What pyproject.toml cannot say: the text for an index, and ``syncopate.pth`` in site-packages.

An index shows README.md alone, so its links to other files become their names. Python reads
``syncopate.pth`` at every start (docs/security.md); with ``SYNCOPATE_NO_PTH=1`` it is left out.

Everything else is in pyproject.toml.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def alone(text):
    """Return a page whose links to files beside it are names: ``[a](b.md)`` is ``a (b.md)``."""
    return LINK.sub(lambda link: link[1] if link[1] == link[2] else f"{link[1]} ({link[2]})", text)


class BuildWithStartup(build_py):
    """Puts the file beside the package, in a wheel and in that of an editable install."""

    def run(self):
        """Build the package, and add the file; leave nothing of an earlier build."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if os.environ.get("SYNCOPATE_NO_PTH", "0") != "0":
            return
        folder = self.build_lib
        if self.editable_mode:  # nothing that is built is installed then, but what lies here
            folder = self.get_finalized_command("install").install_lib
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.copy_file("src/syncopate.pth", folder)


setup(
    cmdclass={"build_py": BuildWithStartup},
    long_description=alone(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
