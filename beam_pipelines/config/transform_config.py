"""The options of `recordmill transform`."""

import dataclasses

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.shared_options import path, shared_filesystem
from beam_pipelines.config.values import NAME, check_name, default_name, parse_name


@dataclasses.dataclass(frozen=True)
class TransformConfig(Options):
    """Applies the graph from `recordmill analyze` to every example, and writes the transformed examples as a new
    dataset."""

    summary = "Write a dataset of transformed examples, in the same order and shards."
    examples = """\
examples:
  recordmill analyze out/flowers
  recordmill transform out/flowers out/flowers_transformed
"""

    directory: str = path(name="OUT", help="Path of a dataset that `recordmill analyze` has analyzed.")
    output: str = path(name="OUT2", help="Path of the directory for the transformed dataset.")
    name: str = option(
        "", parse=parse_name, expected=NAME,
        help="Name of the transformed dataset, which is also the prefix of the shard names. Default: derived from the "
        "last part of OUT2.",
    )
    overwrite: bool = option(False, help="Replace an existing dataset at OUT2 when the new dataset is complete.")
    shared_filesystem: bool = shared_filesystem()

    def check_combination(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", default_name(self.output))
        check_name("--name", self.name, NAME)
