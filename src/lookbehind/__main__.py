"""``python -m lookbehind`` and ``torchrun -m lookbehind``: the command line."""

import sys

from lookbehind.cli import main

sys.exit(main())
