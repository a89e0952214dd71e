"""TransformConfig: frozen, no I/O."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformConfig:
    """What `recordmill transform` is to do.

    Attributes:
        directory: The directory of the data set, which is analysed.
        output: The directory that becomes the data set of transformed examples.
        name: The name of the new data set; its shards begin with it.
        overwrite: Whether a data set at the output is replaced, once the new one is whole.
        shared_filesystem: Whether a cluster's workers see the local paths.
    """

    directory: str
    output: str
    name: str
    overwrite: bool = False
    shared_filesystem: bool = False
