"""Disks and object stores: `Files` read and write, the spool, directories that carry our mark.

What comes in are paths, local ones or `gs://` and `s3://`; what goes out are bytes, and what fails is an OSError. A file is there whole or
not at all; what is a fact about an input, and what is a store that is busy, is told apart in `input_errors`.
"""

from tf_input.regular_files import MAX_WHOLE_BYTES

# A serialized tf.train.Example is a protocol buffer, and ends at 2 GiB; no single training image comes near.
MAX_FILE_BYTES = MAX_WHOLE_BYTES

# Seconds for which a store may answer nothing useful, unless the user says otherwise.
STORE_TIMEOUT = 120
