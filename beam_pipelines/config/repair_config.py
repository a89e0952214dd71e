"""The configuration of `recordmill repair`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RepairConfig:
    """The configuration of `recordmill repair`.

    Attributes:
        directory: The directory of the dataset.
        shards: The names of the TFRecord files to repair, with their indexes and catalogs. Empty means all shards.
        ignore: Glob patterns of file names that are not inputs, in addition to the patterns of the original run.
        is_dry: Whether to only report corrupt files.
    """

    directory: str
    shards: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    is_dry: bool = False
