"""The examples of a split that are read, and how often: what `where`, `fold`, `subset`, `take` and `balance` mean.

What comes in are these options, the indexes of a split and its catalogs; what goes out is a `Selection`: numbers of records. No record
is read for it, and nothing of the catalogs but the columns that are named.

    catalog        columns of a split's catalogs
    columns        texts, and lists of them, as columns
    expressions    a condition over columns, in words of Python -> which examples meet it
    select         all of these options, one after the other
"""
