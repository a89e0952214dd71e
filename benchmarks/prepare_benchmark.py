"""Compares `recordmill prepare` with a hand-written loop and with TensorFlow Datasets.

The input folders contain photographs and tiny JPEGs. The images are repeated as hard links, so that each case has
enough images. Each program is a separate process. The programs run alternately, so that load on the machine
affects all programs.

    whole          speed of the whole process, including imports and start
    steady state   images/s without the start: the additional images of a longer run over its additional time

Both speeds are measured in wall time and in the CPU time of the process tree. On a busy machine, ratios of CPU time are
more reliable than ratios of wall time. The speed without start-up time is computed from the difference of two runs, so
it is sensitive to load. For each ratio, the benchmark also prints the minimum and the maximum over all rounds. Memory
is measured in the warm-up round.

Usage: python -m benchmarks.prepare_benchmark --photos FOLDER --tiny FOLDER [--case CASE ...] [--rounds 5]
"""

import argparse
import dataclasses
import errno
import math
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from typing import Callable, Sequence

from benchmarks.measure import Measured, measure

PYTHON = sys.executable
NUM_SHARDS = 16
KINDS = ("seconds", "cpu_seconds")
LOOP, LOOP_2, TFDS, OURS = "loop", "loop, every core", "TensorFlow Datasets (no check)", "recordmill"


@dataclasses.dataclass(frozen=True)
class Case:
    """The configuration of one table.

    Attributes:
        images: `photos` or `tiny`.
        check: The level of image checks in the hand-written loop and in recordmill.
        few: The number of images of the short run, whose time is subtracted from the time of the long run.
        many: The number of images of the long run.
        rival: The baseline for the steady state.
        short: The short side to which images are reduced, as JPEGs of quality 90. 0: images are not resized.
    """

    images: str
    check: str
    few: int
    many: int
    rival: str
    short: int = 0

    def scaled(self, scale: float) -> "Case":
        """Returns this case with `few` and `many` multiplied by `scale`. Each shard needs at least one image."""
        few, many = (max(NUM_SHARDS, round(num * scale)) for num in (self.few, self.many))
        return dataclasses.replace(self, few=few, many=many)


CASES = {
    "photos-none": Case("photos", "none", 1_600, 8_000, LOOP),
    "photos-strict": Case("photos", "strict", 1_600, 8_000, LOOP_2),
    "tiny-strict": Case("tiny", "strict", 10_000, 50_000, LOOP_2),
    "photos-resized": Case("photos", "strict", 800, 4_000, LOOP_2, short=256),
}


def contestants(case: Case) -> dict[str, Callable[[str, str], list[str]]]:
    """Returns a dictionary from program names to functions that return the command line for an input folder and an
    output path. TensorFlow Datasets is omitted if images are resized."""
    rivals = [PYTHON, "-m", "benchmarks.rivals"]
    loop = ["--check", case.check, "--short", str(case.short)]
    smaller = [f"--image_size=short={case.short}", "--image_format=jpeg:90"] if case.short else []
    all_of_them = {
        LOOP: lambda folder, output: [*rivals, "loop", folder, output, *loop],
        LOOP_2: lambda folder, output: [*rivals, "loop", folder, output, *loop, "--processes", str(cores())],
        TFDS: lambda folder, output: [*rivals, "tfds", folder, output],
        OURS: lambda folder, output: [*prepare_command(folder, output, case.check), *smaller],
    }
    return {name: command for name, command in all_of_them.items() if not (case.short and name == TFDS)}


