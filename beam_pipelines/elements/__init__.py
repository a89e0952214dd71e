"""Data structures that pass between the stages: references, the listing, the plan, dead letters and statistics.

One stage creates these data structures and the next stage reads them. The data structures are packed for the runner's
shuffle or written to the plan. All sums in the statistics are exact, so the order of bundles does not change the
results.
"""
