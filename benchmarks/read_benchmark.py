"""Compares `tf_input` with hand-written tf.data, TensorFlow Datasets, Keras, Grain and WebDataset.

The input folders contain class folders of photographs and of tiny JPEGs. The photographs are repeated as hard links to
make epochs longer. `recordmill prepare` writes each dataset with 16 shards and with all images in `train`.

The two readers of a case return equal batches of uint8 images and their labels. Photographs are randomly cropped (8 to
100 % of the area), resized to 224 x 224 pixels and randomly flipped. Each reader is a separate process. The two readers
are measured alternately. While one reader is measured, the process of the other reader is suspended. Each measurement
starts with a warm-up that consumes prefetched batches. The wall time and the CPU time are then measured for some
seconds. The benchmark prints the median, the minimum and the maximum of the speed ratios. Each run starts both readers
again. The last line shows the lowest ratio of all runs.

Ratios of CPU time are reliable on a busy machine, but favor a reader that leaves cores idle. The measured time of
`tf_input` includes the transitions between epochs. The exit code is 1 if a package is not installed. The benchmark
reports missed goals but does not fail, because the speed varies on a busy machine.

Usage: python -m benchmarks.read_benchmark --photos FOLDER --tiny FOLDER [--case CASE ...] [--runs 3] [--turns 5]
    [--keep FOLDER]
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import itertools
import logging
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any, Callable, Iterator, Sequence

from benchmarks.racer import SIDES, Racer
from benchmarks.read_checks import FORMAT, run_accuracy, run_memory, run_resume, verdict
from benchmarks.read_inputs import Inputs

Batches = Iterator[tuple[Any, Any]]
# Prepares the inputs, and returns a function that starts the reader.
Reads = Callable[[Inputs, int], Callable[[], Batches]]
PHOTOS, LARGE, TINY, MANY = "photos", "large", "tiny", "many"
OPTIONS = {PHOTOS: "photos", LARGE: "photos", TINY: "tiny", MANY: "records"}  # The option that a case needs.


@dataclasses.dataclass(frozen=True)
class Race:
    """A comparison of two readers in images/s.

    Attributes:
        images: The folder that the case needs.
        ours, rival: `tf_input` and the baseline.
        names: The names of the two readers.
        reach: The ratio that `tf_input` should reach. None if the ratio is only reported.
        batch_size: The batch size of both readers.
        needs: The packages that the baseline needs, by the name of their module.
    """

    images: str
    ours: Reads
    rival: Reads
    names: tuple[str, str]
    reach: float | None
    batch_size: int = 128
    needs: dict[str, str] = dataclasses.field(default_factory=dict)

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for module, package in self.needs.items() if importlib.util.find_spec(module) is None]


def read_ours(dataset: str, **options: Any) -> Reads:
    """Returns an infinite iterator over the batches of a dataset. `Inputs` has an attribute for each dataset."""

    def read(directory: str, batch_size: int) -> Batches:
        import tf_input

        return iter(tf_input.open(directory).batches("train", batch_size=batch_size, seed=0, **options).repeat())

    return lambda inputs, batch_size: functools.partial(read, getattr(inputs, dataset), batch_size)


def read_loader(dataset: str, **options: Any) -> Reads:
    """Returns an infinite iterator over the batches that a dataset's loader reads without TensorFlow."""

    def read(directory: str, batch_size: int) -> Batches:
        import tf_input

        loader = tf_input.open(directory).loader("train", batch_size=batch_size, seed=0, drop_remainder=True, **options)
        return ((batch["image"], batch["label"]) for _ in itertools.count() for batch in loader)

    return lambda inputs, batch_size: functools.partial(read, getattr(inputs, dataset), batch_size)


def read_mix(dataset: str, **options: Any) -> Reads:
    """Returns an infinite iterator over a mixture that uses the same dataset twice."""

    def read(directory: str, batch_size: int) -> Batches:
        import tf_input

        made = tf_input.open(directory)
        parts = {"first": (made, "train", 0.7), "second": (made, "train", 0.3)}
        return iter(tf_input.mix(parts, batch_size=batch_size, seed=0, **options).repeat())

    return lambda inputs, batch_size: functools.partial(read, getattr(inputs, dataset), batch_size)


def read_rival(name: str, dataset: str, module: str = "read_rivals") -> Reads:
    def prepare(inputs: Inputs, batch_size: int) -> Callable[[], Batches]:
        rivals = importlib.import_module(f"benchmarks.{module}")
        return functools.partial(getattr(rivals, name), getattr(inputs, dataset), batch_size)

    return prepare


