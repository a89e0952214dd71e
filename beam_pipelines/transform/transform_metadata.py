"""Creates the metadata of a transformed dataset and publishes the dataset."""

from collections import Counter
from typing import Any, Mapping, Sequence

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.quality import ShuffleQualities
from beam_pipelines.errors import RunError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.publish.metadata import label_statistics, metadata_files
from beam_pipelines.publish.publishing import publish_files
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.metadata_files import read_object
from beam_pipelines.transform.transform_job import TransformedShard, TransformJob
from tf_input.dataset_format import DEAD_LETTERS, IMAGE, MANIFEST, OBJECTS, STATISTICS, Manifest


def publish_transformed(
    job: TransformJob, run: RunPaths, run_info: Mapping[str, Any], shards: Sequence[TransformedShard]
) -> str:
    """Writes the metadata of a dataset after all its shards are complete, and publishes the dataset.

    Raises:
        RunError: The source dataset has changed during the run.
    """
    interrupts.check()
    read = files_at(job.directory).read
    if read(f"{job.directory}/{MANIFEST}").decode() != job.manifest.to_json():
        raise RunError(f"{printable(job.directory)} was replaced during the transform. Run the command again.")
    by_split = {
        split: sorted((shard for shard in shards if shard.address.split == split), key=lambda s: s.address.shard_index)
        for split in job.manifest.splits
    }
    manifest = make_manifest(job, by_split)
    statistics = transformed_statistics(manifest, by_split, job.manifest, read_object(job.directory, job.manifest, STATISTICS))
    publish_files(run, manifest, metadata_files(manifest, statistics, run_info), {DEAD_LETTERS: ()})
    return job.name


def make_manifest(job: TransformJob, shards: Mapping[str, Sequence[TransformedShard]]) -> Manifest:
    """Returns the manifest of the transformed dataset."""
    return Manifest(
        name=job.name,
        seed=job.manifest.seed,
        schema=job.schema,
        targets=job.targets,
        splits={split: tuple(shard.info for shard in shards[split]) for split in job.manifest.splits},
        num_inputs=sum(map(job.manifest.num_examples, job.manifest.splits)),
        num_dead_letters=0,
        about=job.manifest.about,
    )


def transformed_statistics(
    manifest: Manifest,
    shards: Mapping[str, Sequence[TransformedShard]],
    source: Manifest,
    stored: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the contents of `statistics.json`.

    The statistics of unchanged images, masks and boxes are copied from the source dataset. Statistics of changed
    features are unknown.

    Args:
        manifest: The manifest of the transformed dataset.
        shards: The shards of each split, in order.
        source: The manifest of the source dataset.
        stored: The contents of `statistics.json` of the source dataset.
    """
    features = manifest.features
    is_same = IMAGE in features and features[IMAGE].may_be_image and features[IMAGE] == source.features.get(IMAGE)
    unknown = {**dict.fromkeys(stored.get("images", {})), "num_images": manifest.num_inputs if IMAGE in features else 0, "reencoded": {}}
    facts: dict[str, Any] = {"images": stored["images"] if is_same else unknown, "num_ignored_files": 0, "warnings": []}
    others = {name: item for name, item in stored.get("other_images", {}).items() if features.get(name) == source.features.get(name)}
    if others:
        facts["other_images"] = others
    if any(feature.is_mask for feature in manifest.schema):
        facts["mask"] = stored.get("mask")
    if f"{OBJECTS}/bbox" in features:
        facts["boxes"] = {"num_dropped": 0, "num_clipped": 0}
    facts["splits"] = {
        split: _split_statistics(manifest, split, shards[split], stored["splits"][split] if is_same else {})
        for split in manifest.splits
    }
    return facts


def _split_statistics(
    manifest: Manifest, split: str, shards: Sequence[TransformedShard], stored: Mapping[str, Any]
) -> dict[str, Any]:
    counts: dict[str, Counter[int]] = {}
    for shard in shards:
        for name, labels in shard.label_counts.items():
            counts.setdefault(name, Counter()).update(labels)
    facts: dict[str, Any] = {"num_examples": manifest.num_examples(split), "image_bytes": stored.get("image_bytes")}
    facts |= label_statistics(counts, manifest.schema)
    facts["pixels"] = stored.get("pixels")
    qualities = ShuffleQualities()
    for index, shard in enumerate(shards):
        qualities.add(index, shard.labels)
    facts["shuffle"] = qualities.to_json()
    return facts
