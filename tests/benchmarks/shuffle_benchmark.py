"""Listing and shuffle planning alone, for millions of references from a synthetic source: seconds and peak memory.

    python -m tests.benchmarks.shuffle_benchmark [--references 1000000 10000000]

No image is read: what is timed is all that is not reading, checking and writing images. Everything else is the real thing, from
packed listing batches through the exact ranks to one element a shard.
"""

import argparse
import sys
import time
from typing import Iterator

from tests.benchmarks.measure import measure

NUM_CLASSES = 1000
IMAGE_BYTES = 110_000  # of a photograph, which decides the number of shards


def shuffle(num_references: int) -> None:
    """Runs the pipeline in this process and prints its seconds, imports left out."""
    import apache_beam as beam
    import numpy as np

    from beam_pipelines.check_keys import CheckKeys
    from beam_pipelines.config import PrepareConfig
    from beam_pipelines.dead_letters import DeadLetterCount
    from beam_pipelines.jobs import make_runner, parse_pipeline_options
    from beam_pipelines.list_part import BATCH_IMAGES
    from beam_pipelines.ranks import MAX_SHARD_BYTES, shuffle_orders
    from beam_pipelines.references import ROW, LabeledImage, References, pack_images, unpack_images
    from beam_pipelines.shuffle import GlobalShuffle
    from beam_pipelines.sources import Listing

    def list_images(unused: None) -> Iterator[bytes]:
        for start in range(0, num_references, BATCH_IMAGES):
            batch = []
            for index in range(start, min(start + BATCH_IMAGES, num_references)):
                label = f"class{index * NUM_CLASSES // num_references:04d}"
                path = f"{label}/ILSVRC_{index:010d}.jpg"
                batch.append(LabeledImage(path, path, label, None))
            yield pack_images(batch)

    def refer(packed: bytes, unused_checked: list) -> bytes:
        images = unpack_images(packed)
        encoded = [key.encode() for key in images.keys]
        rows = np.zeros(len(encoded), ROW)
        rows["order"] = orders = shuffle_orders(0, encoded)
        rows["label"] = [int(label[5:]) for label in images.labels]
        rows["num_bytes"] = IMAGE_BYTES + (orders & np.uint64(0x3FFF)).astype(np.uint32)
        rows["crc32c"] = (orders >> np.uint64(8)).astype(np.uint32)  # as incompressible as a real one
        rows["height"], rows["width"] = 375 + rows["num_bytes"] % 125, 500
        return References(rows, encoded, [b""] * len(encoded)).pack()

    def count(element: tuple[tuple[str, int, int], bytes]) -> int:
        return len(References.unpack_rows(element[1]))

    options = parse_pipeline_options([])
    pipeline = beam.Pipeline(runner=make_runner(options), options=options)
    num_shards = max(1, num_references * IMAGE_BYTES // MAX_SHARD_BYTES)
    plan = pipeline | "NumShards" >> beam.Create([{"train": num_shards}])
    listing = Listing("image_folder", "in", (), (), {}, ("train",), None, num_references, 0, 0, DeadLetterCount())
    listing = beam.pvalue.AsSingleton(pipeline | "Listing" >> beam.Create([listing]))
    images = pipeline | beam.Create([None]) | "List" >> beam.FlatMap(list_images) | beam.Reshuffle()
    checked = images | CheckKeys(PrepareConfig("in", "out", "made"), listing)
    (
        images
        | "Refer" >> beam.Map(refer, beam.pvalue.AsList(checked))
        | GlobalShuffle(0, beam.pvalue.AsSingleton(plan))
        | "Count" >> beam.Map(count)
        | beam.CombineGlobally(sum)
        | "Check" >> beam.Map(lambda total: total == num_references or sys.exit(f"{total} references arrived"))
    )
    start = time.perf_counter()
    pipeline.run().wait_until_finish()
    print(f"{num_shards} {time.perf_counter() - start:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        shuffle(arguments.only)
        return
    print(f"{'references':>12}{'shards':>8}{'seconds':>9}{'us each':>9}{'peak MB':>9}{'bytes each':>12}")
    for num in arguments.references:
        run = measure([sys.executable, "-m", "tests.benchmarks.shuffle_benchmark", "--only", str(num)])
        num_shards, seconds = run.output.split()
        each = float(seconds) / num * 1e6
        print(f"{num:12,}{num_shards:>8}{seconds:>9}{each:9.2f}{run.peak_bytes / 1e6:9.0f}{run.peak_bytes / num:12.0f}", flush=True)


if __name__ == "__main__":
    main()
