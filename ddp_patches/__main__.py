"""``python -m ddp_patches``: the command line, where the console script is not on PATH."""

import sys

from ddp_patches.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
