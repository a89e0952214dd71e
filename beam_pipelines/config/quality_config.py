"""QualityConfig: frozen, no I/O."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class QualityConfig:
    """What `recordmill quality` is to do.

    Attributes:
        paths: Data sets, or files, folders or patterns of TFRecords, as paths or URLs.
        label: The name of the feature to look at; None: what is known as the label.
        plot: The file where a picture goes, a path or a URL; empty: none is drawn.
    """

    paths: tuple[str, ...]
    label: str | None = None
    plot: str = ""
