"""Opens a data set that was prepared, wherever it lies."""

import hashlib
import os
import pathlib

from tf_input import locations
from tf_input.dataset import PreparedDataset
from tf_input.dataset_format import MANIFEST, decode_manifest, not_a_data_set
from tf_input.options import named_options


@named_options()
def open(
    directory: str | os.PathLike[str], *, cache_directory: str | os.PathLike[str] | None = None
) -> PreparedDataset:
    """Opens a data set that `recordmill prepare` wrote.

        tf_input.open("out/flowers")
        tf_input.open("gs://bucket/flowers")
        tf_input.open("s3://bucket/flowers", cache_directory="/local/ssd")

    Args:
        directory: Where it lies: a directory (`~` is one's home), or a URL. TensorFlow reads `gs://` itself; for what it does not
            read, such as `s3://`, there is fsspec (`pip install 'recordmill[remote]'`, and the package of the scheme, such as s3fs).
        cache_directory: Where to keep copies of shards, for URLs: a split's shards are copied when it is first read, checked
            against the manifest, and read from there. All processes and data sets may share it. TensorFlow needs none for
            what it reads itself, but one spares it reading the same objects again in each epoch.

    Raises:
        FileNotFoundError: The directory is not a (finished) data set.
        OSError: It can't be read.
        TypeError: There is no such option; the message says which was meant.
        ValueError: Its manifest is damaged or of another format version, or its URL needs a cache_directory.
        ImportError: A package is missing that reads the URL.
    """
    directory = os.path.expanduser(directory)
    source = locations.make_source(directory, has_cache=cache_directory is not None)
    path = locations.join(directory, MANIFEST)
    try:
        data = source.read(path)
    except FileNotFoundError:
        raise not_a_data_set(directory) from None
    manifest = decode_manifest(data, path)
    if cache_directory is None:
        return PreparedDataset(directory, manifest, source)
    # By its content: what replaces a data set at its URL has another folder.
    folder = f"{manifest.name}-{hashlib.sha256(data).hexdigest()[:16]}"
    return PreparedDataset(directory, manifest, source, pathlib.Path(os.path.expanduser(cache_directory), folder))
