"""The configuration of `recordmill analyze`."""

import dataclasses

FITS = ("crop", "stretch", "pad")


@dataclasses.dataclass(frozen=True)
class AnalyzeConfig:
    """The configuration of `recordmill analyze`.

    Attributes:
        directory: The directory of the dataset.
        splits: The names of the splits to analyze. None selects the training split when the manifest is read, so that
            no information about other splits leaks into the model.
        preprocessing_module: A Python file that defines `preprocessing_fn`. None selects the default preprocessing.
        image_size: The (height, width) in pixels of images that the default preprocessing returns. None keeps the
            stored size if all images have the same size, and selects (224, 224) otherwise.
        fit: How the default preprocessing fits images to the size, one of `FITS`. None selects the default of
            `tf_input.ReadConfig`.
        overwrite: Whether to replace an earlier analysis when the new analysis is complete.
        shared_filesystem: Whether workers on a cluster can access local paths.
    """

    directory: str
    splits: tuple[str, ...] | None = None
    preprocessing_module: str | None = None
    image_size: tuple[int, int] | None = None
    fit: str | None = None
    overwrite: bool = False
    shared_filesystem: bool = False
