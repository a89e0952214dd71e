"""Counts of work done, shared by every process of a run through small files, and shown on a terminal.

Metrics of the local runner, and of Flink, arrive only at the end of a stage; so each worker process keeps a file with its own counts, or
an object that it writes again every few seconds. Where it runs a step of Beam's it adds to Beam's metrics too, which engines show.
"""

import contextlib
import os
import pathlib
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
TELL_SECONDS = 30.0
JSON_SECONDS = 1.0


class Counts(NamedTuple):
    """Work done so far.

    Attributes:
        listed: The number of inputs that were listed.
        listing_done: 1 once all inputs are listed.
        written: The number of inputs that were written, or refused by the writer.
        dead_letters: The number of inputs among these that the writer refused.
        analyzed: The number of examples that a phase of an analysis has read.
        written_bytes: The size in bytes of the records that were written.
        retries: The number of requests to object stores that were made again.
        hashed: The number of images that were read and hashed before the plan.
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
        """Adds other counts, field by field."""
        return Counts(*map(sum, zip(self, other)))


class Stage(NamedTuple):
    """One bar: its name, what is done, of how much where that is known, and a note."""

    name: str
    done: int
    total: int | None
    note: str = ""


_COUNTS = struct.Struct(f"<{len(Counts._fields)}Q")


# Progress directory -> this process's file in it, and what it says.
_files: dict[str, tuple[pathlib.Path, Counts]] = {}
# The same for objects, and when it was last written.
_objects: dict[str, tuple[str, Counts, float]] = {}
_lock = threading.Lock()
# What the command has heard of its job from the engine.
_num_restarts = 0
# One of `log.DISPLAYS`.
_display = "auto"


def set_display(name: str) -> None:
    """Sets how progress is shown from now on, one of `log.DISPLAYS`."""
    global _display
    _display = name


def count_restart() -> int:
    """Notes that the engine has started the job of this command again, and says how often it has."""
    global _num_restarts
    _num_restarts += 1
    return _num_restarts


def count(directory: str, details: Mapping[str, int] = {}, **counts: int) -> None:
    """Adds to the counts of this process, which are shown as progress. A disk or a store that fails costs counts, never the run.

    Args:
        directory: The progress directory of the run; empty: nobody looks there.
        details: Counts that only Beam's metrics tell: dead letters by reason, milliseconds of a stage.
        **counts: Counts to add, by the fields of `Counts`.
    """
    counts["retries"] = take_retries()
    count_in_beam({**counts, **details})
    if not directory:
        return
    with _lock, contextlib.suppress(OSError):
        (_count_in_object if is_remote(directory) else _count_in_file)(directory, Counts(**counts))


def count_in_beam(counts: Mapping[str, int]) -> None:
    """Adds to the counters of the step of Beam's that this thread runs; a light process runs none, and has no Beam."""
    if beam_metrics := sys.modules.get("apache_beam.metrics"):
        for name, number in counts.items():
            if number:
                beam_metrics.Metrics.counter("recordmill", name).inc(number)


class Stopwatch:
    """Measures the milliseconds of a stage, for `count`."""

    def __init__(self, stage: str) -> None:
        self._name, self._since = f"{stage}_msecs", time.monotonic()

    def lap(self) -> dict[str, int]:
        """The milliseconds since the last lap, by the name of their count."""
        msecs = int(1000 * (time.monotonic() - self._since))
        self._since += msecs / 1000  # what is left of one is of the next
        return {self._name: msecs}


def _count_in_file(directory: str, counts: Counts) -> None:
    path, total = _files.get(directory, (None, Counts()))
    if path is None or not path.exists():  # the first of its run
        path, total = pathlib.Path(directory, f"{os.getpid()}-{uuid.uuid4().hex}"), Counts()
        path.parent.mkdir(exist_ok=True)
    total = total.plus(counts)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        _files[directory] = path, total
        os.pwrite(descriptor, _COUNTS.pack(*total), 0)  # over the old counts: a reader never sees half of them
    finally:
        os.close(descriptor)


def _count_in_object(directory: str, counts: Counts) -> None:
    path, total, written = _objects.get(directory) or (f"{directory}/{uuid.uuid4().hex}", Counts(), -OBJECT_SECONDS)
    total, now = total.plus(counts), time.monotonic()
    if now - written >= OBJECT_SECONDS:
        files_at(path).write(path, _COUNTS.pack(*total))
        written = now
    _objects[directory] = path, total, written


def read_counts(directory: str) -> Counts:
    """The sum of the counts of all processes; a bundle that was tried twice counts twice."""
    total = Counts()
    for data in _read_all(directory):
        if len(data) == _COUNTS.size:
            total = total.plus(Counts(*_COUNTS.unpack(data)))
    return total


def _read_all(directory: str) -> Iterator[bytes]:
    files = files_at(directory)
    try:
        names = [name for name, _ in files.list(directory)] if is_remote(directory) else os.listdir(directory)
    except OSError:  # not there yet, or not any more
        return
    for name in names:
        try:
            yield files.read(f"{directory}/{name}")
        except OSError:  # the run has just ended
            continue


