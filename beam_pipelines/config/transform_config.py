"""The configuration of `recordmill transform`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformConfig:
    """The configuration of `recordmill transform`.

    Attributes:
        directory: The directory of a dataset that `recordmill analyze` has analyzed.
        output: The output directory of the dataset with the transformed examples.
        name: The name of the new dataset, with which the names of its shards begin.
        overwrite: Whether to replace an earlier dataset at the output when the new dataset is complete.
        shared_filesystem: Whether a cluster's workers can access the local paths.
    """

    directory: str
    output: str
    name: str
    overwrite: bool = False
    shared_filesystem: bool = False
