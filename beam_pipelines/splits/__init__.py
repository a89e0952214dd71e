"""Assigns splits to inputs if a hash of the group is not enough.

This package implements stratified splits, splits from an earlier dataset, and near-duplicates. It reads sorted
references to inputs, with their groups, strata and predefined splits. It writes the references with their final splits.
It does not read images. One worker holds a few numbers for each input, but no keys.

    find_near_duplicates     optional first stage: finds near-duplicates
    near_duplicate_clusters  clusters near-duplicate images by their hashes
    resolve_near_duplicates  chooses the group of each near-duplicate, or drops it
    assign_splits            the Beam stage that assigns the splits
    split_facts              the numbers for each input
    earlier_splits           reads splits from an earlier dataset or a table
    group_assignment         assigns groups to splits by their strata
    apportion                divides ungrouped inputs of each stratum among the splits
    split_plan               combines these steps and determines the split of each input
"""
