"""The transform of a data set, as its reader has it: what it says, its graph, and records -> transformed features."""

import functools
import hashlib
import os
import pathlib
import tempfile
from typing import Any, Collection, Iterable

import tensorflow as tf

from tf_input.dataset_format import IMAGE, Feature, Manifest
from tf_input.decoding.schema import is_map, parse_examples
from tf_input.storage.files import Files
from tf_input.storage.paths import join, local_path
from tf_input.transform.transform_format import TRANSFORM, TRANSFORM_FN, TransformInfo, decode_transform
from tf_input.transform.transform_graph import TransformGraph

_SAVED_MODEL = f"{TRANSFORM_FN}/saved_model.pb"


class Transform:
    """What `recordmill analyze` wrote beside a data set.

    Args:
        directory: The directory of the data set.
        files: The files that it is read from.
        cache: The folder where a copy of the graph is kept, where the data set is not on this machine; None: one is made anew, and removed.
        manifest: The manifest of the data set.

    Attributes:
        info: The facts that it says of itself.
        digest: The digest of the transform: another one, another transform.

    Raises:
        FileNotFoundError: There is none.
        OSError: It can't be read.
        ValueError: It is damaged, or of another version of the data set.
    """

    def __init__(
        self, directory: str | os.PathLike[str], files: Files, cache: pathlib.Path | None, manifest: Manifest
    ) -> None:
        self._directory, self._files, self._cache = directory, files, cache
        path = join(directory, TRANSFORM)
        try:
            data, graph = files.read(path), files.read(join(directory, _SAVED_MODEL))
        except FileNotFoundError:
            raise FileNotFoundError(f"{directory} has no transform; expected {_missing(directory, manifest)}") from None
        self.info: TransformInfo = decode_transform(data, path, manifest)
        self.digest = hashlib.sha256(data + graph).hexdigest()

    @functools.cached_property
    def graph(self) -> TransformGraph:
        """Loaded once, when it is first needed."""
        with tf.device("CPU:0"):  # where data are read, and where its tables are
            return TransformGraph(self._local_copy())

    def _local_copy(self) -> str:
        """Where TensorFlow loads the graph from, whose tables it may read again when the graph is exported."""
        path = join(self._directory, TRANSFORM_FN)
        if self._files.is_local:
            return local_path(path)
        if self._cache is None:
            self._scratch = tempfile.TemporaryDirectory()  # which lasts as long as this
            self._files.copy_directory(path, copy := os.path.join(self._scratch.name, TRANSFORM_FN))
            return copy
        kept = self._cache / f"{TRANSFORM_FN}-{self.digest[:16]}"
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
                self._files.copy_directory(path, copy := os.path.join(scratch, TRANSFORM_FN))
                try:
                    os.rename(copy, kept)
                except OSError:  # another process was quicker
                    if not kept.exists():
                        raise
        return os.fspath(kept)

    def parse(self, serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str]) -> dict[str, Any]:
        """Records -> some transformed features; what these do not depend on is not parsed.

        Args:
            serialized: The serialized records, string [batch].
            schema: The features of the records.
            names: The names of the transformed features that are wanted.

        Returns:
            The features by name, [batch, ...], ragged where the preprocessing made such.
        """
        inputs = parse_examples(serialized, schema, self.graph.inputs_of(names))
        outputs = self.graph.apply(inputs, names)
        for value in outputs.values():
            if isinstance(value, tf.Tensor):  # the graph does not know how many examples a batch has
                value.set_shape([serialized.shape[0], *value.shape[1:]])
        return outputs


def _missing(directory: str | os.PathLike[str], manifest: Manifest) -> str:
    image = manifest.features.get(IMAGE)
    if image is not None and is_map(image):
        return "transform=False for what `recordmill transform` wrote, or the data set that it was made from"
    return f"`recordmill analyze {directory}` first"
