"""The configuration of `recordmill transform`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformConfig:
    """The configuration of `recordmill transform`.

    Attributes:
        directory: The directory of a dataset with an analysis from `recordmill analyze`.
        output: The output directory of the transformed dataset.
        name: The name of the transformed dataset, with which the names of its shards begin.
        overwrite: Whether to replace an existing dataset when the new dataset is complete.
        shared_filesystem: Whether workers on a cluster can access local paths.
    """

    directory: str
    output: str
    name: str
    overwrite: bool = False
    shared_filesystem: bool = False
