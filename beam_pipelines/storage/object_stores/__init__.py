"""Reads, writes and lists objects in `gs://` and `s3://`, with Beam's options and credentials.

Other packages access objects through the module `files`. The modules `s3` and `gcs` send the requests. Temporary
failures are retried, and permanent failures raise an `OSError`.
"""