_VIEWS = {"image_size": 224, "augment": True}
_READ_PHOTOS = read_ours("photo_set", **_VIEWS)
_BY_HAND, _PLAIN = read_rival("hand_written", "photo_set"), read_rival("plain", "tiny_set")
_TINY = read_ours("tiny_set", cache_in_memory=0)
_PYTHON = {"simplejpeg": "simplejpeg", "cv2": "opencv-python-headless"}
_GRAIN = {"grain": "grain", "array_record": "array-record", **_PYTHON}
_EXACT = read_ours("photo_set", **_VIEWS, shuffle="exact")
_BUFFER = read_ours("photo_set", **_VIEWS, shuffle="window")
_CHOICES = {"select": "num_bytes % 2 == 0", "balance": "oversample"}

RACES = {
    "photos": Race(PHOTOS, _READ_PHOTOS, _BY_HAND, ("tf_input", "hand-written tf.data"), 0.9),
    "photos-limit": Race(
        PHOTOS, read_rival("crops_alone", "photo_set"), _BY_HAND, ("crops decoded, no more", "hand-written tf.data"), None
    ),
    "photos-short": Race(
        PHOTOS, read_ours("short_set", **_VIEWS), _BY_HAND, ("stored at short side 256", "hand-written, the originals"), 1.7
    ),
    "large": Race(
        LARGE,
        read_ours("large_set", **_VIEWS),
        read_rival("fused", "large_set"),
        ("2000 px photographs", "fused crops, no DCT scaling"),
        0.8,
        batch_size=32,
    ),
    "tiny": Race(TINY, _TINY, _PLAIN, ("tiny JPEGs, streamed", "plain tf.data"), 2.9, batch_size=512),
    "tiny-memory": Race(TINY, read_ours("tiny_set"), _PLAIN, ("tiny JPEGs, in memory", "plain tf.data"), 28, batch_size=512),
    "tiny-raw": Race(
        TINY,
        read_ours("raw_set", cache_in_memory=0),
        _PLAIN,
        ("stored as pixels, streamed", "plain tf.data, JPEGs"),
        None,
        batch_size=512,
    ),
    # With data in memory, most time of a batch of 128 is spent in Python code that requests the batch.
    "tiny-128": Race(TINY, _TINY, _PLAIN, ("tiny JPEGs, streamed", "plain tf.data"), None),
    "tiny-memory-128": Race(TINY, read_ours("tiny_set"), _PLAIN, ("tiny JPEGs, in memory", "plain tf.data"), None),
    "exact": Race(PHOTOS, _EXACT, _BUFFER, ('shuffle="exact"', 'tf_input, shuffle="window"'), 0.85),
    "mix": Race(PHOTOS, read_mix("photo_set", **_VIEWS), _READ_PHOTOS, ("a mix of two", "tf_input, one split"), 0.95),
    "mix-tiny": Race(
        TINY, read_mix("tiny_set", cache_in_memory=0), _TINY, ("a mix of two, tiny", "tf_input, one split"), 0.8, batch_size=512
    ),
    **{
        f"{name}-{images}": Race(
            images, read_ours(dataset, **options, **{name: choice}), complete, (f"{name}={choice!r}", "the whole split"), 0.65, batch_size
        )
        for images, dataset, options, complete, batch_size in (
            (PHOTOS, "photo_set", _VIEWS, _READ_PHOTOS, 128),
            (TINY, "tiny_set", {"cache_in_memory": 0}, _TINY, 512),
        )
        for name, choice in _CHOICES.items()
    },
    "tfds": Race(
        PHOTOS,
        _READ_PHOTOS,
        read_rival("tensorflow_datasets", "photo_set"),
        ("tf_input", "TensorFlow Datasets"),
        0.9,
        needs={"tensorflow_datasets": "tensorflow-datasets"},
    ),
    "keras": Race(
        PHOTOS,
        _READ_PHOTOS,
        read_rival("keras_folder", "photo_folder"),
        ("tf_input", "Keras, folder (float32, no crop)"),
        0.9,
    ),
    "grain": Race(
        PHOTOS, _READ_PHOTOS, read_rival("grain", "array_records", "python_rivals"), ("tf_input", "Grain"), 1, needs=_GRAIN
    ),
    "loader": Race(
        PHOTOS,
        read_loader("photo_set", **_VIEWS),
        read_rival("grain", "array_records", "python_rivals"),
        ("loader, no TensorFlow", "Grain"),
        1.3,
        needs=_GRAIN,
    ),
    "loader-batches": Race(PHOTOS, read_loader("photo_set", **_VIEWS), _READ_PHOTOS, ("loader, no TensorFlow", "tf_input, batches"), None),
    "webdataset": Race(
        PHOTOS,
        _READ_PHOTOS,
        read_rival("webdataset", "tars", "python_rivals"),
        ("tf_input", "WebDataset"),
        1,
        needs={"webdataset": "webdataset", **_PYTHON},
    ),
}


