"""`python -m lmtrain.cli COMMAND ...`."""

import sys

from lmtrain.cli.main import main

sys.exit(main())
