"""The order of examples in an epoch, and the share of each host in each step.

The inputs are the numbers and sizes of records in the shards of a split, a seed and an epoch. The outputs are the
record at each index of the epoch, and the chunks that contain these records. Nothing is read here. TensorFlow is used
only for the cipher in `tf_input.epochs.order` and to detect hosts.
"""
