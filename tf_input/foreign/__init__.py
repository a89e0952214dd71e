"""Reads TFRecords that other tools wrote, without converting them to a prepared dataset.

The inputs are TFRecord files, and a layout or a user function that describes their features. The outputs are batches
like the batches of a prepared dataset, but are shuffled with a buffer. The files have no index. Therefore shuffling is
only approximate, iteration can't resume, and hosts can't divide the records.
"""
