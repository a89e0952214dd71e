"""The split of each input, where more than a hash of its group decides: strata, divided splits, an earlier data set, images that are alike.

What comes in are runs of references with their groups, their strata and the splits that their source says; what goes out are the same
references with settled splits. No image is read, and nobody holds all keys: a plan is made of counts, and of the hashes near its bounds.

    twin_clusters       hashes of images that are near -> clusters, with a bound
    settle_twins        what becomes of these: groups, and what is left out
    find_twins          the stage before the others, where that is asked for
    run_facts           a run of references -> what the plan has to know of it
    earlier_splits      the splits of a data set that is there, or of a table
    group_placement     groups that are larger than one input, by their strata
    apportion           how many of each stratum's other inputs each split gets
    split_plan          all of it together, and the bounds
    assign_splits       the stage
"""
