"""Compares `recordmill analyze` with TensorFlow Transform, and reading transformed features with reading pixels.

The input folder contains class folders of photographs. The benchmark creates several hard links to each image. In the
first table, both programs analyze the same dataset with the same preprocessing on the same local runner. The measured
time of each program is the time of a whole process. `recordmill` reads pointers to records. TensorFlow Transform reads
the records with `tfxio.TFExampleRecord`, as its guide recommends. In the row `one pass`, the preprocessing is the
default. In the row `two passes`, the preprocessing normalizes pixels and then scales them to [0, 1]. In the second
table, the readers run alternately in this process. The normalization layer runs on the CPU.

Usage: python -m benchmarks.transform_benchmark --input PHOTOGRAPHS [--copies 20] [--repeats 3] [--image_size 224]
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, Iterator

from benchmarks.engines_benchmark import link_copies
from benchmarks.measure import Measured, measure

_MODULE = """\
import tensorflow as tf
import tensorflow_transform as tft
import tf_input


def preprocessing_fn(inputs):
    pixels = tf.cast(tf_input.decode_images(inputs["image"], image_size={image_size}), tf.float32)
    return {{"image": tft.scale_to_0_1(tft.scale_to_z_score(pixels)), "label": inputs["label"]}}
"""


def analyze_as_in_the_guide(directory: str, module: str, side: int) -> None:
    """Analyzes a dataset with `AnalyzeDataset` and `WriteTransformFn`, as in TensorFlow Transform's guide."""
    import apache_beam as beam
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.public import tfxio

    from beam_pipelines.transform.preprocessing import DefaultPreprocessing
    from beam_pipelines.transform.tft_modules import tft_beam
    from beam_pipelines.transform.user_preprocessing import UserPreprocessing
    from tf_input.dataset_format import read_manifest

    manifest = read_manifest(directory)
    num_examples = manifest.num_examples("train")
    preprocessing = UserPreprocessing.read(module) if module else DefaultPreprocessing(manifest.schema, (side, side), "crop", num_examples)
    schema = text_format.Parse(pathlib.Path(directory, "schema.pbtxt").read_text(), schema_pb2.Schema())
    records = tfxio.TFExampleRecord(f"{directory}/*-train.tfrecord-*", schema=schema)
    with tempfile.TemporaryDirectory() as folder, beam.Pipeline(runner="FnApiRunner") as pipeline:
        with tft_beam.Context(temp_dir=f"{folder}/temporary", desired_batch_size=32):
            batches = pipeline | records.BeamSource(batch_size=32)
            transform_fn = (batches, records.TensorAdapterConfig()) | tft_beam.AnalyzeDataset(preprocessing)
            transform_fn | tft_beam.WriteTransformFn(f"{folder}/out")


def run_analyses(directory: pathlib.Path, modules: dict[str, pathlib.Path | None], num_examples: int, side: int) -> Iterator[str]:
    yield f"{'analysis':<12} {'ours':>10} {'':>10} {'rival':>10} {'':>10} {'memory':>8} {'images/s, ours':>15}"
    for name, path in modules.items():
        ours = analyze(directory, path, side)
        guide = ["--rival", str(directory), "--module", str(path or ""), f"--image_size={side}"]
        rival = measure([sys.executable, "-m", "benchmarks.transform_benchmark", *guide])
        ratio = rival.peak_bytes / ours.peak_bytes
        yield f"{name:<12} {_format_run(ours)} {_format_run(rival)} {ratio:>7.2f}x {num_examples / ours.seconds:>15,.0f}"


def analyze(directory: pathlib.Path, module: pathlib.Path | None, side: int) -> Measured:
    subject = ["--preprocessing_module", str(module)] if module else [f"--image_size={side}"]
    return measure([sys.executable, "-m", "beam_pipelines", "analyze", str(directory), "--overwrite", *subject])


def _format_run(measured: Measured) -> str:
    return f"{measured.seconds:>8.1f} s {measured.peak_bytes / 1e6:>7,.0f} MB"


def run_reading(directory: pathlib.Path, repeats: int, seconds: float, side: int, batch_size: int) -> Iterator[str]:
    import tf_input

    data = tf_input.open(directory)
    options: dict[str, Any] = {"batch_size": batch_size, "seed": 0, "cache_in_memory": 0}
    layer = data.normalization_layer()
    readers = {
        "transform=True": data.batches("train", transform=True, **options),
        "uint8 and normalization_layer": data.batches("train", image_size=side, **options).map(lambda x, y: (layer(x), y)),
        "uint8": data.batches("train", image_size=side, **options),
    }
    endless = {name: iter(batches.repeat()) for name, batches in readers.items()}
    for batches in endless.values():
        _rate(batches, seconds)  # Warm-up.
    rates = [{name: _rate(batches, seconds) for name, batches in endless.items()} for _ in range(repeats)]
    yield f"{'reading':<30} {'images/s':>9} {'transform=True against it':>28}"
    for name in readers:
        ratios = [rate["transform=True"] / rate[name] for rate in rates]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        yield f"{name:<30} {statistics.median(rate[name] for rate in rates):>9,.0f} {spread:>28}"


def _rate(batches: Iterator[Any], seconds: float) -> float:
    num_images, start = 0, time.perf_counter()
    while not num_images or time.perf_counter() - start < seconds:
        num_images += len(next(batches)[1])
    return num_images / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=pathlib.Path, metavar="FOLDER", help="Folder with class folders of photographs.")
    parser.add_argument("--copies", type=int, default=20, help="Number of names of each photograph. Default: 20.")
    parser.add_argument("--repeats", type=int, default=3, help="Turns of each reader. Default: 3.")
    parser.add_argument("--passes", choices=("both", "one"), default="both", help="Number of passes to analyze. Default: both.")
    parser.add_argument("--seconds", type=float, default=8, help="Seconds per turn. Default: 8.")
    parser.add_argument("--image_size", type=int, default=224, help="Side of the analyzed images. Default: 224.")
    parser.add_argument("--batch_size", type=int, default=128, help="Batch size of the readers. Default: 128.")
    parser.add_argument("--rival", metavar="OUT", help=argparse.SUPPRESS)
    parser.add_argument("--module", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.rival:
        analyze_as_in_the_guide(options.rival, options.module, options.image_size)
        return
    if options.input is None:
        parser.error("--input: expected a folder of class folders")
    # Hard links need the same file system.
    with tempfile.TemporaryDirectory(dir=options.input.resolve().parent) as folder:
        link_copies(options.input, pathlib.Path(folder, "photos"), options.copies)
        output, module = pathlib.Path(folder, "out"), pathlib.Path(folder, "two_passes.py")
        module.write_text(_MODULE.format(image_size=options.image_size))
        command = ["prepare", "--input", f"{folder}/photos", "--output", str(output), "--splits=train=1", "--num_shards=16"]
        measure([sys.executable, "-m", "beam_pipelines", *command])
        num_examples = len(list(pathlib.Path(folder, "photos").rglob("*.*")))
        two = {"two passes": module} if options.passes == "both" else {}
        # The last analysis is used for reading.
        for line in run_analyses(output, {**two, "one pass": None}, num_examples, options.image_size):
            print(line, flush=True)
        for line in run_reading(output, options.repeats, options.seconds, options.image_size, options.batch_size):
            print(line, flush=True)


if __name__ == "__main__":
    main()
