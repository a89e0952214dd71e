"""Measures the accuracy of images, the time to resume an epoch, and the memory of readers for the read benchmark."""

import os
import pathlib
import statistics
import sys
import time
from typing import Any
from unittest import mock

from benchmarks.measure import measure
from benchmarks.read_inputs import Inputs

FORMAT = "{:<15} {:<27} {:>12}   {:<32} {:>9}  {:<19} {}"  # The format of all rows.
_BATCH_SIZE = 128
_BUFFERS = 1 << 20, 64 << 20, 256 << 20  # The first size is negligible and measures the baseline.
_READ_EPOCH = """
import sys, tf_input
data = tf_input.open(sys.argv[1]).batches("train", batch_size=128, seed=0, cache_in_memory=0, read_buffer=int(sys.argv[2]))
for batch in data: pass
"""


def verdict(reached: bool, expected: str) -> str:
    """Returns the entry in the last column of the table, which shows whether a goal was reached."""
    return f"{expected}: {'reached' if reached else 'MISSED'}"


def run_accuracy(name: str, inputs: Inputs, num_images: int) -> str:
    """Compares the PSNR of evaluation images of `tf_input` with the PSNR of images from plain `tf.image.resize`. The
    reference images are decoded completely and resized with antialiasing."""
    import numpy as np
    import tensorflow as tf

    import tf_input
    from benchmarks.read_rivals import SIZE, antialiased, central_views

    def psnr(images: Any, references: Any) -> float:
        errors = np.mean((np.round(images).astype(np.float64) - references) ** 2, axis=(1, 2, 3))
        return float(np.mean(10 * np.log10(255**2 / np.maximum(errors, 1e-9))))

    directory = inputs.large_set
    references = np.round([image.numpy() for image in central_views(directory, num_images, antialiased)])
    plain = psnr(np.stack([image.numpy() for image in central_views(directory, num_images, tf.image.resize)]), references)
    batches = tf_input.open(directory).batches("train", batch_size=len(references), image_size=SIZE, shuffle=False)
    ours = psnr(next(iter(batches))[0].numpy(), references)
    must = verdict(ours > plain, "above 0")
    return FORMAT.format(
        name, "2000 px, evaluation", f"{ours:.1f} dB", "plain bilinear", f"{plain:.1f} dB", f"{ours - plain:+.1f} dB", must
    )


def run_resume(name: str, inputs: Inputs, repeats: int) -> str:
    """Measures the time to the first batch when an epoch resumes after nine tenths of its batches.

    The dataset is on a local disk or in a local object store that responds after 30 ms. Each measurement uses a new
    reader and a different step. Both shuffle modes are measured.
    """
    import tf_input
    from tests.range_server import RangeProcess

    num_steps = inputs.num_records // _BATCH_SIZE

    def race(directory: str, shuffle: str, most_s: float, location: str) -> str:
        took = []
        for turn in range(repeats + 1):
            start = time.perf_counter()
            batches = tf_input.open(directory).batches(
                "train", batch_size=_BATCH_SIZE, seed=0, shuffle=shuffle, cache_in_memory=0
            )
            batches.iterator_state.go_to(3, num_steps * 9 // 10 + turn)
            next(iter(batches))
            took.append(time.perf_counter() - start)
        must = verdict(statistics.median(took) < most_s, f"below {most_s:g} s")
        subject = f"{inputs.num_records:,} examples, {shuffle}"
        return FORMAT.format(name, subject, f"{statistics.median(took):.2f} s", location, "", f"at most {max(took):.2f} s", must)

    rows = [race(inputs.many_set, shuffle, 0.5, "") for shuffle in ("window", "exact")]
    with RangeProcess(pathlib.Path(inputs.many_set), delay_s=0.03) as server, mock.patch.dict(os.environ, server.environment("gs")):
        rows.append(race(server.root("gs"), "window", 2, "from a store, 30 ms"))  # Stores reject the exact order.
    return "\n".join(rows)


def run_memory(name: str, inputs: Inputs) -> str:
    """Compares the peak memory of readers with several buffer sizes and with a minimal buffer."""
    peaks = [measure([sys.executable, "-c", _READ_EPOCH, inputs.many_set, str(size)]).peak_bytes for size in _BUFFERS]
    rows = []
    for size, peak in zip(_BUFFERS[1:], peaks[1:]):
        more = peak - peaks[0]
        # The index of tiny records needs memory too.
        must = verdict(more <= 1.1 * size, f"{size >> 20} MiB and a tenth")
        subject, least = f"read_buffer of {size >> 20} MiB", f"of {_BUFFERS[0] >> 20} MiB"
        rows.append(FORMAT.format(name, subject, f"{peak >> 20} MiB", least, f"{peaks[0] >> 20} MiB", f"{more >> 20:+} MiB", must))
    return "\n".join(rows)
