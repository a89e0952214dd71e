"""Sources for record files that other tools wrote: `tfrecord` and `webdataset`.

Supported files are TFRecord, ArrayRecord and tar files. Each source yields references, which contain the position of an
image in a file and the values of all fields except the image. Images in compressed files are copied to temporary files,
because compressed files cannot be read by offset.
"""
