"""Encodes all feature values of an example except its image and label, for storage in the plan.

Small values are stored in the plan itself. Large values, such as long strings, are stored in temporary files (the
spool), and the plan contains their positions. Values are pickled. For safety, only the classes that are listed in this
module can be unpickled.
"""

import contextlib
import io
import pickle
import struct
from typing import Any, Callable, Iterator, Mapping

import numpy as np

from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.images.annotations import DrawnPoints, Objects, Regions, Segments
from beam_pipelines.storage.spool import SpoolReader, SpoolWriter, read_exactly

# Sorting and sending larger values costs more than reading them from the spool.
MAX_INLINE_BYTES = 2048

_INLINE, _SPOOLED = b"v", b"s"
_POINTER = struct.Struct("<cQQI")


def _array(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype).reshape(shape)


def _scalar(dtype: str, data: bytes) -> np.generic:
    return np.frombuffer(data, dtype)[0]


_MADE = {(kind.__module__, kind.__qualname__): kind for kind in (ArrayPart, DrawnPoints, FilePart, Objects, Regions, Segments, _array, _scalar)}


class ValueWriter:
    """Encodes values as bytes. The first large value creates the temporary file."""

    def __init__(self, spool: Callable[[], SpoolWriter]) -> None:
        self._spool = spool

    def encode(self, values: Mapping[str, Any] | None) -> bytes:
        """Encodes feature values of an example. Returns empty bytes if there are no values."""
        if not values:
            return b""
        data = _pickle(dict(values))
        if len(data) <= MAX_INLINE_BYTES:
            return _INLINE + data
        spool = self._spool()
        return _POINTER.pack(_SPOOLED, spool.spool, spool.append(data), len(data))


@contextlib.contextmanager
def value_writer(spool_directory: str | None) -> Iterator[ValueWriter]:
    """Context manager for a `ValueWriter`."""
    with contextlib.ExitStack() as stack:
        opened: list[SpoolWriter] = []

        def spool() -> SpoolWriter:
            if not opened:
                opened.append(stack.enter_context(SpoolWriter(spool_directory)))
            return opened[0]

        yield ValueWriter(spool)


def decode_values(data: bytes, spool: SpoolReader) -> Mapping[str, Any] | None:
    """Decodes feature values from `ValueWriter`. Returns None if there are no values.

    Raises:
        RunError: The spool cannot be read. The example itself may be valid.
        pickle.UnpicklingError: The bytes are corrupt.
    """
    if not data:
        return None
    if data[:1] == _SPOOLED:
        _, number, offset, length = _POINTER.unpack(data)
        return _Unpickler(io.BytesIO(read_exactly(spool, number, offset, length))).load()
    return _Unpickler(io.BytesIO(memoryview(data)[1:])).load()


def _pickle(values: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(values)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler whose output for arrays does not depend on the NumPy version."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return _array, (value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return _scalar, (value.dtype.str, value.tobytes())
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _MADE[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not the value of a feature") from None
