"""The options of `recordmill verify`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import as_json, path, shared_filesystem


@dataclasses.dataclass(frozen=True)
class VerifyConfig(Options):
    """Checks the manifest, the size and checksum of each shard, and the framing of each record. Checks that the index
    and the catalog match the records, and that the examples match the schema. Checks that no key occurs twice, and that
    no group is in two splits. Recomputes the statistics from the records. The dataset does not change."""

    summary = "Check that a dataset is complete and intact."
    examples = """\
examples:
  recordmill verify out/flowers
  recordmill verify gs://data/flowers --quick --json

The exit code is 0 if the dataset is intact, and 1 if it is corrupt. For each problem, the output names the file, the
record, the byte and the reason.
"""

    directory: str = path(name="OUT", help="Path or URL of the dataset.")
    is_quick: bool = option(False, "--quick", help="Check only the manifest and the sizes of the files, which takes seconds.")
    decodes: bool = option(
        False, "--decode", excludes="quick",
        help="Also decode each image and mask, and recompute the pixel statistics.",
    )
    as_json: bool = as_json()
    report: str = path(
        "", metavar="FILE",
        help="Also write the result to FILE as JSON. On a cluster, the workers must be able to write FILE.",
    )
    shared_filesystem: bool = shared_filesystem()
