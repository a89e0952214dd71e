"""Measures how `tf_input` reads from a slow mount, from an object store, from many small shards, and without decoding.

The input folders contain class folders of photographs and of tiny JPEGs. The photographs are repeated as hard links.
The two readers of a case run alternately in this process. The speed ratio of a run is the median over all measurements.
The last line shows the lowest ratio of all runs. The baseline is a warm local disk.

    mount           photographs at size 224 from a disk with 50 ms per read / from the local disk
    object-store    the same in the first epoch, from a server on loopback that answers after 30 ms / from the local
                    disk; the server has a separate core, and both readers use the other cores
    shards-512, shards-4096     records of 1 KB in 512 or 4096 shards / in 16 shards
    interleaved-4096            the same, both read by interleaved `TFRecordDataset`s
    photos-alone, tiny-alone    records without decoding / interleaved `TFRecordDataset`s

Usage: python -m benchmarks.storage_benchmark --photos FOLDER --tiny FOLDER [--case CASE ...] [--runs 3]
    [--turns 5] [--seconds 5]
"""

import argparse
import contextlib
import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from benchmarks.measure import rest
from benchmarks.read_inputs import Inputs

_VIEWS = {"batch_size": 128, "image_size": 224, "augment": True, "seed": 0}
_MANY_SHARDS_CASES = ("shards", "interleaved")
REACH = {
    "mount": 0.95,
    "object-store": 0.95,
    "shards-512": 0.9,
    "shards-4096": 0.9,
    "interleaved-4096": None,  # No goal, because both readers are plain tf.data.
    "photos-alone": 0.45,
    "tiny-alone": 0.8,
}


def batches(dataset: Any, **options: Any) -> Iterator[Any]:
    return iter(dataset.batches("train", **options).repeat())


def records(dataset: Any, **options: Any) -> Iterator[Any]:
    """Returns batches of serialized examples."""
    import tf_input
    from tf_input.epochs.iterator_state import IteratorState
    from tf_input.pipeline import input_pipeline

    reader = dataset.split_reader("train")
    plan = reader.plan(reader.resolve(tf_input.ReadConfig(**options)))
    return iter(input_pipeline.read_batches(plan, lambda inputs, seed, rows: inputs[0], IteratorState(plan.num_batches)).repeat())


def interleaved(directory: pathlib.Path) -> Iterator[Any]:
    """Returns batches of records that are read with the usual code for plain TFRecords."""
    import tensorflow as tf

    files = sorted(map(str, directory.glob("*.tfrecord-*")))
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=16, block_length=32, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(128).prefetch(tf.data.AUTOTUNE))