def run_race(name: str, race: Race, inputs: Inputs, options: argparse.Namespace) -> str:
    """Returns the rows of the table: one or two rows for each run, and a summary."""
    rows, medians = [], []
    for _ in range(options.runs):
        with contextlib.ExitStack() as stack:
            ours, rival = (stack.enter_context(Racer(name, side, inputs, options.seconds, options.batches)) for side in SIDES)
            if ours.shape != rival.shape:
                raise RuntimeError(f"{name}: images of {ours.shape} against {rival.shape}")
            for racer in (ours, rival):
                racer.rates()  # Warm-up.
            turns = [(ours.rates(), rival.rates()) for _ in range(options.turns)]
        ratios = [[first[clock] / second[clock] for first, second in turns] for clock in range(2)]
        medians.append(list(map(statistics.median, ratios)))
        wall, cpu = (f"{statistics.median(ratio):.2f} ({min(ratio):.2f}-{max(ratio):.2f})" for ratio in ratios)
        speeds = (f"{statistics.median(wall for wall, _ in rates):,.0f}/s" for rates in zip(*turns))
        rows.append(FORMAT.format(name, race.names[0], next(speeds), race.names[1], next(speeds), wall, ""))
        first = f"first batch after {ours.first_seconds:.1f} s, rival after {rival.first_seconds:.1f} s"
        rows.append(f"{'':15} by CPU time {cpu}; {first}")
    wall, cpu = map(min, zip(*medians))
    must = "reported" if race.reach is None else verdict(min(wall, cpu) >= race.reach, f"{race.reach:g}")
    rows.append(f"{name:<15} lowest of {options.runs}: {wall:.2f} by wall time, {cpu:.2f} by CPU time; {must}")
    return "\n".join(rows)


CASES = {**{name: race.images for name, race in RACES.items()}, "large-accuracy": LARGE, "resume": MANY, "memory": MANY}


def run_case(name: str, inputs: Inputs, options: argparse.Namespace) -> str:
    if name == "large-accuracy":
        return run_accuracy(name, inputs, min(64, options.large))
    if name == "resume":
        return run_resume(name, inputs, options.turns)
    if name == "memory":
        return run_memory(name, inputs)
    return run_race(name, RACES[name], inputs, options)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", metavar="FOLDER", help="Folder with some hundred photographs.")
    parser.add_argument("--tiny", metavar="FOLDER", help="Folder with some thousand tiny JPEGs of one size.")
    parser.add_argument("--case", action="append", choices=list(CASES), help="Case to run. Default: all cases for which a folder is given.")
    parser.add_argument("--runs", type=int, default=3, help="Number of runs. Default: 3.")
    parser.add_argument("--turns", type=int, default=5, help="Turns of each reader in a run. Default: 5.")
    parser.add_argument("--seconds", type=float, default=5, help="Seconds per turn. Default: 5.")
    parser.add_argument("--batches", type=int, default=8, help="Minimum number of batches per turn. Default: 8.")
    parser.add_argument("--copies", type=int, default=8, help="Number of names of each photograph. Default: 8.")
    parser.add_argument("--large", type=int, default=96, help="Number of photographs to enlarge. Default: 96.")
    parser.add_argument("--records", type=int, default=1_000_000, help="Number of 1 KB records for `resume` and `memory`. Default: 1000000.")
    parser.add_argument("--keep", metavar="FOLDER", help="New folder in which to keep the datasets for later runs.")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("absl").setLevel(logging.ERROR)
    missing = False
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(options.keep or folder).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        inputs = Inputs(scratch, options.photos, options.tiny, options.copies, options.large, options.records)
        print(FORMAT.format("case", "ours", "", "rival", "", "ratio", "goal"), flush=True)
        for name in options.case or CASES:
            packages = RACES[name].missing() if name in RACES else []
            missing |= bool(packages)
            if packages:
                print(f"{name:<15} not installed: pip install {' '.join(packages)}", flush=True)
            elif not getattr(options, OPTIONS[CASES[name]]):
                print(f"{name:<15} not run: no --{OPTIONS[CASES[name]]}", flush=True)
            else:
                print(run_case(name, inputs, options), flush=True)
            gc.collect()
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
