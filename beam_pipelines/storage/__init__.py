"""Reads and writes files on local disks, and objects in object stores (`gs://` and `s3://`).

Files are written atomically: completely or not at all. Failures raise an `OSError`. The module `input_errors`
distinguishes invalid inputs from temporary errors of a disk or an object store.
"""

from tf_input.regular_files import MAX_FILE_READ_BYTES

# A serialized tf.train.Example is a protocol buffer, which is limited to 2 GiB.
MAX_FILE_BYTES = MAX_FILE_READ_BYTES

# Default time without a successful response after which an object store counts as unavailable, in seconds.
STORE_TIMEOUT = 120
