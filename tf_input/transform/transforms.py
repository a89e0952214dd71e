"""Reads the transform of a dataset and applies its graph to parsed records."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import tempfile
from typing import Any, Collection, Iterable

from tf_input.dataset_format import IMAGE, Feature, Manifest
from tf_input.decoding.schema import parse_examples
from tf_input.features.roles import is_dense_target
from tf_input.lazy_tensorflow import tf
from tf_input.storage.files import Files
from tf_input.storage.paths import join, local_path
from tf_input.transform.transform_format import TRANSFORM, TRANSFORM_FN, TransformInfo, decode_transform
from tf_input.transform.transform_graph import TransformGraph

_SAVED_MODEL = f"{TRANSFORM_FN}/saved_model.pb"


class Transform:
    """A transform that `recordmill analyze` wrote next to a dataset.

    Args:
        directory: The directory of the dataset.
        files: The reader of the files.
        cache: The folder for a copy of the graph if the dataset is remote. None uses a temporary copy.
        manifest: The manifest of the dataset.

    Attributes:
        info: The contents of `transform.json`.
        digest: The hash that identifies the transform.

    Raises:
        FileNotFoundError: There is no transform.
        OSError: The transform can't be read.
        ValueError: The transform is corrupt, or belongs to another version of the dataset.
    """

    def __init__(
        self, directory: str | os.PathLike[str], files: Files, cache: pathlib.Path | None, manifest: Manifest
    ) -> None:
        self._directory, self._files, self._cache = directory, files, cache
        path = join(directory, TRANSFORM)
        try:
            data, graph = files.read(path), files.read(join(directory, _SAVED_MODEL))
        except FileNotFoundError:
            raise FileNotFoundError(f"{directory} has no transform. {_missing(directory, manifest)}.") from None
        self.info: TransformInfo = decode_transform(data, path, manifest)
        self.digest = hashlib.sha256(data + graph).hexdigest()

    @functools.cached_property
    def graph(self) -> TransformGraph:
        """The graph, which is loaded on first access."""
        with tf.device("CPU:0"):  # the input pipeline and the tables of the graph are on the CPU
            return TransformGraph(self._local_copy())

    def _local_copy(self) -> str:
        """Returns the local path of the graph, which TensorFlow may read again when it exports the graph."""
        path = join(self._directory, TRANSFORM_FN)
        if self._files.is_local:
            return local_path(path)
        if self._cache is None:
            self._scratch = tempfile.TemporaryDirectory()  # exists as long as this object
            self._files.copy_directory(path, copy := os.path.join(self._scratch.name, TRANSFORM_FN))
            return copy
        kept = self._cache / f"{TRANSFORM_FN}-{self.digest[:16]}"
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
                self._files.copy_directory(path, copy := os.path.join(scratch, TRANSFORM_FN))
                try:
                    os.rename(copy, kept)
                except OSError:  # another process was faster
                    if not kept.exists():
                        raise
        return os.fspath(kept)

    def parse(self, serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str]) -> dict[str, Any]:
        """Parses records to transformed features. The method parses only the stored features that are needed to compute
        the requested features.

        Args:
            serialized: The serialized records, string [batch].
            schema: The features of the records.
            names: The names of the wanted transformed features.

        Returns:
            The features by name, [batch, ...], ragged if the preprocessing returns ragged tensors.
        """
        inputs = parse_examples(serialized, schema, self.graph.inputs_of(names))
        outputs = self.graph.apply(inputs, names)
        for value in outputs.values():
            if isinstance(value, tf.Tensor):  # in the graph, the batch size is unknown
                value.set_shape([serialized.shape[0], *value.shape[1:]])
        return outputs


def _missing(directory: str | os.PathLike[str], manifest: Manifest) -> str:
    image = manifest.features.get(IMAGE)
    if image is not None and is_dense_target(image):
        return "For a dataset from `recordmill transform`, use transform=False, or open the dataset it was made from"
    return f"Run `recordmill analyze {directory}` first"
