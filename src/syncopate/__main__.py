"""``python -m syncopate``, and ``torchrun -m syncopate``: the command line."""

import sys

from syncopate.cli import main

if __name__ == "__main__":
    sys.exit(main())
