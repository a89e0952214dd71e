"""Values that pass between the stages: references, the listing, the plan, dead letters, statistics.

A stage creates these values and the next stage reads them. The values are packed for the runner's shuffle or written to
the plan. All sums are exact, so the order of bundles does not change the results.
"""
