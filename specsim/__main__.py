"""`python -m specsim` is the command `specsim`."""

from __future__ import annotations

import sys

from specsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
