"""RepairConfig: frozen, no I/O."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RepairConfig:
    """What `recordmill repair` is to do.

    Attributes:
        directory: The directory of the data set.
        shards: The names of the TFRecord files whose shards are repaired; empty: all.
        ignore: Glob patterns of file names that are not inputs, beside the patterns of the run that wrote the data set.
        is_dry: Whether to say only what is damaged.
    """

    directory: str
    shards: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    is_dry: bool = False
