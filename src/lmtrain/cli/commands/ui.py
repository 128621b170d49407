"""`lmtrain ui`: MLflow on the runs of this project."""

from pathlib import Path

from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.mlflow.ui import ui as serve_ui


def ui(words: list[str], *, program: str = "lmtrain ui") -> int:
    """Serve MLflow on a folder of runs until interrupted."""
    parser = FlagParser(prog=program, description="Open MLflow on the runs of this project.")
    parser.add_argument("root", nargs="?", type=Path, default=Path("runs"), help="folder of all runs (runs)")
    parser.add_argument("--host", default="127.0.0.1", help="one of this machine's own addresses (127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="port to listen on (5000)")
    arguments = parser.parse_args(words)
    serve_ui(arguments.root.absolute(), host=arguments.host, port=arguments.port)
    return 0
