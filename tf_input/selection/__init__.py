"""Selects the examples to read according to the options `where`, `fold`, `subset`, `take` and `balance`.

The result is a `Selection`, which contains the indices of the selected records. The options are evaluated with the
index files and the catalogs of a split, not with the records. Only the catalog columns that the options name are read.

    catalog        columns of a split's catalogs
    columns        columns of strings and of lists of strings
    expressions    evaluates Python-like conditions over columns
    select         applies all options in order
"""
