"""The configuration of `recordmill quality`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class QualityConfig:
    """The configuration of `recordmill quality`.

    Attributes:
        paths: Paths or URLs of datasets, or of files, folders or patterns of TFRecord files.
        label: The class feature to test. None selects the label of the dataset.
        plot: The path or URL of an image file for a plot. Empty means no plot.
        follow_links: Whether to follow symbolic links to folders or to files outside the given folders.
        split_folders: Whether files of other tools are named after splits. None detects split names.
    """

    paths: tuple[str, ...]
    label: str | None = None
    plot: str = ""
    follow_links: bool = False
    split_folders: bool | None = None
