"""TransformConfig: frozen, no I/O."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformConfig:
    """What `recordmill transform` is to do.

    Attributes:
        directory: The data set, analysed.
        output: The directory that becomes the data set of transformed examples.
        name: Of that data set; its shards begin with it.
        overwrite: A data set at the output is replaced, once the new one is whole.
        shared_filesystem: A cluster's workers see the local paths.
    """

    directory: str
    output: str
    name: str
    overwrite: bool = False
    shared_filesystem: bool = False