def prepare_command(folder: str, output: str, check: str) -> list[str]:
    command = [PYTHON, "-m", "beam_pipelines", "prepare", "--input", folder, "--output", output]
    return [*command, "--check", check, "--splits", "train=1", "--num_shards", str(NUM_SHARDS)]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def repeat_images(source: str, folder: pathlib.Path, num_images: int) -> str:
    """Creates `num_images` hard links to the images of a folder in 20 class folders, unless the links exist."""
    if folder.exists():
        return str(folder)
    originals = sorted(path for path in pathlib.Path(source).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not originals:
        raise SystemExit(f"{source}: contains no .jpg")
    for index in range(num_images):
        original = originals[index % len(originals)]
        target = folder / f"class{index % len(originals) % 20:02d}" / f"{index:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(original, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copyfile(original, target)  # The folder is on another file system.
    return str(folder)


def run_case(case: Case, source: str, scratch: pathlib.Path, rounds: int) -> None:
    folders = {num: repeat_images(source, scratch / f"{case.images}-{num}", num) for num in (case.few, case.many)}
    runs: dict[tuple[str, int], list[Measured]] = {}
    num_warm_up = 1 if rounds else 0  # Fills the page cache.
    for number in range(num_warm_up + (rounds or 1)):
        for name, command in contestants(case).items():
            for num, folder in folders.items():
                output = scratch / "output"
                runs.setdefault((name, num), []).append(measure(command(folder, str(output)), with_memory=number == 0))
                shutil.rmtree(output, ignore_errors=True)
    peaks = {name: runs[name, case.many][0].peak_bytes / 1e6 for name in contestants(case)}
    print_table(case, {key: measured[num_warm_up:] for key, measured in runs.items()}, peaks)


def print_table(case: Case, runs: dict[tuple[str, int], list[Measured]], peaks: dict[str, float]) -> None:
    names = list(contestants(case))
    smaller = f", short side {case.short}" if case.short else ""
    print(f"\n{case.many:,} {case.images}, --check {case.check}{smaller}, medians of {len(runs[OURS, case.many])} rounds")
    print(f"{'':32}{'whole s':>9}{'CPU s':>9}{'steady images/s':>18}{'images/CPU s':>14}{'peak MB':>9}")
    complete, steady = {}, {}
    for name in names:
        for kind in KINDS:
            complete[name, kind] = [getattr(run, kind) for run in runs[name, case.many]]
            steady[name, kind] = [long - getattr(short, kind) for long, short in zip(complete[name, kind], runs[name, case.few])]
        times = "".join(f"{statistics.median(complete[name, kind]):9.2f}" for kind in KINDS)
        rates = [_divide(case.many - case.few, statistics.median(steady[name, kind])) for kind in KINDS]
        print(f"{name:32}{times}{rates[0]:18,.0f}{rates[1]:14,.0f}{peaks[name]:9.0f}")
    _print_ratio(f"steady state, recordmill / {case.rival}", steady, case.rival)
    if TFDS in names:
        _print_ratio(f"whole process, {TFDS} / recordmill", complete, TFDS)


def _print_ratio(title: str, seconds: dict[tuple[str, str], list[float]], rival: str) -> None:
    """Prints the ratio of the median times of a program and `recordmill`, and the range of the ratios."""
    reported = []
    for kind, measure_of in zip(KINDS, ("by wall time", "by CPU time")):
        theirs, ours = seconds[rival, kind], seconds[OURS, kind]
        rounds = sorted(map(_divide, theirs, ours))
        reported.append(f"{_divide(statistics.median(theirs), statistics.median(ours)):.2f} {measure_of} ({rounds[0]:.2f} to {rounds[-1]:.2f})")
    print(f"{title}: {', '.join(reported)}", flush=True)


def _divide(number: float, seconds: float) -> float:
    """Returns the rate, or NaN if the measured time difference is not positive."""
    return number / seconds if seconds > 0 else math.nan


def run_memory(source: str, scratch: pathlib.Path, scale: float) -> None:
    """Prints the peak memory of the process tree for 8,000 images and for 80,000 images, multiplied by `scale`."""
    print("\npeak memory of recordmill, --check strict, all processes: RSS summed, and with shared pages counted once (PSS)")
    for num in dict.fromkeys(max(NUM_SHARDS, round(num * scale)) for num in (8_000, 80_000)):  # Equal numbers run once.
        folder = repeat_images(source, scratch / f"photos-{num}", num)
        run = measure(prepare_command(folder, str(scratch / "output"), "strict"), with_shared=True)
        peaks = f"{run.peak_bytes / 1e6:6.0f} MB {run.peak_shared_bytes / 1e6:6.0f} MB"
        print(f"{num:>7,} photos {peaks} {run.seconds:7.1f} s", flush=True)
        shutil.rmtree(scratch / "output")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", metavar="FOLDER", help="Folder with some hundred photographs.")
    parser.add_argument("--tiny", metavar="FOLDER", help="Folder with some thousand tiny JPEGs.")
    parser.add_argument("--case", action="append", choices=[*CASES, "memory"], help="Case to run. Default: all cases for which a folder is given.")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds after the warm-up. 0 runs each contestant once without warm-up. Default: 5.")
    parser.add_argument("--scale", type=float, default=1, help="Factor of the numbers of images, for a trial run. Default: 1.")
    parser.add_argument("--scratch", help="Folder for links and output. Use the file system of the images, so that hard links work.")
    options = parser.parse_args(arguments)
    sources = {"photos": options.photos, "tiny": options.tiny}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        for name in options.case or [*CASES, "memory"]:
            source = sources["photos" if name == "memory" else CASES[name].images]
            if source is None:
                continue
            if name == "memory":
                run_memory(source, pathlib.Path(scratch), options.scale)
            else:
                run_case(CASES[name].scaled(options.scale), source, pathlib.Path(scratch), options.rounds)


if __name__ == "__main__":
    main()
