"""Implements `recordmill quality`, which tests whether the records of a dataset are shuffled.

The input is a prepared dataset, or TFRecord files that another tool wrote. For a prepared dataset, only the index files
and catalog files are read. For each split, the result compares the order of the labels with random orders, and gives a
verdict.

    dataset_labels file_labels read the labels of each split in record order
    split_labels                 the labels of one split
    measures                     measures how far a label sequence is from a shuffled one
    quality plot                 combine the results for people and programs; draw a plot
"""
