"""Files with many examples in each, which others wrote: the sources `tfrecord` and `webdataset`.

What comes in are TFRecord, ArrayRecord or tar files; what goes out are references that say where in its file each image lies, with the
values of the other fields. The images of compressed files, which cannot be read again by their place, go into the spool.
"""
