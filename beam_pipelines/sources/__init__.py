"""Input sources, which list inputs and their labels, and define how each input is read later.

An input source is a folder, a table, a set of annotations, or record files from other tools. `ListImages` writes sorted
runs of references to the spool, and outputs one `Listing` with all facts about the inputs. Images are not read during
listing, except for images that cannot be read by offset later. These are copied to the spool.

    folders      files and class folders
    tables       rows with image paths
    annotated    boxes and masks in separate files
    arrays       pixels without an image format
    records      container files from other tools
    cells        cells of rows, converted to the kind of their column
"""
