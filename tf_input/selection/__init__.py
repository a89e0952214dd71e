"""Selects the examples to read according to the options `where`, `fold`, `subset`, `take` and `balance`.

The inputs are the options, and the index files and catalogs of a split. The output is a `Selection`, which contains the
indices of the selected records. Records are not read. Only the catalog columns that the options name are read.

    catalog        columns of a split's catalogs
    columns        columns of strings and of lists of strings
    expressions    evaluates Python-like conditions over columns
    select         applies all options in order
"""
