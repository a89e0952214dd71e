"""The configuration of `recordmill quality`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class QualityConfig:
    """The configuration of `recordmill quality`.

    Attributes:
        paths: Paths or URLs of datasets, or of files, folders or patterns of TFRecord files.
        label: The name of the feature to analyze, or None for the dataset's label.
        plot: The path or URL of the image file for a plot. Empty means no plot.
    """

    paths: tuple[str, ...]
    label: str | None = None
    plot: str = ""
