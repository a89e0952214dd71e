"""AnalyzeConfig: frozen, no I/O."""

import dataclasses

FITS = ("crop", "stretch", "pad")


@dataclasses.dataclass(frozen=True)
class AnalyzeConfig:
    """What `recordmill analyze` is to do.

    Attributes:
        directory: The data set.
        splits: Those that are analysed. None: the training split alone, lest anything of the others leaks into the model; settled
            once the manifest is there.
        preprocessing_module: A file of Python that defines `preprocessing_fn`; None: the default one.
        image_size: (height, width) of the default's images; None: as stored if all have one size, else 224 x 224.
        fit: What the default shows of an image: see `tf_input.ReadConfig`, and so is None.
        overwrite: An earlier analysis is replaced, once the new one is whole.
        shared_filesystem: A cluster's workers see the local paths.
    """

    directory: str
    splits: tuple[str, ...] | None = None
    preprocessing_module: str | None = None
    image_size: tuple[int, int] | None = None
    fit: str | None = None
    overwrite: bool = False
    shared_filesystem: bool = False
