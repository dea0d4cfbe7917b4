"""``python -m layerzero`` runs ``lz``."""

import sys

from layerzero.cli import main

if __name__ == "__main__":
    sys.exit(main())
