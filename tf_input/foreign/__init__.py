"""Reads TFRecords that other tools wrote, without converting them to a prepared dataset.

A layout or a user function describes the features in the files. The batches have the same format as the batches of a
prepared dataset. The files have no index. Therefore, shuffling (with a buffer) is only approximate, iteration can't
resume, and hosts can't divide the records.
"""
