"""Reads, writes and lists objects in `gs://` and `s3://`, with the options and credentials of Beam's filesystems.

Other packages read and write objects through `files`. `s3` and `gcs` send the requests. Temporary failures are
retried, and permanent failures raise an `OSError`.
"""