@contextlib.contextmanager
def slow_mount(dataset: Any, delay_s: float) -> Iterator[Any]:
    """Context manager that delays each read of a dataset's files."""
    files = dataset.files.store.files

    def delayed(read: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_read(*location: Any) -> Any:
            time.sleep(delay_s)
            return read(*location)

        return wait_and_read

    files.read_range, files.read_into = delayed(files.read_range), delayed(files.read_into)
    try:
        yield dataset
    finally:
        del files.read_range, files.read_into


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Context manager that restricts all threads and future child processes of this process to the given cores."""
    before = os.sched_getaffinity(0)
    keep_to(cores)
    try:
        yield
    finally:
        keep_to(before)


def keep_to(cores: Iterable[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # The thread has just ended.
            os.sched_setaffinity(int(thread), cores)


def write_records(folder: pathlib.Path, num_records: int, num_shards: int) -> pathlib.Path:
    """Prepares a dataset of small images as raw pixels with the `recordmill` command."""
    from beam_pipelines.__main__ import main

    made, source = folder / f"records-{num_shards}", folder / "pixels.npy"
    if not made.exists():
        if not source.exists():
            random = np.random.default_rng(0)
            np.save(source, random.integers(0, 256, (num_records, 10, 30, 3), dtype=np.uint8))
            np.save(folder / "labels.npy", random.integers(0, 10, num_records))
        paths = ["--input", str(source), "--output", str(made)]
        if main(["prepare", *paths, "--splits=train=1", "--num_shards", f"train={num_shards}", "--check=header"]):
            raise RuntimeError(f"the dataset of {num_shards} shards could not be made")
    return made


@contextlib.contextmanager
def make_readers(
    case: str, inputs: Inputs, folder: pathlib.Path, num_records: int
) -> Iterator[tuple[Callable[[], Iterator[Any]], Callable[[], Iterator[Any]]]]:
    """Context manager that yields the two functions that create the readers of a benchmark case."""
    import tf_input

    with contextlib.ExitStack() as stack:
        if case.startswith(_MANY_SHARDS_CASES):
            how, _, num_shards = case.partition("-")
            few, many = (write_records(folder, num_records, count) for count in (16, int(num_shards)))
            options = {"batch_size": 128, "cache_in_memory": 0, "seed": 0}
            read = interleaved if how == "interleaved" else lambda directory: records(tf_input.open(directory), **options)
            yield functools.partial(read, many), functools.partial(read, few)
            return
        directory = pathlib.Path(inputs.tiny_set if case == "tiny-alone" else inputs.photo_set)
        local = tf_input.open(directory)
        if case.endswith("-alone"):
            options = {"batch_size": 128, "cache_in_memory": 0, "seed": 0} | ({} if local.image_size else {"image_size": 224})
            yield functools.partial(records, local, **options), functools.partial(interleaved, directory)
            return
        if case == "mount":
            other = stack.enter_context(slow_mount(tf_input.open(directory), 0.05))
        else:
            from tests.range_server import RangeProcess

            cores = sorted(os.sched_getaffinity(0))
            with on_cores(cores[:1]):
                server = stack.enter_context(RangeProcess(directory, delay_s=0.03))
            stack.enter_context(on_cores(cores[1:] or cores))
            os.environ |= server.environment("gs")
            other = tf_input.open(server.root("gs"))
        yield functools.partial(batches, other, **_VIEWS), functools.partial(batches, local, **_VIEWS)


def measure(reader: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Waits until no reader is prefetching, and returns examples per second of wall time and of CPU time."""
    import tensorflow as tf

    rest()
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < seconds:
        count += len(tf.nest.flatten(next(reader))[0])
    return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


def run(case: str, inputs: Inputs, folder: pathlib.Path, options: argparse.Namespace) -> None:
    runs = []
    for _ in range(options.runs):
        with make_readers(case, inputs, folder, options.records) as starts:
            readers = [start() for start in starts]
            for reader in readers:
                measure(reader, options.seconds)  # Warm-up.
            turns = [[measure(reader, options.seconds) for reader in readers] for _ in range(options.turns)]
        rates = [[statistics.median(turn[side][clock] for turn in turns) for clock in (0, 1)] for side in (0, 1)]
        ratios = [statistics.median(ours[clock] / rival[clock] for ours, rival in turns) for clock in (0, 1)]
        runs.append(ratios)
        shown = " ".join(f"{ours:12,.0f} {rival:12,.0f} {ratio:6.2f}" for ours, rival, ratio in zip(*rates, ratios))
        print(f"{case:<16} {shown}", flush=True)
    wall, cpu = (min(ratios) for ratios in zip(*runs))
    reach = f"; goal: {REACH[case]}" if REACH[case] else ""
    print(f"{case:<16} lowest of {options.runs}: {wall:.2f} by wall time, {cpu:.2f} by CPU time{reach}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", metavar="FOLDER", help="Folder with some hundred photographs.")
    parser.add_argument("--tiny", metavar="FOLDER", help="Folder with some thousand tiny JPEGs of one size.")
    parser.add_argument("--case", action="append", choices=list(REACH), help="Case to run. Default: all cases for which a folder is given.")
    parser.add_argument("--runs", type=int, default=3, help="Number of runs. Default: 3.")
    parser.add_argument("--turns", type=int, default=5, help="Turns of each reader in a run. Default: 5.")
    parser.add_argument("--seconds", type=float, default=5, help="Seconds per turn. Default: 5.")
    parser.add_argument("--copies", type=int, default=8, help="Number of names of each photograph. Default: 8.")
    parser.add_argument("--records", type=int, default=500_000, help="Number of records in the cases with many shards. Default: 500000.")
    parser.add_argument("--keep", metavar="FOLDER", help="New folder in which to keep the datasets for later runs.")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(options.keep or scratch).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        inputs = Inputs(folder, options.photos, options.tiny, options.copies, 0, 0)
        print(f"{'case':<16} {'wall: ours':>12} {'other':>12} {'ratio':>6} {'CPU: ours':>12} {'other':>12} {'ratio':>6}", flush=True)
        for case in options.case or REACH:
            if case.startswith(_MANY_SHARDS_CASES) or (options.tiny if case.startswith("tiny") else options.photos):
                run(case, inputs, folder, options)
            else:
                print(f"{case:<16} not run: no --{'tiny' if case.startswith('tiny') else 'photos'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
