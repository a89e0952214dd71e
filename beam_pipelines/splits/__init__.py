"""Assigns splits to inputs if a hash of the group is not sufficient.

This package is used for stratified splits, for splits from an earlier dataset, and for near-duplicates. The input
consists of sorted references with groups, strata and predefined splits. The output consists of the same references with
their final splits. Images are not read, and no worker has to keep all keys in memory. The plan is computed from counts,
and from the hashes close to the split bounds.

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
