"""`recordmill inspect`: what is in a data set.

What comes in is a data set, of which the metadata are read, the catalogs where they are asked, and one record where it is; what goes out
are tables, or JSON, and a picture.

    inspection    what was asked for, and printed
    contents      all that the metadata say
    examples      those that meet a condition; one, with its image
    pictures      an image in a terminal, or in a file
    drawings      boxes and masks on it
    queries       SQL over the catalog
"""
