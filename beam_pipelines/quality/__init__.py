"""`recordmill quality`: tests whether the records of a dataset are shuffled.

The input is a prepared dataset or TFRecord files of another writer. Only the indexes and catalogs of a prepared dataset
are read. For each split, the result compares the order of the labels with random orders, and gives a verdict.

    dataset_labels file_labels read the labels of each split in record order
    split_labels                 the labels of one split
    measures                     measures how far a label sequence is from a shuffled one
    quality plot                 combine the results for people and programs; draw a plot
"""
