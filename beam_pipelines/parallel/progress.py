"""Collects the progress counts of all processes of a run and shows the progress on a terminal.

Beam's metrics are not enough, because the local runner and Flink report them only at the end of a stage. Therefore,
each process writes its progress counts to a small file. In an object store, each process overwrites its file every few
seconds. In a Beam step, the progress counts are also added to Beam's metrics, which engines display.
"""

import contextlib
import os
import struct
import sys
import threading
import time
import uuid
from typing import Callable, Iterator, Mapping, NamedTuple

from beam_pipelines import log
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.object_stores.retries import take_retries

OBJECT_SECONDS = 5.0
LOG_SECONDS = 30.0
JSON_SECONDS = 1.0


class Counts(NamedTuple):
    """Counts of completed work.

    Attributes:
        listed: The number of listed inputs.
        listing_done: 1 if all inputs are listed.
        written: The number of inputs that were written or rejected.
        dead_letters: The number of inputs that were rejected while writing.
        analyzed: The number of examples that the current and all earlier phases of an analysis have read.
        written_bytes: The size of the written records, in bytes.
        retries: The number of repeated requests to object stores.
        hashed: The number of images that were hashed to search for duplicates.
    """

    listed: int = 0
    listing_done: int = 0
    written: int = 0
    dead_letters: int = 0
    analyzed: int = 0
    written_bytes: int = 0
    retries: int = 0
    hashed: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Returns the sum of two `Counts`."""
        return Counts(*map(sum, zip(self, other)))


class Stage(NamedTuple):
    """The contents of a progress bar: a name, the completed amount, the total amount (or None) and a note."""

    name: str
    done: int
    total: int | None
    note: str = ""


_COUNTS = struct.Struct(f"<{len(Counts._fields)}Q")


# A mapping from progress directory to the path of this process's counts, the counts, and the time of the last write.
_counted: dict[str, tuple[str, Counts, float]] = {}
_lock = threading.Lock()
# The number of job restarts that the engine has reported.
_num_restarts = 0
# One of `log.DISPLAYS`.
_display = "auto"


def set_display(name: str) -> None:
    """Sets the format of the progress display, one of `log.DISPLAYS`."""
    global _display
    _display = name


def count_restart() -> int:
    """Counts a restart of the job and returns the number of restarts."""
    global _num_restarts
    _num_restarts += 1
    return _num_restarts


def count(directory: str, details: Mapping[str, int] = {}, **counts: int) -> None:
    """Adds numbers to the progress counts of this process. Disk and store errors are ignored.

    Args:
        directory: The progress directory of the run, or an empty string to disable progress counts.
        details: Counts for Beam's metrics only, such as dead letters by reason or milliseconds of a stage.
        **counts: The numbers to add, named after the fields of `Counts`.
    """
    counts["retries"] = take_retries()
    count_in_beam({**counts, **details})
    if not directory:
        return
    with _lock, contextlib.suppress(OSError):
        _write_counts(directory, Counts(**counts))


def count_in_beam(counts: Mapping[str, int]) -> None:
    """Adds numbers to the metrics of the current Beam step. In worker processes without Beam, does nothing."""
    if beam_metrics := sys.modules.get("apache_beam.metrics"):
        for name, number in counts.items():
            if number:
                beam_metrics.Metrics.counter("recordmill", name).inc(number)


class Stopwatch:
    """Measures the time that a process spends in a stage."""

    def __init__(self, stage: str) -> None:
        self._name, self._since = f"{stage}_msecs", time.monotonic()

    def lap(self) -> dict[str, int]:
        """Returns a dictionary that maps the name of the count to the milliseconds since the last call."""
        msecs = int(1000 * (time.monotonic() - self._since))
        self._since += msecs / 1000  # Carry the remainder over to the next call.
        return {self._name: msecs}


def _write_counts(directory: str, counts: Counts) -> None:
    path, total, written = _counted.get(directory) or (f"{directory}/{os.getpid()}-{uuid.uuid4().hex}", Counts(), -OBJECT_SECONDS)
    total, now = total.plus(counts), time.monotonic()
    if not is_remote(directory):
        if directory not in _counted or not os.path.exists(path):  # The first count of the run.
            total = counts
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            _counted[directory] = path, total, now
            os.pwrite(descriptor, _COUNTS.pack(*total), 0)  # Overwrite in place, so that a reader never sees a partial file.
        finally:
            os.close(descriptor)
    elif now - written >= OBJECT_SECONDS:
        files_at(path).write(path, _COUNTS.pack(*total))
        written = now
    _counted[directory] = path, total, written


def read_counts(directory: str) -> Counts:
    """Returns the sum of the progress counts of all processes. Retried bundles are counted twice."""
    total = Counts()
    for data in _read_all(directory):
        if len(data) == _COUNTS.size:
            total = total.plus(Counts(*_COUNTS.unpack(data)))
    return total


def _read_all(directory: str) -> Iterator[bytes]:
    files = files_at(directory)
    try:
        names = [name for name, _ in files.list(directory)] if is_remote(directory) else os.listdir(directory)
    except OSError:  # The directory does not exist yet, or not any more.
        return
    for name in names:
        try:
            yield files.read(f"{directory}/{name}")
        except OSError:  # The run has just ended.
            continue


def stage_of(directory: str) -> str:
    """Returns the current stage of a run: list, plan, write or publish."""
    counts = read_counts(directory)
    if not counts.listing_done:
        return "list"
    return "publish" if counts.written >= counts.listed else "write" if counts.written else "plan"


class ProgressDisplay:
    """Shows the progress of a run as progress bars, as a log line every half minute, or as JSON lines.

    Args:
        directory: The progress directory of the run.
        stages: A function that converts progress counts to progress bars. None shows the bars of `prepare`.
    """

    def __init__(self, directory: str, stages: Callable[[Counts], list[Stage]] | None = None) -> None:
        self._directory = directory
        self._stages = stages or _stages
        self._interval = OBJECT_SECONDS if is_remote(directory) else 0.2
        self._stop = threading.Event()

    def __enter__(self) -> "ProgressDisplay":
        global _num_restarts
        _num_restarts = 0
        show = self._log
        if _display == "json":
            show = self._log_programs
        elif _display == "none" or log.is_quiet():
            show = self._stop.wait
        elif os.isatty(2) and not log.is_kept():
            show = self._show
        self._thread = threading.Thread(target=show, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        self._thread.join()

    def _log(self) -> None:
        began, last = time.monotonic(), _Snapshot(Counts(), [])
        while not self._stop.wait(LOG_SECONDS):
            now = self._take_snapshot()
            parts = []
            for stage, (rate, seconds_left) in zip(now.stages, now.rates(last)):
                total = f" of {stage.total:,}" if stage.total is not None else ""
                left = f", {_format_seconds(seconds_left)} left" if seconds_left is not None else ""
                parts.append(f"{stage.name} {stage.done:,}{total} ({rate:,.0f}/s{left}){stage.note and f', {stage.note}'}")
            if now.counts.written_bytes:
                parts.append(f"{now.bytes_per_second(last) / 1e6:,.1f} MB/s")
            if now.counts.retries:
                parts.append(f"{now.counts.retries:,} retried requests")
            if _num_restarts:
                parts.append(f"job restarts: {_num_restarts}")
            last = now
            log.print_message(f"{_format_seconds(now.seconds - began)}: {'; '.join(parts)}", restarts=_num_restarts, **now.counts._asdict())

    def _log_programs(self) -> None:
        last, is_over = _Snapshot(Counts(), []), False
        while not is_over:
            is_over = self._stop.wait(JSON_SECONDS)  # The last line shows the end of the run.
            now = self._take_snapshot()
            if sum(now.counts) < sum(last.counts):  # The working directory has already been deleted, with its counts.
                return
            stages = [
                {
                    "name": stage.name,
                    "done": stage.done,
                    "total": stage.total,
                    "per_second": round(rate, 1),
                    "seconds_left": left and round(left, 1),
                }
                for stage, (rate, left) in zip(now.stages, now.rates(last))
            ]
            counts = {name: getattr(now.counts, name) for name in ("dead_letters", "written_bytes", "retries")}
            log.log_progress(stages=stages, **counts, bytes_per_second=round(now.bytes_per_second(last)), restarts=_num_restarts)
            last = now

    def _take_snapshot(self) -> "_Snapshot":
        counts = read_counts(self._directory)
        return _Snapshot(counts, self._stages(counts))

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = [
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ]
        console = Console(stderr=True)
        # Output of the command is shown above the bars only if both are on the terminal.
        with Progress(*columns, console=console, transient=True, refresh_per_second=5, redirect_stdout=os.isatty(1)) as progress:
            bars = [progress.add_task(stage.name, total=None, note="") for stage in self._stages(Counts())]
            first: _Snapshot | None = None
            while not self._stop.wait(self._interval):
                now = self._take_snapshot()
                for bar, stage in zip(bars, now.stages):
                    is_written = first and stage.note and now.counts.written_bytes
                    rate = f"{now.bytes_per_second(first) / 1e6:,.0f} MB/s, " if is_written else ""
                    progress.update(bar, completed=stage.done, total=stage.total, note=f"{rate}{stage.note}")
                first = first or (now if now.counts.written_bytes else None)


class _Snapshot:
    """The progress counts at one time."""

    def __init__(self, counts: Counts, stages: list[Stage]) -> None:
        self.counts, self.stages, self.seconds = counts, stages, time.monotonic()

    def rates(self, last: "_Snapshot") -> Iterator[tuple[float, float | None]]:
        """Yields, for each stage, the speed since an earlier snapshot and the estimated remaining time in seconds."""
        before = {stage.name: stage.done for stage in last.stages}
        for stage in self.stages:
            rate = (stage.done - before.get(stage.name, 0)) / max(self.seconds - last.seconds, 1e-3)
            yield rate, (stage.total - stage.done) / rate if stage.total is not None and rate else None

    def bytes_per_second(self, last: "_Snapshot") -> float:
        """Returns the number of bytes written per second since an earlier snapshot."""
        return (self.counts.written_bytes - last.counts.written_bytes) / max(self.seconds - last.seconds, 1e-3)


def _stages(counts: Counts) -> list[Stage]:
    num_inputs = counts.listed if counts.listing_done else None
    return [
        Stage("listed", counts.listed, num_inputs),
        Stage("written", counts.written, num_inputs, f"{counts.dead_letters} dead letters"),
    ]


def stages_with_hashing(counts: Counts) -> list[Stage]:
    """Returns the progress bars of a `prepare` run that searches for duplicates."""
    listed, *others = _stages(counts)
    return [listed, Stage("hashed", counts.hashed, listed.total), *others]


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
