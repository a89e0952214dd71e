"""Which split each input belongs to, where more than a hash of its group decides: strata, splits that are divided, and those of an earlier data set.

What comes in are runs of references, each with its group and its stratum, some of them with a split that their source says; what goes out are
the same references with settled splits. Groups are not made here: what is to stay together has one group by now. No image is read, and
nobody holds all keys: a plan is made of counts, and of the hashes near the bounds between splits.

    run_facts           a run of references -> what the plan has to know of it
    earlier_splits      the splits of a data set that is there, or of a table
    group_placement     groups that are larger than one input, by their strata
    apportion           how many of each stratum's other inputs each split gets
    split_plan          all of it together, and the bounds
    assign_splits       the stage
"""
