"""Train a language model: `python train.py [GROUP=OPTION ...] [KEY=VALUE ...]`; the same as `lmtrain train`."""

import sys

from lmtrain.cli.main import serve

if __name__ == "__main__":
    sys.exit(serve("train", sys.argv[1:], program="python train.py"))
