"""Measures the throughput of each stage of the input pipeline, for `recordmill benchmark`."""

import contextlib
import dataclasses
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator

from tf_input.benchmark.stages import Stage, time_shares
from tf_input.dataset_format import IMAGE, training_split
from tf_input.quiet import import_tensorflow
from tf_input.read_config import ReadConfig

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_input.pipeline.plan import Plan

_DEFAULT_SIZE = 224  # image size in pixels, used if images vary in size
_WARM_UP = 0.25  # share of the time of a stage that is not measured
_MIN_BATCHES = 3
_HEADINGS = ("stage", "images/s", "CPU µs/image", "share of time")


def run(directory: str, split: str | None, config: ReadConfig, seconds: float) -> None:
    """Benchmarks input pipelines with an increasing number of stages and prints their throughput and advice.

    Args:
        directory: The directory of a dataset, or its URL.
        split: The split to read. None reads the training split.
        config: The reading options. If `image_size` is not set, images keep their common size, or become 224 x 224.
        seconds: The time to read for each stage, in seconds.

    Raises:
        OSError, ImportError: The dataset can't be read.
        ValueError: The dataset is corrupt, or an option has a wrong value.
        RuntimeError: A record is corrupt; the message names shard, record and offset.
    """
    tf = import_tensorflow()
    import tf_input
    from tf_input.benchmark.advice import Findings

    dataset = tf_input.open(directory)
    split = training_split(dataset.splits) if split is None else split
    dataset.num_examples(split)
    if dataset.manifest.is_verbatim:  # the user's `parse` is unknown
        config = dataclasses.replace(config, map_batch=lambda records: records)
    if config.image_size is None:
        is_sized = dataset.image_size is not None or IMAGE not in dataset.features
        config = dataclasses.replace(config, image_size=dataset.image_size if is_sized else _DEFAULT_SIZE)
    try:
        started = time.perf_counter()
        plan = dataset.split_reader(split).plan(config)
        if plan.cached is not None:
            print(f"Read {split} into memory in {time.perf_counter() - started:.1f} s")
        findings = Findings.of(dataset, split, plan)
        with _interrupts() as interrupted:
            print(findings.describe(), flush=True)
            stages = [_measure(name, data, seconds, interrupted) for name, data in _pipelines(plan)]
    except tf.errors.OpError as error:
        raise RuntimeError(error.message.partition("\n")[0]) from None
    print(f"\n{table(stages)}\n\n{findings.advise(stages)}")


def table(stages: list[Stage]) -> str:
    """Returns a table of the stages, as lines for a terminal."""
    added = [
        max(0.0, stage_end.cpu_seconds - before)
        for stage_end, before in zip(stages, [0.0, *(stage.cpu_seconds for stage in stages)])
    ]
    slots = [_HEADINGS]
    for stage, cpu_seconds, share in zip(stages, added, time_shares(stages)):
        slots.append((stage.name, f"{stage.images_per_second:,.0f}", f"{cpu_seconds * 1e6:,.0f}", f"{share:.0%}"))
    widths = [max(map(len, column)) for column in zip(*slots)]
    return "\n".join("  ".join([slot[0].ljust(widths[0]), *map(str.rjust, slot[1:], widths[1:])]) for slot in slots)


def _pipelines(plan: "Plan") -> Iterator[tuple[str, "tf.data.Dataset"]]:
    """Yields (name of a stage, endless input pipeline up to and including this stage), in the order of the stages."""
    from tf_input.pipeline import input_pipeline

    plain = dataclasses.replace(plan.config, augment=False)
    decoder = dataclasses.replace(plan.decoder, config=dataclasses.replace(plan.decoder.config, augment=False))

    def read(make_batch: Callable[..., Any]) -> "tf.data.Dataset":
        return input_pipeline.read_batches(dataclasses.replace(plan, config=plain), make_batch, prefetch=False, num_iterations=None)

    if plan.cached is None:
        yield "read", read(lambda records, seed, slots: records[0])
        yield "parse", read(lambda records, seed, slots: plan.decoder.parse_batch(records[0]))
        yield "decode", read(lambda records, seed, slots: decoder.outputs(decoder.parse_batch(records[0]), slots=slots and slots[0]))
    else:
        yield "gather", read(lambda numbers, seed, slots: plan.look_up(numbers[0]))
        yield "resize", read(lambda numbers, seed, slots: decoder.outputs(plan.look_up(numbers[0]), slots=slots and slots[0]))
    if plan.config.augment:
        yield "augment", input_pipeline.read_batches(plan, plan.decode, prefetch=False, num_iterations=None)
    yield "batch", input_pipeline.read_batches(plan, plan.decode, num_iterations=None)


def _measure(name: str, data: "tf.data.Dataset", seconds: float, interrupted: threading.Event) -> Stage:
    batches = iter(data)
    _read_for(batches, seconds * _WARM_UP, interrupted)
    cpu, started = time.process_time(), time.perf_counter()
    num_images = _read_for(batches, seconds, interrupted)
    return Stage(name, num_images / (time.perf_counter() - started), (time.process_time() - cpu) / num_images)


def _read_for(batches: Iterator[Any], seconds: float, interrupted: threading.Event) -> int:
    """Reads batches for the given number of seconds and returns the number of images that were read."""
    import tensorflow as tf

    end, num_batches, num_images = time.perf_counter() + seconds, 0, 0
    while num_batches < _MIN_BATCHES or time.perf_counter() < end:
        if interrupted.is_set():
            raise KeyboardInterrupt
        first = tf.nest.flatten(next(batches))[0]
        num_images += int(first.nrows() if isinstance(first, tf.RaggedTensor) else len(first))
        num_batches += 1
    return num_images


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Context manager for an event that is set when the user presses Ctrl-C. A second Ctrl-C raises KeyboardInterrupt
    immediately.

    A signal handler must not raise an exception: if the handler runs while an object is freed, Python ignores the
    exception.
    """
    interrupted = threading.Event()

    def remember(*unused: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
