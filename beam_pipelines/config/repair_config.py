"""RepairConfig: frozen, no I/O."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RepairConfig:
    """What `recordmill repair` is to do.

    Attributes:
        directory: The data set.
        shards: Which of its shards, by the names of their TFRecord files; empty: all.
        ignore: Glob patterns of file names that are not inputs, beside those of the run.
        is_dry: Whether to say only what is damaged.
    """

    directory: str
    shards: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    is_dry: bool = False
