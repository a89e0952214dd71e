"""How many inputs of each stratum each split gets: whole numbers, as near to the shares as whole numbers can be.

Each number is less than one from its share, and so is each split's sum over all strata: cells, rows and columns of a table can always be
rounded together (Bacharach, Matrix Rounding Problems, 1966). Where fractions lie on a circle of rows and columns, as much is taken from
every second of them as the others get, until one of them is whole; where there is no circle, there is no fraction left.
"""

from typing import Sequence

# Row -> column -> a fraction above 0 and below 1, in units of 1/scale.
_Cells = dict[int, dict[int, int]]


def apportion(nums: Sequence[int], needs: Sequence[Sequence[int]], scale: int) -> list[list[int]]:
    """Deals out the inputs of each stratum among splits.

    Args:
        nums: The number of inputs of each stratum.
        needs: For each stratum what each split lacks of its share, in units of 1/scale of an input. They add up to `nums`; below 0 where a
            split has more than its share already, and then the others get less than they lack, in proportion.
        scale: The number of units that an input has in `needs`.

    Returns:
        The number of inputs that each split gets, for each stratum.
    """
    dealt, cells = [], _Circles(scale)
    sums = [0] * (len(needs[0]) if needs else 0)
    for row, (num, of_row) in enumerate(zip(nums, needs)):
        if min(of_row) < 0:
            dealt.append(_deal(num, of_row))
            continue
        dealt.append([need // scale for need in of_row])
        rests = [need % scale for need in of_row]
        sums = [(total + rest) % scale for total, rest in zip(sums, rests)]
        cells.add_row(row, rests)
    cells.add_row(len(needs), [-total % scale for total in sums])  # so that columns have whole sums too
    for row, column in cells.rounded_up:
        if row < len(needs):
            dealt[row][column] += 1
    return dealt


def _deal(num: int, needs: Sequence[int]) -> list[int]:
    """In proportion to what is lacked, by largest remainder."""
    lacks = [max(need, 0) for need in needs]
    total = sum(lacks) or 1
    counts = [num * lack // total for lack in lacks]
    by_rest = sorted(range(len(lacks)), key=lambda split: (-(num * lacks[split] % total), split))
    for split in by_rest[: num - sum(counts)]:
        counts[split] += 1
    return counts


class _Circles:
    """Rounds the fractions of a table, row after row. Those that wait to be rounded lie on no circle, so that few rows have any.

    Attributes:
        rounded_up: (row, column) of the cells that became 1.
    """

    def __init__(self, scale: int) -> None:
        self.rounded_up: list[tuple[int, int]] = []
        self._scale = scale
        self._rows: _Cells = {}
        self._columns: dict[int, set[int]] = {}

    def add_row(self, row: int, rests: Sequence[int]) -> None:
        """Takes in a row of fractions, whose sum is whole."""
        self._rows[row] = {column: rest for column, rest in enumerate(rests) if rest}
        for column in self._rows[row]:
            self._columns.setdefault(column, set()).add(row)
        while circle := self._find_circle(row):
            rests = [self._rows[r][c] for r, c in circle]
            rising = rests.index(max(rests)) % 2  # the one that is nearest to the next whole number comes nearer to it
            amount = min(self._scale - rest if place % 2 == rising else rest for place, rest in enumerate(rests))
            for place, (r, c) in enumerate(circle):
                self._shift(r, c, amount if place % 2 == rising else -amount)
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
        """The cells of a circle through a row, one after the other; empty if there is none."""
        for start in self._rows[row]:
            paths = {start: [(row, start)]}  # column -> how it is reached
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
