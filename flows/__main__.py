"""``python -m flows``: see ``flows.command``."""

import sys

from flows.command import main

if __name__ == "__main__":
    sys.exit(main())
