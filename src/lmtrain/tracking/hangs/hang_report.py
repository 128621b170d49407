"""A hang in words: the rank behind the others, its activity and its stack; kept in events/hang<n>.txt."""

import faulthandler
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.tracking.hangs.heartbeat import Beat, late_beats

MOST_TOLD: Final = 8
INNERMOST_FRAMES: Final = 12


def stack_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's stack at the newest hang."""
    return folder / "events" / f"rank{rank}.stack"


def write_stack(folder: Path, rank: int) -> None:
    """Write the innermost frames of this process's main thread, called from another thread."""
    path = stack_path(folder, rank)
    with path.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    main = f"0x{threading.main_thread().ident or 0:016x}"
    threads = re.split(r"^(?:Current thread|Thread) ", path.read_text(), flags=re.MULTILINE)
    frames = next((text.splitlines()[1:] for text in threads if text.startswith(main)), [])
    path.write_text("".join(f"{line}\n" for line in frames[:INNERMOST_FRAMES]))


def read_stack(folder: Path, rank: int, *, since: float) -> str | None:
    """Return a rank's stack written after a moment in unix seconds, None where its process wrote none."""
    path = stack_path(folder, rank)
    try:
        return path.read_text() if path.is_file() and path.stat().st_mtime >= since else None
    except OSError:
        return None


def hang_report(folder: Path, beats: Sequence[Beat], *, num_ranks: int, now: float, stacks_since: float) -> str:
    """Describe a job without progress: late ranks first, with their stacks, then the others' activities."""
    late = late_beats(beats)
    quiet = min((now - beat.since for beat in beats), default=0.0)
    lines = [f"No rank of {num_ranks} has got on for {quiet:.0f} s (hang)."]
    if late:
        behind = ", ".join(f"rank {beat.rank}" for beat in late[:MOST_TOLD]) + (
            ", ..." if len(late) > MOST_TOLD else ""
        )
        lines.append(f"Behind the others: {behind}; they wait for it.")
    elif num_ranks > 1:
        lines.append("All are equally far: each waits for the others' messages. Look at the network.")
    for beat in (late or list(beats))[:MOST_TOLD]:
        lines += _of_rank(folder, beat, now=now, stacks_since=stacks_since)
    waiting = [beat for beat in beats if beat not in late] if late else []
    lines += [f"  rank {beat.rank}: {beat.told(now=now)}" for beat in waiting[:MOST_TOLD]]
    return "\n".join(lines) + "\n"


def _of_rank(folder: Path, beat: Beat, *, now: float, stacks_since: float) -> list[str]:
    head = f"rank {beat.rank} (process {beat.process} on {beat.host}): {beat.told(now=now)}"
    stack = read_stack(folder, beat.rank, since=stacks_since)
    if stack is None:
        silent = f"  its process gives no sign of life for {now - beat.beat_at:.0f} s"
        return [head, f"{silent}: stopped, or in code that holds Python's lock; py-spy dump --pid {beat.process}"]
    return [head, *stack.rstrip().splitlines()]


def write_report(folder: Path, text: str) -> Path:
    """Keep a report in the run's folder."""
    path = folder / "events" / f"hang_{time.strftime('%Y%m%d_%H%M%S')}.txt"
    path.write_text(text)
    return path
