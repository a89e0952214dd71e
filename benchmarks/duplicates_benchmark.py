"""Measures the cost of `--duplicates group` and of reading each file twice, relative to `--check strict`.

The inputs are tiny JPEGs of 32 by 32 pixels without duplicates, and several hard links to each photograph. The three
programs below run alternately. The result of a run is the median over several rounds. The last line shows the lowest
increase of all runs. All times include the start and the end of processes.

    strict          the baseline
    group           with --duplicates group
    read again      only opens, reads and closes each file, on all cores: the minimum cost of a second read

Usage: python -m benchmarks.duplicates_benchmark [--photos FOLDER] [--num_photos 2000] [--num_tiny 60000]
    [--rounds 5] [--runs 3]
"""

import argparse
import io
import multiprocessing
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np
from PIL import Image

from benchmarks.measure import measure
from benchmarks.prepare_benchmark import KINDS, cores, prepare_command, repeat_images

_SIDE = 32


def make_tiny(folder: pathlib.Path, num_images: int) -> str:
    """Writes JPEGs of soft noise, each about a kilobyte, into 20 class folders and returns the folder."""
    random = np.random.default_rng(0)
    for index in range(num_images):
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        fine = random.integers(0, 32, (_SIDE, _SIDE, 3), dtype=np.uint8)
        pixels = np.asarray(coarse.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)) // 8 * 7 + fine
        path = folder / f"class{index % 20:02d}" / f"{index:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "JPEG", quality=85)
        path.write_bytes(data.getvalue())
    return str(folder)


def read_files(paths: list[str]) -> float:
    """Reads the given files and returns the CPU time in seconds."""
    start = time.process_time()
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        while os.read(file, 1 << 20):
            pass
        os.close(file)
    return time.process_time() - start


def read_again(folder: str) -> tuple[float, float]:
    """Reads all files of a folder on all cores and returns the wall time and the CPU time in seconds."""
    paths = sorted(str(path) for path in pathlib.Path(folder).rglob("*.jpg"))
    num = cores()
    with multiprocessing.get_context("fork").Pool(num) as pool:
        pool.map(len, [[]] * num)  # Waits until all processes have started.
        start = time.perf_counter()
        cpu_seconds = sum(pool.map(read_files, [paths[index::num] for index in range(num)], chunksize=1))
        return time.perf_counter() - start, cpu_seconds


def run(folder: str, scratch: pathlib.Path, rounds: int) -> dict[str, list[float]]:
    """Returns the median wall time and the median CPU time of each program in seconds."""
    output, actual = scratch / "output", {"strict": [], "group": [], "read again": []}
    for number in range(rounds + 1):
        for name, options in (("strict", []), ("group", ["--duplicates=group"])):
            measured = measure([*prepare_command(folder, str(output), "strict"), *options], with_memory=False)
            shutil.rmtree(output)
            actual[name].append([getattr(measured, kind) for kind in KINDS])
        actual["read again"].append(read_again(folder))
    # The first round is a warm-up.
    return {name: [statistics.median(of_kind) for of_kind in zip(*(turns[1:] or turns))] for name, turns in actual.items()}


def compare(name: str, folder: str, scratch: pathlib.Path, rounds: int, runs: int) -> None:
    """Prints the measurements for the images of one folder."""
    print(f"{name:<14}{'':<6}{'strict':>9}{'group':>9}{'more':>8}{'read again':>12}{'more':>8}", flush=True)
    lowest = []
    for _ in range(runs):
        medians = run(folder, scratch, rounds)
        for location, kind in enumerate(("clock", "CPU")):
            strict, group, again = (medians[item][location] for item in ("strict", "group", "read again"))
            lowest.append((kind, group / strict - 1))
            print(f"{'':<14}{kind:<6}{strict:8.2f}s{group:8.2f}s{group / strict - 1:+8.0%}{again:11.2f}s{again / strict:+8.0%}", flush=True)
    least = ", ".join(f"{min(more for of, more in lowest if of == kind):+.0%} by {kind}" for kind in ("clock", "CPU"))
    print(f"{'':<14}lowest of {runs}: {least}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", metavar="FOLDER", help="Folder with some hundred photographs.")
    parser.add_argument("--num_photos", type=int, default=2000, help="Number of photographs. Default: 2000.")
    parser.add_argument("--num_tiny", type=int, default=60_000, help="Number of tiny images, or 0 for none. Default: 60000.")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds per run. Default: 5.")
    parser.add_argument("--runs", type=int, default=3, help="Number of runs. Default: 3.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        if arguments.num_tiny:
            made = make_tiny(folder / "tiny", arguments.num_tiny)
            compare(f"{arguments.num_tiny:,} tiny", made, folder, arguments.rounds, arguments.runs)
        if arguments.photos:
            made = repeat_images(arguments.photos, folder / "photos", arguments.num_photos)
            compare(f"{arguments.num_photos:,} photos", made, folder, arguments.rounds, arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
