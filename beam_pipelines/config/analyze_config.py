"""AnalyzeConfig: frozen, no I/O."""

import dataclasses

FITS = ("crop", "stretch", "pad")


@dataclasses.dataclass(frozen=True)
class AnalyzeConfig:
    """What `recordmill analyze` is to do.

    Attributes:
        directory: The directory of the data set.
        splits: Names of the splits that are analysed. None: the training split alone, lest anything of the others leaks into the model;
            settled once the manifest is there.
        preprocessing_module: A file of Python that defines `preprocessing_fn`; None: the default one.
        image_size: (height, width) in pixels of the images that the default function makes; None: as stored if all have one size, else
            (224, 224).
        fit: What the default function shows of an image, one of `FITS`; None: what `tf_input.ReadConfig` says.
        overwrite: Whether an earlier analysis is replaced, once the new one is whole.
        shared_filesystem: Whether a cluster's workers see the local paths.
    """

    directory: str
    splits: tuple[str, ...] | None = None
    preprocessing_module: str | None = None
    image_size: tuple[int, int] | None = None
    fit: str | None = None
    overwrite: bool = False
    shared_filesystem: bool = False
