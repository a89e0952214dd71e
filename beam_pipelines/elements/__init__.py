"""What travels between stages: references, runs of them, the listing, the plan, dead letters, statistics.

What comes in are values that one stage has found; what goes out are the same for the next stage, packed small for a runner's shuffle or
written to the plan. All sums are exact, so that no order of bundles can change them.
"""
