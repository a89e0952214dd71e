"""Reads inputs and converts each input to an image or example to store, or to a dead letter."""

import base64
import bisect
import collections
import itertools
import time
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import NUM_THUMBNAILS, DeadLetter
from beam_pipelines.elements.extras import Extras
from beam_pipelines.elements.input_record import NO_IMAGE, ENTIRE_FILE, InputRecord, image_bytes
from beam_pipelines.elements.references import References
from beam_pipelines.elements.statistics import sum_pixels
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.errors import InvalidInput, RunError, printable
from beam_pipelines.images.image_headers import check_storable, identify
from beam_pipelines.images.images import CheckedImage, StoredImage, check_image, check_pixels, check_tensor, check_tiff_tensor
from beam_pipelines.images.visual_groups import digest_content
from beam_pipelines.images.perceptual_hash import load_for_hash, grey_pixels
from beam_pipelines.images.arrays import NPY_MAGIC, npy_image
from beam_pipelines.images.thumbnails import make_thumbnail_of_refused
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import Files, is_remote, read_in_any_form
from beam_pipelines.storage.input_errors import describe_fact
from beam_pipelines.storage.pinned_files import PinnedFiles
from beam_pipelines.storage.spool import SpoolReader, read_exactly
from beam_pipelines.tfrecord.record_reader import FRAME_BYTES, HEADER_BYTES

# A disk or store is slow if most recent reads took more than `_SLOW_SECONDS` in addition to the time for copying bytes.
_NUM_WAITS = 16
_SLOW_SECONDS = 400e-6
_SECONDS_OF_A_BYTE = 1e-9

_MAX_FRAMES_BYTES = 16 << 20  # The maximum size of records that are read together.


class ReadImage(NamedTuple):
    """A checked input: the bytes to store, and its properties.

    Attributes:
        data: The bytes of the image to store. Without an image, the serialized example.
        extras: The extra features, or None.
        image: The properties of the stored image.
        pixels: The sums over the pixels of a sampled image, or over the values of a sampled tensor.
    """

    data: bytes
    extras: Extras | None
    image: StoredImage
    pixels: TensorSums | None = None

    @property
    def num_bytes(self) -> int:
        """The total size of the input's stored images, in bytes."""
        others = self.extras.images.values() if self.extras else ()
        return len(self.data) + sum(image.num_bytes for image in others)


class ImageDigests(NamedTuple):
    """The data from which the hashes of an image are computed.

    Attributes:
        content: A digest of the image's bytes, 16 bytes.
        descriptor: A small gray version of the image, from `load_for_hash`. None if no perceptual hash is needed.
    """

    content: bytes
    descriptor: np.ndarray | None


