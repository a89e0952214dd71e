"""The configuration of `recordmill analyze`."""

import dataclasses

FITS = ("crop", "stretch", "pad")


@dataclasses.dataclass(frozen=True)
class AnalyzeConfig:
    """The configuration of `recordmill analyze`.

    Attributes:
        directory: The directory of the dataset.
        splits: The names of the splits to analyze. If None, only the training split is analyzed, so that no information
            about the other splits leaks into the model. The training split is resolved when the manifest is read.
        preprocessing_module: A Python file that defines `preprocessing_fn`, or None for the default function.
        image_size: The (height, width) in pixels of the images that the default function returns. If None, images keep
            their stored size if all have the same size, and get the size (224, 224) otherwise.
        fit: How the default function fits an image to the size, one of `FITS`. If None, the default of
            `tf_input.ReadConfig` applies.
        overwrite: Whether to replace an earlier analysis when the new analysis is complete.
        shared_filesystem: Whether a cluster's workers can access the local paths.
    """

    directory: str
    splits: tuple[str, ...] | None = None
    preprocessing_module: str | None = None
    image_size: tuple[int, int] | None = None
    fit: str | None = None
    overwrite: bool = False
    shared_filesystem: bool = False
