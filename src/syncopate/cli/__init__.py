"""The command line: one file per command; each parses, calls and prints.

``main`` turns every refusal into one clear line on standard error and the exit code of its class.
"""

from __future__ import annotations

import os
import sys

from syncopate.errors import SyncopateError

DEBUG = "SYNCOPATE_DEBUG"
"""Environment variable that shows tracebacks when it is set to anything but 0."""


def main() -> int:
    """Run the command line on ``sys.argv``; return the exit code.

    0 is success, 2 a wrong value, name or file, 1 any other refusal, 130 an interrupt.
    """
    from syncopate.cli.app import app
    from syncopate.cli.common import launcher
    from syncopate.cli.common.ranks import report_error

    launcher.adopt(os.environ)
    try:
        app(prog_name="syncopate")
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else int(finished.code is not None)
    except KeyboardInterrupt:
        return 130
    except SyncopateError as error:
        if os.environ.get(DEBUG, "0") != "0":
            raise
        report_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
