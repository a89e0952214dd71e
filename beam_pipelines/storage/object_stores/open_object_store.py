"""Opens the object store for a path. All threads of a process share it."""

import functools
import importlib
import threading
from typing import TYPE_CHECKING

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.object_stores.store_options import StoreOptions, current_options
from tf_input.storage.paths import scheme_of

if TYPE_CHECKING:
    from beam_pipelines.storage.object_stores.object_store import ObjectStore

# Scheme -> the module and the class in this package, and the extra with their dependencies.
_CLASSES = {
    "gs": ("gcs", "GcsStore", "gcp"),
    **dict.fromkeys(("s3", "s3a"), ("s3", "S3Store", "aws")),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), ("object_store", "ObjectStore", "azure")),
    **dict.fromkeys(("http", "https"), ("object_store", "ObjectStore", "remote")),
}
_opening = threading.Lock()


def open_object_store(path: str) -> "ObjectStore":
    """Returns the object store for a path, with the options of this process.

    Raises:
        UserError: The scheme is unknown, its extra is not installed, or an option is invalid.
    """
    scheme = scheme_of(path)
    if scheme not in _CLASSES:
        schemes = "gs://, s3://, az:// or https://"
        raise UserError(f"{printable(path)}: unsupported URL. Give a local path, or a URL that begins with {schemes}.")
    with _opening:
        return _open(scheme, current_options())


@functools.lru_cache(maxsize=16)
def _open(scheme: str, options: StoreOptions) -> "ObjectStore":
    module, name, extra = _CLASSES[scheme]
    try:
        store = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return store(scheme, options)
    except ImportError as error:
        raise UserError(f"{scheme}://: {error.name} is not installed. Run: pip install 'recordmill[{extra}]'") from None
