"""Ranges of bytes, wherever a data set lies: in a directory, on a mount, in an object store or behind a web server.

What comes in is a directory or a URL, and with it where copies may be kept; what goes out is `Files`, which read whole files and
ranges of them, any number of threads at a time, and say how large files are. A cache (`cache`) is such `Files` too, around others.

    paths             a directory and a name -> a path; what is a URL
    files, open_files    what is asked of files; who reads which path
    local_files       disks and mounts
    object_stores     gs://, s3://, az:// and https://, by obstore
    credentials       where each cloud's own tools look for keys and endpoints
    other_files       what else fsspec reads
    cache, cache_room    blocks of remote files on a local disk, and how many of them
    store             the shards and indexes of a data set, opened
    users             who reads what is open
    index, frames     the number of a record -> its bytes in a shard; what is written around a record
    record_reader, window_reader    records in long runs; the windows of an epoch, read ahead
    damaged           what is said of records that cannot be read
"""
