"""In which order an epoch has the examples of a split, and which of them each host reads in each step.

What comes in: how many records the shards of a split have and how long they are, a seed, an epoch. What goes out: for each place in
the epoch the record that is there, and the runs in which these records lie. Nothing is read here, and TensorFlow is not needed but
for the cipher of `tf_input.epochs.order`.
"""
