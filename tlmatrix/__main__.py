"""`python -m tlmatrix`: the command line without its script."""

import sys

from tlmatrix.cli import main

sys.exit(main())
