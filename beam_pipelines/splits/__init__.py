"""Assigns splits to inputs when a hash of the group is not enough.

The cases are stratified splits, source splits to divide, splits from an earlier dataset, and near-duplicates. The input
is a collection of sorted runs of references with their groups, strata and source splits. The output is the same
references with their final splits. No image is read, and no worker needs all keys in memory. The plan is computed from
counts, and from the hashes close to the split bounds.

    near_duplicate_clusters       clusters near-duplicate images by their hashes
    resolve_near_duplicates        chooses the group of each near-duplicate, or drops it
    find_near_duplicates          optional first stage: finds near-duplicates
    run_facts           counts the references of a run for the plan
    earlier_splits      reads splits from an earlier dataset or a table
    group_assignment    assigns groups of several inputs by their strata
    apportion           divides the other inputs of each stratum among the splits
    split_plan          combines these steps and finds the bounds of the splits
    assign_splits       the Beam stage
"""
