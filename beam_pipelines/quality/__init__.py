"""`recordmill quality`: are TFRecords shuffled, ours or anybody's?

What comes in is a data set of ours, of which indexes and catalogs are read and no record, or TFRecords that others wrote; what goes
out is, of each split, how its labels follow each other, beside what chance gives, and a verdict.

    our_labels foreign_labels    a path -> the labels of each split, in the order of its records
    split_labels                 these
    measures                     one such sequence -> how far it is from a shuffled one
    quality plot                 all of them, for people and for programs; a picture
"""
