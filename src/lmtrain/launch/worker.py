"""Be one rank of a job, or one run of a sweep: `python -m lmtrain.launch.worker`, as `local.worker_command` has it.

It reads the saved config's path and calls a function given by name, and so the launch layer imports no composition.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

from lmtrain.errors import EXIT_INTERRUPTED, LMTRAIN_ERRORS
from lmtrain.tracking.redaction import redact_text
from lmtrain.training.lifetime import die_with_parent

LEAVE_SECONDS = 5.0


def main() -> int:
    """Run the entry point on this rank and return its exit code."""
    parser = argparse.ArgumentParser(prog="lmtrain.launch.worker")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--entry-point", required=True)
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    code = run_guarded(lambda: call(arguments.entry_point, arguments.config), os.environ.get("TORCHELASTIC_ERROR_FILE"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # how this rank ends is settled
    if code != 0:
        _end_within(LEAVE_SECONDS, code)
    if "torch.distributed" in sys.modules:
        from lmtrain.launch.process_group import leave  # imports torch: only where the entry point did

        leave()
    return code


def call(entry_point: str, config_path: Path) -> int:
    """Import "module:function", call it with the config's path, and return its exit code; None means 0."""
    module_name, _, function_name = entry_point.partition(":")
    function = cast("Callable[[Path], int | None]", getattr(importlib.import_module(module_name), function_name))
    return function(config_path) or 0


def run_guarded(body: Callable[[], int], error_file: str | None) -> int:
    """Call body and turn its errors into an exit code, a message on stderr and a line in error_file."""
    try:
        return body()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{redact_text(error.code)}\n")
        _record(error_file, str(error.code), code)
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except LMTRAIN_ERRORS as error:
        sys.stderr.write(f"{redact_text(str(error))}\n")
        _record(error_file, str(error), error.exit_code, kind=type(error).__name__)
        return error.exit_code
    except BaseException as error:  # noqa: BLE001  the last place to report this rank's end
        sys.stderr.write(redact_text(traceback.format_exc()))
        _record(error_file, f"{type(error).__name__}: {error}", 1, kind=type(error).__name__)
        return 1


def _record(error_file: str | None, message: str, code: int, *, kind: str = "SystemExit") -> None:
    # The names message and timestamp are those of torchrun's own error files.
    if error_file and code != 0:
        row = {
            "message": redact_text(message),
            "timestamp": int(time.time()),
            "time": time.monotonic(),
            "exit_code": code,
            "kind": kind,
        }
        Path(error_file).write_text(json.dumps(row))


def _end_within(seconds: float, code: int) -> None:
    # A collective's wait for a dead rank, or a loader worker, can hold up Python's own shutdown for ever.
    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
