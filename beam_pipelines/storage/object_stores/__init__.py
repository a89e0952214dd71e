"""Reads, writes and lists objects in `gs://` and `s3://`, with the same options and credentials as Beam.

Other packages access objects through the module `files`. `s3` and `gcs` send the requests. Temporary failures are
retried, and permanent failures raise an `OSError`.
"""
