"""The options of `recordmill leaks`."""

import dataclasses

from beam_pipelines.config.option import Options
from beam_pipelines.config.shared_options import MAX_DUPLICATE_DISTANCE, as_json, duplicate_distance, follow_links, paths, split_folders


@dataclasses.dataclass(frozen=True)
class LeaksConfig(Options):
    """Finds near-duplicate images and groups that are in several splits, and near-duplicates with different labels.
    Near-duplicates include recompressed, resized, recolored and flipped copies. If the dataset was prepared with
    --duplicates and without --exact_only, the command reads perceptual hashes from the catalogs. Otherwise it reads the
    images. The data does not change.

    The command also reads TFRecord files from other tools: a file, a folder or a pattern. Files whose names differ only
    in the shard number (NAME-00000-of-00002) form one split. Labels are read from the layouts that `prepare` detects."""

    summary = "Find near-duplicate images and groups that span splits or datasets."
    examples = """\
examples:
  recordmill leaks out/flowers
  recordmill leaks out/mine out/benchmark --json
  recordmill leaks 'records/train-*' records/test

The exit code is 0 if there are no leaks, and 1 if there are leaks. The output counts the pairs and names the first few.
"""

    datasets: tuple[str, ...] = paths(
        name="OUT", check=lambda names: len(set(names)) == len(names), expected="each dataset only once",
        help="Path or URL of a dataset, or path, pattern or URL of TFRecord files. Several datasets are also compared "
        "with each other.",
    )
    distance: int = duplicate_distance(MAX_DUPLICATE_DISTANCE, "--duplicate_distance")
    follow_links: bool = follow_links("OUT", "are skipped with a warning")
    split_folders: bool | None = split_folders()
    as_json: bool = as_json()