def stage_of(directory: str) -> str:
    """How far a run is, by what its workers have counted: list, plan, write, publish."""
    counts = read_counts(directory)
    if not counts.listing_done:
        return "list"
    return "publish" if counts.written >= counts.listed else "write" if counts.written else "plan"


class ProgressDisplay:
    """Shows how far a run is, while it lasts: bars on a terminal; elsewhere, and in a log, a line each half minute; or lines for programs.

    Args:
        directory: The progress directory of the run.
        stages: Makes the bars that are shown of what was counted; None: the bars of `prepare`.
    """

    def __init__(self, directory: str, stages: Callable[[Counts], list[Stage]] | None = None) -> None:
        self._directory = directory
        self._stages = stages or _stages
        self._interval = OBJECT_SECONDS if is_remote(directory) else 0.2
        self._stop = threading.Event()

    def __enter__(self) -> "ProgressDisplay":
        global _num_restarts
        _num_restarts = 0
        show = self._tell
        if _display == "json":
            show = self._tell_programs
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

    def _tell(self) -> None:
        began, last = time.monotonic(), _Look(Counts(), [])
        while not self._stop.wait(TELL_SECONDS):
            now = self._look()
            told = []
            for stage, (rate, seconds_left) in zip(now.stages, now.rates(last)):
                total = f" of {stage.total:,}" if stage.total is not None else ""
                left = f", {_format_seconds(seconds_left)} left" if seconds_left is not None else ""
                told.append(f"{stage.name} {stage.done:,}{total} ({rate:,.0f}/s{left}){stage.note and f', {stage.note}'}")
            if now.counts.written_bytes:
                told.append(f"{now.bytes_per_second(last) / 1e6:,.1f} MB/s")
            if now.counts.retries:
                told.append(f"{now.counts.retries:,} requests made again")
            if _num_restarts:
                told.append(f"job restarted {_num_restarts} time{'s' * (_num_restarts > 1)}")
            last = now
            log.say(f"{_format_seconds(now.seconds - began)}: {'; '.join(told)}", restarts=_num_restarts, **now.counts._asdict())

    def _tell_programs(self) -> None:
        last, is_over = _Look(Counts(), []), False
        while not is_over:
            is_over = self._stop.wait(JSON_SECONDS)  # the last line is of the end
            now = self._look()
            if sum(now.counts) < sum(last.counts):  # what was counted went with the working directory
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
            log.say_progress(stages=stages, **counts, bytes_per_second=round(now.bytes_per_second(last)), restarts=_num_restarts)
            last = now

    def _look(self) -> "_Look":
        counts = read_counts(self._directory)
        return _Look(counts, self._stages(counts))

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
        # What a command prints meanwhile goes where it would without bars: above them only where both are on the terminal.
        with Progress(*columns, console=console, transient=True, refresh_per_second=5, redirect_stdout=os.isatty(1)) as progress:
            bars = [progress.add_task(stage.name, total=None, note="") for stage in self._stages(Counts())]
            first: _Look | None = None
            while not self._stop.wait(self._interval):
                now = self._look()
                for bar, stage in zip(bars, now.stages):
                    is_written = first and stage.note and now.counts.written_bytes
                    rate = f"{now.bytes_per_second(first) / 1e6:,.0f} MB/s, " if is_written else ""
                    progress.update(bar, completed=stage.done, total=stage.total, note=f"{rate}{stage.note}")
                first = first or (now if now.counts.written_bytes else None)


class _Look:
    """What was counted until now."""

    def __init__(self, counts: Counts, stages: list[Stage]) -> None:
        self.counts, self.stages, self.seconds = counts, stages, time.monotonic()

    def rates(self, last: "_Look") -> Iterator[tuple[float, float | None]]:
        """How much of each stage was done a second since another look, and in how many seconds it ends if that goes on."""
        before = {stage.name: stage.done for stage in last.stages}
        for stage in self.stages:
            rate = (stage.done - before.get(stage.name, 0)) / max(self.seconds - last.seconds, 1e-3)
            yield rate, (stage.total - stage.done) / rate if stage.total is not None and rate else None

    def bytes_per_second(self, last: "_Look") -> float:
        """The bytes of records that were written a second since another look."""
        return (self.counts.written_bytes - last.counts.written_bytes) / max(self.seconds - last.seconds, 1e-3)


def _stages(counts: Counts) -> list[Stage]:
    num_inputs = counts.listed if counts.listing_done else None
    return [
        Stage("listed", counts.listed, num_inputs),
        Stage("written", counts.written, num_inputs, f"{counts.dead_letters} dead letters"),
    ]


def stages_with_hashing(counts: Counts) -> list[Stage]:
    """Makes the bars of a run of `prepare` that looks for duplicates."""
    listed, *others = _stages(counts)
    return [listed, Stage("hashed", counts.hashed, listed.total), *others]


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
