"""Measures the wall time, the CPU time and the peak memory of the global shuffle of millions of synthetic records.

The measured time includes listing the inputs and writing the plan. The benchmark reads no images. All images have the
same assumed size, which determines the number of shards. All remaining steps run the same code as `recordmill prepare`.
After the measurement, the benchmark reads the plan and checks the position of each reference.

Usage: python -m benchmarks.shuffle_benchmark [--references 1000000 10000000]
"""

import argparse
import contextlib
import gc
import sys
import tempfile
import time
from typing import Any, Iterator, Mapping, Sequence
from unittest import mock

from beam_pipelines.sources.registry import find_kind
from beam_pipelines.sources.source import Source
from benchmarks.measure import measure

NUM_CLASSES = 1000
IMAGE_BYTES = 110_000  # The assumed size of a photograph, which determines the number of shards.


class SyntheticSource(Source):
    """A source that lists nonexistent photographs class by class, as if they were in class folders."""

    kind = find_kind("image_folder")
    root = "/synthetic"
    targets = ("label",)

    def __init__(self, options: Any, num_references: int) -> None:
        from tf_input.dataset_format import Feature

        super().__init__(options)
        self.features = (Feature("label", "class_label"),)
        self._num = num_references

    def parts(self) -> list[str]:
        return [""]

    def list(self, part: str) -> Iterator[Any]:
        from beam_pipelines.elements.input_record import InputRecord

        for index in range(self._num):
            label = f"class{index * NUM_CLASSES // self._num:04d}"
            path = f"{label}/ILSVRC_{index:010d}.jpg"
            yield InputRecord(path, path, label, None)

    def label_names(self) -> Mapping[str, set[str]]:
        return {"label": {f"class{index:04d}" for index in range(NUM_CLASSES)}}


def measure_none(references: Sequence[Any], *unused: Any) -> list[int]:
    """Returns the size `IMAGE_BYTES` for each input without reading the input."""
    return [IMAGE_BYTES] * len(references)


def plan(num_references: int) -> None:
    """Makes a shuffle plan. Prints the number of shards, and the wall time and CPU time in seconds after imports."""
    import apache_beam as beam

    from beam_pipelines.config.prepare_options import PrepareOptions
    from beam_pipelines.config.run_paths import RunPaths
    from beam_pipelines.config.source_config import SourceConfig
    from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
    from beam_pipelines.shuffle.global_shuffle import GlobalShuffle
    from beam_pipelines.shuffle.ranks import ShuffleSpec
    from beam_pipelines.sources.listing import list_images, part_listing

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for module in (list_images, part_listing):
            patch = mock.patch.object(module, "open_source", lambda options, *unused, **others: SyntheticSource(options, num_references))
            stack.enter_context(patch)
        given = PrepareOptions("in", f"{folder}/out", "made", source=SourceConfig(kind=find_kind("image_folder")))
        run = RunPaths(given.output)
        options = parse_pipeline_options([])
        gc.freeze()  # The command does this after its imports too.
        start, cpu_start = time.perf_counter(), time.process_time()
        pipeline = beam.Pipeline(runner=choose_engine(options).make_runner(), options=options)
        listed = pipeline | "ListImages" >> list_images.ListImages(given, run)
        listed.runs | "GlobalShuffle" >> GlobalShuffle(ShuffleSpec.of(given, run), listed, measure_none)
        pipeline.run().wait_until_finish()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        print(f"{_check_plan(run, given.seed, num_references)} {seconds:.1f} {cpu_seconds:.1f}")


def _check_plan(run: Any, seed: int, num_references: int) -> int:
    """Checks that the plan contains all records of each split in shuffle order, and returns the number of shards."""
    from beam_pipelines.elements.plan_files import read_plan, read_planned_shard
    from beam_pipelines.elements.shuffle_keys import shuffle_orders

    num_shards, num_results, last = 0, 0, ("", 0)
    for shard in read_plan(run).shards():
        references = read_planned_shard(run, shard, 0, shard.num_inputs)
        orders = references.rows["order"]
        is_in_order = (orders[1:] > orders[:-1]).all() and ((shard.address.split, int(orders[0])) > last or shard.address.shard_index == 0)
        if not is_in_order or (shuffle_orders(seed, list(references.keys)) != orders).any():
            sys.exit(f"the references of {shard.address} are out of order")
        last = shard.address.split, int(orders[-1])
        num_shards, num_results = num_shards + 1, num_results + len(orders)
    if num_results != num_references:
        sys.exit(f"{num_results} references in the plan; expected {num_references}")
    return num_shards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        plan(arguments.only)
        return
    print(f"{'references':>12}{'shards':>8}{'seconds':>9}{'CPU s':>9}{'CPU us each':>13}{'peak MB':>9}{'bytes each':>12}")
    for num in arguments.references:
        run = measure([sys.executable, "-m", "benchmarks.shuffle_benchmark", "--only", str(num)])
        num_shards, seconds, cpu_seconds = run.output.split()
        each = float(cpu_seconds) / num * 1e6
        print(f"{num:12,}{num_shards:>8}{seconds:>9}{cpu_seconds:>9}{each:13.2f}{run.peak_bytes / 1e6:9.0f}{run.peak_bytes / num:12.0f}", flush=True)


if __name__ == "__main__":
    main()
