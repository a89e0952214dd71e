"""Measures `recordmill prepare --records verbatim` and two other ways to shuffle TFRecord files of small records.

The three programs run alternately, and each result is the median over several rounds. Times include process startup.
The memory is the peak of the total resident memory of all processes of a program.

    recordmill    exact global shuffle; memory does not grow with the records
    beam          a Beam script: random keys, GroupByKey, WriteToTFRecord, on Beam's local runner
    memory        a script that keeps all records in memory: random.shuffle, tf.io.TFRecordWriter

Usage: python -m benchmarks.verbatim_benchmark [--records 250000 1000000] [--rounds 1]
"""

import argparse
import collections
import pathlib
import random
import shutil
import statistics
import sys
import tempfile

from benchmarks.measure import Measured, measure

RECORD_BYTES = 1000
NUM_FILES, NUM_SHARDS = 8, 16


def make_records(folder: pathlib.Path, num_records: int) -> None:
    """Writes random records of 1 KB into several files."""
    from beam_pipelines.tfrecord.record_writer import RecordWriter

    randomness = random.Random(0)
    for part in range(NUM_FILES):
        with open(folder / f"part-{part:05d}-of-{NUM_FILES:05d}", "wb", buffering=0) as file:
            writer = RecordWriter(file)
            for _ in range((part + 1) * num_records // NUM_FILES - part * num_records // NUM_FILES):
                writer.write(randomness.randbytes(RECORD_BYTES))
            writer.flush()


def run_beam(folder: str, output: str) -> None:
    """Shuffles records with random keys, as a Beam script usually does."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        (
            pipeline
            | beam.io.ReadFromTFRecord(f"{folder}/*")
            | beam.Map(lambda record: (random.getrandbits(64), record))
            | beam.GroupByKey()
            | beam.FlatMap(lambda item: item[1])
            | beam.io.WriteToTFRecord(f"{output}/beam", num_shards=NUM_SHARDS)
        )


def run_memory(folder: str, output: str) -> None:
    """Shuffles records in memory and writes them to several files."""
    import tensorflow as tf

    records = list(tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(f"{folder}/*"))).as_numpy_iterator())
    random.shuffle(records)
    pathlib.Path(output).mkdir()
    for shard in range(NUM_SHARDS):
        with tf.io.TFRecordWriter(f"{output}/memory-{shard:05d}") as writer:
            for record in records[shard::NUM_SHARDS]:
                writer.write(record)


CONTESTANTS = {"recordmill": None, "beam": run_beam, "memory": run_memory}


def run(name: str, folder: str, output: str) -> Measured:
    """Runs one program in a new process, and deletes its output."""
    own = ["-m", "beam_pipelines", "prepare", f"--input={folder}", f"--output={output}", "--records=verbatim"]
    other = ["-m", "benchmarks.verbatim_benchmark", "--only", name, folder, output]
    try:
        return measure([sys.executable, *([*own, "--splits=train=1", f"--num_shards={NUM_SHARDS}"] if name == "recordmill" else other)])
    finally:
        shutil.rmtree(output, ignore_errors=True)


def compare(num_records: int, names: list[str], rounds: int) -> None:
    """Prints a row for each program."""
    runs = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch, "records")
        folder.mkdir()
        make_records(folder, num_records)
        for _ in range(rounds):
            for name in names:
                runs[name].append(run(name, str(folder), f"{scratch}/out"))
    medians = {
        name: [statistics.median(values) for values in zip(*((one.seconds, one.cpu_seconds, one.peak_bytes) for one in of_name))]
        for name, of_name in runs.items()
    }
    first = medians[names[0]]
    for name, (seconds, cpu_seconds, peak_bytes) in medians.items():
        quotients = f"{seconds / first[0]:8.2f}{cpu_seconds / first[1]:9.2f}"
        print(f"{num_records:10,}  {name:<11}{seconds:8.1f}{cpu_seconds:8.1f}{quotients}{peak_bytes / 1e6:9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[250_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=1, help="Rounds for each number of records. Default: 1.")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--only", nargs=3, metavar=("NAME", "FOLDER", "OUTPUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        name, folder, output = arguments.only
        CONTESTANTS[name](folder, output)
        return
    print(f"{'records':>10}  {'contestant':<11}{'seconds':>8}{'CPU s':>8}{'x wall':>8}{'x CPU':>9}{'peak MB':>9}")
    for num_records in arguments.records:
        compare(num_records, arguments.contestants, arguments.rounds)


if __name__ == "__main__":
    main()
