"""Implements `recordmill quality`, which tests whether the records of a dataset are shuffled.

The input is a prepared dataset, or TFRecord files that were written by another tool. For each split, the command
compares the order of the labels with random orders, and gives a verdict. Of a prepared dataset, only the index files
and catalog files are read.

    dataset_labels file_labels   read the labels of each split in record order
    split_labels                 the labels of one split
    measures                     measures how well a label sequence is shuffled
    quality plot                 combine the results, and draw plots
"""
