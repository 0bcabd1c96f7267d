"""`python -m tlmatrix`: the command line where its script is not on the path."""

import sys

from tlmatrix.cli import main

sys.exit(main())
