"""Reads with Grain and WebDataset for the comparison with `tf_input`.

Grain and WebDataset leave the decoding to the user. The benchmark therefore uses the fastest decoders in our tests:
simplejpeg (libjpeg-turbo) and OpenCV. Each function returns an infinite iterator over `(images, labels)`, which are
uint8 [batch, SIZE, SIZE, 3] and int64 [batch].
"""

import math
import os
import queue
import threading
from typing import Any, Iterable, Iterator, Sequence

import numpy as np

from benchmarks.read_inputs import LABEL

SIZE = 224
_MIN_AREA, _MAX_STRETCH, _NUM_ATTEMPTS = 0.08, 4 / 3, 10
_SHUFFLE_RECORDS = 2048

Batches = Iterator[tuple[Any, Any]]


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def grain(paths: Sequence[str], batch_size: int) -> Batches:
    """Reads all records of ArrayRecord files in random order with a Grain `MapDataset` and threads."""
    import grain.python

    def view(record: bytes, random: np.random.Generator) -> tuple[np.ndarray, int]:
        return random_view(record[LABEL.size :], random), LABEL.unpack_from(record)[0]

    data = grain.python.MapDataset.source(grain.python.ArrayRecordDataSource(list(paths)))
    data = data.seed(0).shuffle().repeat().random_map(view).batch(batch_size)
    threads = grain.python.ReadOptions(num_threads=2 * num_cores(), prefetch_buffer_size=4 * num_cores())
    return iter(data.to_iter_dataset(threads))


def webdataset(paths: Sequence[str], batch_size: int) -> Batches:
    """Reads tar files with WebDataset in one thread per core. Separate processes would have to exchange batches."""
    import webdataset

    def batches(share: list[str], seed: int) -> Batches:
        random = np.random.default_rng(seed)
        data = webdataset.WebDataset(share, shardshuffle=len(share), seed=seed, empty_check=False).repeat()
        data = data.shuffle(_SHUFFLE_RECORDS // num_cores()).to_tuple("jpg", "cls")
        data = data.map(lambda example: (random_view(example[0], random), int(example[1])))
        return iter(data.batched(batch_size))

    return merge([batches(list(paths[index :: num_cores()]), index) for index in range(num_cores())])


def merge(sources: Sequence[Iterable[Any]]) -> Iterator[Any]:
    """Yields the items of infinite iterables until the generator is closed. Each iterable is read in its own thread."""
    ready: queue.Queue[Any] = queue.Queue(len(sources))
    ended = threading.Event()

    def pump(source: Iterable[Any]) -> None:
        try:
            for item in source:
                if not _put(ready, item, ended):
                    return
        except Exception as error:  # Raised again in the reading thread.
            _put(ready, error, ended)

    for source in sources:
        threading.Thread(target=pump, args=(source,), daemon=True).start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        ended.set()


def _put(ready: queue.Queue, item: Any, ended: threading.Event) -> bool:
    """Puts an item into a queue. Returns False if the reader has stopped."""
    while not ended.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def random_view(encoded: bytes, random: np.random.Generator) -> np.ndarray:
    """Returns a randomly flipped random crop of a JPEG, resized to uint8 [SIZE, SIZE, 3]. The crop covers 8 to 100 % of
    the image area."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(encoded, "RGB")
    top, left, height, width = random_box(*pixels.shape[:2], random)
    image = cv2.resize(pixels[top : top + height, left : left + width], (SIZE, SIZE))
    return image[:, ::-1] if random.random() < 0.5 else image


def random_box(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Returns a random crop box (top, left, height, width)."""
    for _ in range(_NUM_ATTEMPTS):
        area = height * width * random.uniform(_MIN_AREA, 1)
        aspect = math.exp(random.uniform(-math.log(_MAX_STRETCH), math.log(_MAX_STRETCH)))
        rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            return int(random.integers(height - rows + 1)), int(random.integers(width - columns + 1)), rows, columns
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side
