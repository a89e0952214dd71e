"""Opens the object store for a path. All threads of a process share it."""

import os
import threading

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.object_stores.object_store import ObjectStore

_OPENED: dict[str, tuple[PipelineOptions | None, str | None, ObjectStore]] = {}
_OPENING = threading.Lock()


def open_object_store(path: str) -> ObjectStore:
    """Returns the object store for a path, with the options of Beam's file systems in this process.

    Raises:
        UserError: The scheme is unknown, its extra is not installed, or an option is invalid.
    """
    scheme = path.partition("://")[0]
    options, emulator = FileSystems._pipeline_options, os.environ.get("STORAGE_EMULATOR_HOST")
    with _OPENING:
        opened = _OPENED.get(scheme)
        if opened is None or opened[0] is not options or opened[1] != emulator:
            opened = options, emulator, _make_store(scheme, path, options or PipelineOptions([]))
            _OPENED[scheme] = opened
        return opened[2]


def _make_store(scheme: str, path: str, options: PipelineOptions) -> ObjectStore:
    try:
        if scheme == "gs":
            from beam_pipelines.storage.object_stores.gcs import GcsStore

            return GcsStore(options)
        if scheme == "s3":
            from beam_pipelines.storage.object_stores.s3 import S3Store

            return S3Store(options)
    except ImportError as error:
        extra = {"gs": "gcp", "s3": "aws"}[scheme]
        raise UserError(
            f"{printable(path)}: {error.name} is not installed. Run: pip install 'recordmill[{extra}]'"
        ) from None
    raise UserError(f"{printable(path)}: unsupported URL. Give a local path, or a gs:// or s3:// URL.")
