"""Defines the parameters of `recordmill transform` and the results that workers return."""

import dataclasses
import hashlib
import math
import os
from collections import Counter
from typing import NamedTuple

from beam_pipelines.config.job_options import TransformOptions
from beam_pipelines.elements.plan import ShardAddress
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.errors import UserError, printable
from beam_pipelines.publish.check_paths import check_output
from beam_pipelines.storage.files import is_remote
from beam_pipelines.tfrecord.example_encoder import value_chunk
from beam_pipelines.transform.analysis_directory import image_sides, open_for_analysis
from tf_input.dataset_format import IMAGE, LABEL, Feature, Manifest, ShardInfo
from tf_input.regular_files import read_regular
from tf_input.transform.transform_format import TRANSFORM, TRANSFORM_FN, TransformInfo, decode_transform

_VALUE_BYTES = {"int64": 8, "float": 4, "bytes": 0}
_DECODED_RATIO = 16  # Estimated ratio of decoded to stored size for images of unknown dimensions.


@dataclasses.dataclass(frozen=True, eq=False)
class TransformJob:
    """The parameters of a `recordmill transform` run, with defaults for all unset options.

    Attributes:
        directory: The directory of the dataset, which contains an analysis.
        manifest: The manifest of the dataset.
        schema: The schema of the transformed examples.
        targets: The names of the features that a model predicts.
        transform_digest: The digest of the transform graph. If it changes, the run fails.
        example_bytes: The approximate memory of a decoded and transformed example, in bytes.
        output: The directory of the new dataset.
        name: The name of the new dataset.
    """

    directory: str
    manifest: Manifest
    schema: tuple[Feature, ...]
    targets: tuple[str, ...]
    transform_digest: str
    example_bytes: int
    output: str
    name: str

    @property
    def has_label(self) -> bool:
        """Whether each example has exactly one class, which is then stored in the index."""
        return any(item.name == LABEL and item.is_categorical and not item.shape for item in self.schema)

    @property
    def image_chunk(self) -> int | None:
        """The index of the image in the result of `encode_chunks`, or None if the image is not stored as bytes."""
        is_stored = any(item.name == IMAGE and item.may_be_image for item in self.schema)
        return value_chunk(self.schema, IMAGE) if is_stored else None


class TransformedShard(NamedTuple):
    """A completed shard.

    Attributes:
        address: The split and the index of the shard.
        info: The entry of the shard in the manifest.
        labels: A mapping from class feature to the summary of its labels, for the shuffle quality.
        label_counts: A mapping from class feature to the number of occurrences of each label.
    """

    address: ShardAddress
    info: ShardInfo
    labels: dict[str, LabelSequence]
    label_counts: dict[str, Counter[int]]


def make_job(options: TransformOptions) -> TransformJob:
    """Checks the dataset, its transform graph and the output path, and returns the parameters of the run.

    Raises:
        UserError: The dataset has no valid analysis, or the output path is not usable.
    """
    manifest = open_for_analysis(options.directory, "transform")
    if is_remote(options.output):
        raise UserError(
            f"{options.output} is a URL. `recordmill transform` writes to local and mounted directories only."
        )
    info, digest = _read_transform(options.directory, manifest)
    check_output(options.output, options.directory, options.overwrite, "OUT2")
    return TransformJob(
        directory=os.path.realpath(options.directory),
        manifest=manifest,
        schema=info.schema,
        targets=info.targets,
        transform_digest=digest,
        example_bytes=_example_bytes(options.directory, manifest, info.schema),
        output=os.path.realpath(options.output),
        name=options.name,
    )


def _read_transform(directory: str, manifest: Manifest) -> tuple[TransformInfo, str]:
    """Returns the description and the digest of a transform graph."""
    path = f"{directory}/{TRANSFORM}"
    try:
        data = read_regular(path)
        digest = hashlib.sha256(data + read_regular(f"{directory}/{TRANSFORM_FN}/saved_model.pb"))
        return decode_transform(data, path, manifest), digest.hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        shown = printable(directory)
        raise UserError(f"{shown} has no transform. Run `recordmill analyze {shown}` first.") from None
    except (OSError, ValueError) as error:
        raise UserError(printable(str(error))) from None


def _example_bytes(directory: str, manifest: Manifest, schema: tuple[Feature, ...]) -> int:
    """Returns the approximate memory that an example needs during the transform, in bytes."""
    sides = image_sides(directory, manifest)
    shards = [shard for shards in manifest.splits.values() for shard in shards]
    stored = sum(shard.num_bytes for shard in shards) // max(1, sum(shard.num_examples for shard in shards))
    num_images = max(1, sum(feature.may_be_image for feature in manifest.schema))
    decoded = 3 * num_images * math.prod(side["max"] for side in sides) if all(sides) else _DECODED_RATIO * stored
    outputs = [_VALUE_BYTES[item.storage] * math.prod(side or 1 for side in item.shape) for item in schema]
    return stored + decoded + sum(outputs)
