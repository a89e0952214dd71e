"""The configuration of `recordmill verify`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """The configuration of `recordmill verify`.

    Attributes:
        directory: The dataset, as a path or a `gs://` or `s3://` URL.
        is_quick: Whether to check only the manifest and the sizes of files.
        decodes: Whether to also decode images and masks.
        report: The path or URL of a JSON file for the report. If empty, no file is written.
        shared_filesystem: Whether workers on a cluster can access local paths.
    """

    directory: str
    is_quick: bool = False
    decodes: bool = False
    report: str = ""
    shared_filesystem: bool = False
