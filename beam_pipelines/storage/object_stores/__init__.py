"""Reads, writes and lists objects in `gs://`, `s3://`, `az://` and other URLs.

Other packages access objects through the module `files`. Temporary failures are retried, and permanent failures raise
an `OSError`. The module `object_store` uses the library obstore, which supports many kinds of stores. obstore's
listings omit or reject some names, and its requests that write to Google Cloud Storage cannot be tested with an
emulator. Therefore, `s3` and `gcs` list objects without obstore, and `gcs` also writes objects without it.
"""
