"""Implements `recordmill inspect`, which shows the contents of a dataset.

The input is the metadata of a dataset. If the user requests examples, the command also reads catalogs and single
records. The outputs are tables or JSON, and an image.

    inspection    the command
    contents      all metadata
    examples      examples that meet a condition, or one example with its image
    pictures      images as files
    drawings      boxes and masks on images
"""
