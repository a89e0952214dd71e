"""VerifyConfig: frozen, no I/O."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """What `recordmill verify` is to do.

    Attributes:
        directory: The data set, a path or a `gs://` or `s3://` URL.
        is_quick: Whether to look at the manifest and at the sizes of files alone.
        decodes: Whether to decode images and masks too.
        report: The file where the report goes as JSON, a path or a URL; empty: it is only printed.
        shared_filesystem: Whether the workers see the local paths that are given.
    """

    directory: str
    is_quick: bool = False
    decodes: bool = False
    report: str = ""
    shared_filesystem: bool = False
