"""Computes the number of inputs that each split gets from each stratum. The numbers are integers.

Each number, and the total of each split over all strata, differs from its exact value by less than one. Such a rounding
always exists (controlled rounding; Bacharach, Matrix Rounding Problems, 1966). The algorithm rounds a table with a row
for each stratum and a column for each split. It searches for cycles of cells with fractions, in which consecutive cells
are alternately in the same row and in the same column. An amount is alternately added to and subtracted from the cells
of a cycle, so that at least one cell becomes an integer and all sums stay the same. When no cycle is left, all cells
are integers.
"""

from typing import Sequence

# For each row and column, a fraction between 0 and 1 (exclusive), in units of 1/scale.
_Cells = dict[int, dict[int, int]]


def apportion(nums: Sequence[int], needs: Sequence[Sequence[int]], scale: int) -> list[list[int]]:
    """Divides the inputs of each stratum among the splits in the requested proportions.

    Args:
        nums: The number of inputs of each stratum.
        needs: For each stratum, the number of inputs that each split lacks, in units of 1/scale. Each row sums to the
            number in `nums`. A negative value means that the split exceeds its share. The other splits then get
            proportionally fewer inputs.
        scale: The number of units in `needs` that equal one input.

    Returns:
        For each stratum, the number of inputs that each split gets.
    """
    dealt, cells = [], _Circles(scale)
    sums = [0] * (len(needs[0]) if needs else 0)
    for row, (num, of_row) in enumerate(zip(nums, needs)):
        if min(of_row) < 0:
            dealt.append(_apportion_by_need(num, of_row))
            continue
        dealt.append([need // scale for need in of_row])
        rests = [need % scale for need in of_row]
        sums = [(total + rest) % scale for total, rest in zip(sums, rests)]
        cells.add_row(row, rests)
    # The last row makes the sums of the columns integers.
    cells.add_row(len(needs), [-total % scale for total in sums])
    for row, column in cells.rounded_up:
        if row < len(needs):
            dealt[row][column] += 1
    return dealt


def _apportion_by_need(num: int, needs: Sequence[int]) -> list[int]:
    """Divides `num` items in proportion to the positive values of `needs`, by the largest-remainder method."""
    positive_needs = [max(need, 0) for need in needs]
    total = sum(positive_needs) or 1
    counts = [num * need // total for need in positive_needs]
    by_remainder = sorted(range(len(positive_needs)), key=lambda split: (-(num * positive_needs[split] % total), split))
    for split in by_remainder[: num - sum(counts)]:
        counts[split] += 1
    return counts


class _Circles:
    """Rounds the cells of a table, one row at a time.

    Cycles are removed after each row, so only a few rows are kept in memory.

    Attributes:
        rounded_up: (row, column) of each cell that was rounded up to 1.
    """

    def __init__(self, scale: int) -> None:
        self.rounded_up: list[tuple[int, int]] = []
        self._scale = scale
        self._rows: _Cells = {}
        self._columns: dict[int, set[int]] = {}

    def add_row(self, row: int, rests: Sequence[int]) -> None:
        """Adds a row of fractions whose sum is an integer. Then removes all cycles, which rounds cells to integers."""
        self._rows[row] = {column: rest for column, rest in enumerate(rests) if rest}
        for column in self._rows[row]:
            self._columns.setdefault(column, set()).add(row)
        while circle := self._find_circle(row):
            rests = [self._rows[r][c] for r, c in circle]
            # Move the largest fraction of the cycle closer to the next integer.
            rising = rests.index(max(rests)) % 2
            amount = min(self._scale - rest if index % 2 == rising else rest for index, rest in enumerate(rests))
            for number, (r, c) in enumerate(circle):
                self._shift(r, c, amount if number % 2 == rising else -amount)
        if not self._rows[row]:
            del self._rows[row]

    def _shift(self, row: int, column: int, amount: int) -> None:
        rest = self._rows[row][column] + amount
        self._rows[row][column] = rest
        if rest in (0, self._scale):
            del self._rows[row][column]
            self._columns[column].remove(row)
            if rest:
                self.rounded_up.append((row, column))

    def _find_circle(self, row: int) -> list[tuple[int, int]]:
        """Returns the cells of a cycle that contains the given row, in order, or an empty list if there is no cycle."""
        for start in self._rows[row]:
            paths = {start: [(row, start)]}  # Maps each column to the path of cells that leads to it.
            waiting = [start]
            for column in waiting:
                for other in sorted(self._columns[column] - {row}):
                    for reached in self._rows[other]:
                        if reached not in paths:
                            paths[reached] = [*paths[column], (other, column), (other, reached)]
                            waiting.append(reached)
                            if reached in self._rows[row]:
                                return [*paths[reached], (row, reached)]
        return []
