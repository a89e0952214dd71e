"""Objects behind `gs://` and `s3://`: `object_store` is what other rooms see of them, by way of `files`; `s3` and `gcs` ask the stores.

What comes in are URLs, bytes and the options of Beam's filesystems; what goes out are the bytes, sizes and names of objects. A request that
fails for a while is made again, and what fails for good is an OSError.
"""