class InputReader:
    """Reads inputs and converts each input to an image or example to store, or to a dead letter. Thread-safe."""

    def __init__(self, context: WriteContext, files: Files, spool: SpoolReader) -> None:
        self._context = context
        self._files = PinnedFiles(files, context.listing.versions)
        self._spool = spool
        self._waits: collections.deque[float] = collections.deque(maxlen=_NUM_WAITS)
        self._seen: dict[str, list[str]] = {}  # Reason -> the names of the first dead letters that have a thumbnail.

    def read_all(self, images: Iterable[InputRecord], sampled: Iterable[bool]) -> Iterator[ReadImage | DeadLetter]:
        """Yields the result of `read` for each input, in order.

        Inputs in an object store or on a slow disk are read ahead in threads.
        """
        return self._read_in_order(self.read, zip(images, sampled), self._context.extras.image_names)

    def read_frames(self, references: References) -> list[bytes] | None:
        """Returns records of TFRecord files, each with its header and its footer. Returns None if the records must be read
        with `read_all`, because they are large, compressed, corrupt, or not on a fast disk.

        Raises:
            DataError: A file has changed since it was listed.
        """
        rows, root = references.rows, self._context.listing.root
        if rows["spool"].any() or rows["num_bytes"].sum() > _MAX_FRAMES_BYTES or self.is_slow():
            return None
        paths = {path: f"{root}/{path.decode()}" for path in set(references.paths)}
        offsets, sizes = (rows["offset"] - HEADER_BYTES).tolist(), (rows["num_bytes"] + FRAME_BYTES).tolist()
        start = time.perf_counter()
        frames = self._files.read_ranges(list(zip(map(paths.__getitem__, references.paths), offsets, sizes)))
        if frames is None:
            return None
        seconds = (time.perf_counter() - start) / len(rows)
        self._waits.extend([seconds - sizes[0] * _SECONDS_OF_A_BYTE] * _NUM_WAITS)
        return frames if list(map(len, frames)) == sizes else None

    def digest_all(self, images: Iterable[InputRecord]) -> Iterator[ImageDigests | DeadLetter]:
        """Yields the result of `digest` for each input, in order. Inputs are read ahead as in `read_all`."""
        return self._read_in_order(self.digest, zip(images), ())

    def _read_in_order(self, read: Callable[..., Any], items: Iterator[tuple[Any, ...]], others: tuple[str, ...]) -> Iterator[Any]:
        if not is_remote(self._context.listing.root):
            for number, item in enumerate(items):
                if number % _NUM_WAITS == 0 and self.is_slow():
                    items = itertools.chain([item], items)
                    break
                yield read(*item)
        yield from read_ahead(lambda item: read(*item), ((item, image_bytes(item[0], others)) for item in items), _size_of)

    def is_slow(self) -> bool:
        """Returns whether most recent reads were slow, so that parallel reads would be faster.

        A few slow reads are ignored, because they can also occur when all cores are busy.
        """
        return len(self._waits) == _NUM_WAITS and sorted(self._waits)[_NUM_WAITS // 4] > _SLOW_SECONDS

    def read(self, image: InputRecord, is_sampled: bool) -> ReadImage | DeadLetter:
        """Reads, checks and encodes an input. An invalid input becomes a dead letter.

        Args:
            image: The reference to the input.
            is_sampled: Whether pixels are part of the statistics.

        Raises:
            StorageError: A disk or a store failed. The input may be valid.
            DataError: The file with the input has changed since it was listed.
        """
        context, data = self._context, b""
        try:
            if image.offset == NO_IMAGE:
                extras = self._encode_extras(image, None, is_sampled)
                encoded = context.encode(image, extras)
                return ReadImage(encoded, extras, StoredImage(len(encoded)))
            data = self._read_bytes(image)
            if not context.listing.schema:  # a record that is stored unchanged
                return ReadImage(data, None, StoredImage(len(data)))
            if context.spec.check == "none":
                if not data:
                    raise _UnreadableError("the file is empty")
                check_storable(data)
                return ReadImage(data, self._encode_extras(image, None, is_sampled), StoredImage(len(data)))
            checked = self._check(image, data, is_sampled)
            extras = self._encode_extras(image, checked, is_sampled)
        except (OSError, InvalidInput) as error:
            return self._reject(image, data, error)
        # Pixels are summed immediately, because the pixels of many photographs would need gigabytes.
        stored = data if checked.encoded is None else checked.encoded
        if is_sampled and context.tensor is not None:
            pixels = TensorSums.of(stored, context.tensor.dtype, context.tensor.shape[-1])
        else:
            pixels = None if checked.pixels is None else sum_pixels(checked.pixels)
        return ReadImage(stored, extras, checked.describe(len(stored)), pixels)

    def digest(self, image: InputRecord) -> ImageDigests | DeadLetter:
        """Reads an image for its hashes. The image is decoded and checked only for perceptual hashes.

        Raises:
            StorageError: A disk or a store failed. The image may be valid.
        """
        data = b""
        try:
            data = self._read_bytes(image)
            descriptor = self._describe_pixels(image, data) if self._context.spec.hashes_images else None
        except (OSError, InvalidInput) as error:
            return self._reject(image, data, error)
        return ImageDigests(digest_content(data), descriptor)

    def _describe_pixels(self, image: InputRecord, data: bytes) -> np.ndarray | None:
        """Returns the small gray image from which the perceptual hash is computed. Returns None for a tensor."""
        if self._context.tensor is not None:
            return None
        raw, pixels = (image.raw, data) if image.raw or not data.startswith(NPY_MAGIC) else npy_image(data)
        return load_for_hash(data, self._context.spec.check) if raw is None else grey_pixels(pixels, raw)

    def _read_bytes(self, image: InputRecord) -> bytes:
        """Returns the bytes of an image. The header of a `.npy` file inside an archive or a record is removed."""
        root, start = self._context.listing.root, time.perf_counter()
        if image.spool:
            data = self._read_spool(image)
        elif image.offset == ENTIRE_FILE:
            data = read_in_any_form(self._files.read, root, image.path)
        else:
            data = self._files.read_range(f"{root}/{image.path}", image.offset, image.num_bytes)
            if len(data) != image.num_bytes:
                raise _UnreadableError(f"{len(data)} bytes at {image.offset} instead of {image.num_bytes}")
        if not image.spool:
            self._waits.append(time.perf_counter() - start - len(data) * _SECONDS_OF_A_BYTE)
        return npy_image(data)[1] if image.raw is not None and data.startswith(NPY_MAGIC) else data

    def _read_spool(self, image: InputRecord) -> bytes:
        """Reads from a temporary file. Raises `RunError` if the file is missing."""
        try:
            return read_exactly(self._spool, image.spool, image.offset, image.num_bytes)
        except RunError as error:
            raise type(error)(f"{printable(image.path)}: {error}") from error

    def _reject(self, image: InputRecord, data: bytes, error: OSError | InvalidInput) -> DeadLetter:
        """Returns the dead letter of an invalid input. Raises `StorageError` if the error may be temporary."""
        if isinstance(error, OSError):
            root = self._context.listing.root
            path = error.filename if isinstance(error.filename, str) else f"{root}/{image.path}"
            reason = describe_fact(error, path)
            of_another = f"{printable(path.removeprefix(f'{root}/'))}: " * (path != f"{root}/{image.path}")
            error = _UnreadableError(of_another + reason)
        if isinstance(error, _UnreadableError):
            return DeadLetter.of(_name_of(image), error, "read")
        return self._reject_content(image, data, error)

    def _reject_content(self, image: InputRecord, data: bytes, error: InvalidInput) -> DeadLetter:
        """Returns the dead letter of an input with invalid contents.

        Only the first dead letters of each reason, sorted by name, have a thumbnail. They do not depend on the order in
        which inputs are read.
        """
        letter = DeadLetter.of(_name_of(image), error, "check")
        seen = self._seen.setdefault(letter.reason, [])
        if len(seen) >= NUM_THUMBNAILS and letter.path > seen[-1]:
            return letter
        thumbnail = make_thumbnail_of_refused(data, image.raw)
        if thumbnail is None:
            return letter
        # Safe with several threads, because only a name after NUM_THUMBNAILS other names is deleted.
        bisect.insort(seen, letter.path)
        del seen[NUM_THUMBNAILS:]
        return letter._replace(thumbnail=base64.b64encode(thumbnail.encoded).decode())

    def _check(self, image: InputRecord, data: bytes, is_sampled: bool) -> CheckedImage:
        context, raw, pixels = self._context, image.raw, data
        if raw is None and data.startswith(NPY_MAGIC):
            raw, pixels = npy_image(data)
        if context.tensor is not None:
            if raw is None and identify(data) == "tiff":
                return check_tiff_tensor(data, context.tensor)
            return check_tensor(pixels, raw, context.tensor, "npy" if image.raw is None else "raw")
        if raw is not None:
            checked = check_pixels(pixels, raw, context.spec.images, full_scale=is_sampled, is_file=image.raw is None)
        else:
            is_checked = context.spec.hashes_images  # The image was checked when it was hashed.
            checked = check_image(data, context.spec.check, full_scale=is_sampled, images=context.spec.images, is_checked=is_checked)
        if context.pixel_bytes is not None:
            num_bytes = len(data if checked.encoded is None else checked.encoded)
            if num_bytes != context.pixel_bytes:
                raise InvalidInput("bad_image", f"{num_bytes} bytes of pixels; all images must have {context.pixel_bytes}")
        return checked

    def _encode_extras(self, image: InputRecord, checked: CheckedImage | None, is_sampled: bool) -> Extras | None:
        if not self._context.extras.features:
            return None
        return self._context.extras.encode(image.values or {}, checked and checked.geometry, self._files, self._spool, is_sampled)


def _size_of(result: ReadImage | DeadLetter) -> int:
    return result.num_bytes if isinstance(result, ReadImage) else 0


class _UnreadableError(InvalidInput):
    """Raised if the bytes of an image are missing or incomplete."""

    def __init__(self, message: str) -> None:
        super().__init__("unreadable", message)


def _name_of(image: InputRecord) -> str:
    """Returns a readable name of an input: its path or, in files with several images, its path and key."""
    is_file = image.offset == ENTIRE_FILE and not image.spool
    return image.path if is_file else image.key if image.key.startswith(image.path) else f"{image.path}/{image.key}"
