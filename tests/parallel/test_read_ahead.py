"""Tests that `read_ahead` limits the bytes in memory and returns results and errors in the order of the inputs."""

import threading
import time

import pytest

from beam_pipelines.parallel import read_ahead as module
from beam_pipelines.parallel.read_ahead import NUM_THREADS, read_ahead


def test_results_are_in_the_order_of_the_items():
    def slow_at_first(item: int) -> int:
        time.sleep(0.02 if item < 3 else 0)
        return item * item

    assert list(read_ahead(slow_at_first, [(item, 1) for item in range(200)])) == [item * item for item in range(200)]
    assert list(read_ahead(slow_at_first, [])) == []


def test_items_are_read_concurrently():
    barrier = threading.Barrier(NUM_THREADS, timeout=240)
    assert len(list(read_ahead(lambda item: barrier.wait(), [(item, 1) for item in range(NUM_THREADS)]))) == NUM_THREADS


def test_bytes_in_flight_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    started: list[int] = []
    for position, _ in enumerate(read_ahead(started.append, [(item, 30) for item in range(50)])):
        assert len(started) <= position + 1 + 3
    assert sorted(started) == list(range(50))


def test_result_larger_than_the_bound_is_read_alone(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    assert list(read_ahead(lambda item: item, [("a", 1000), ("b", 1000), ("c", 0)])) == ["a", "b", "c"]


@pytest.mark.parametrize("sizes, at_most", [([10] * 60, 10), ([50] * 60, 2), ([0] * 60, 4), ([5] * 30 + [50] * 60, None), ([500] * 60, 1)])
def test_bytes_in_flight_are_bounded_if_sizes_are_unknown(monkeypatch, sizes, at_most):
    """The number of concurrent reads depends on the sizes of the first inputs. Dead letters have no size."""
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    monkeypatch.setattr(module, "ASSUMED_BYTES", 25)
    started: list[int] = []

    def start(item: int) -> int:
        started.append(item)
        return item

    results = read_ahead(start, [(item, 0) for item in range(len(sizes))], lambda item: sizes[item])
    assert [next(results)] == [0] and len(started) <= 4
    for item in results:
        if at_most and item >= 4:
            assert len(started) <= item + 1 + at_most, item
        if not at_most and item > 30 + 20:  # the largest measured size is assumed for all items in flight
            assert len(started) <= item + 1 + 2, item
    assert sorted(started) == list(range(len(sizes)))


def test_known_and_unknown_sizes_share_the_bound(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    monkeypatch.setattr(module, "ASSUMED_BYTES", 25)
    started: list[int] = []
    for position, _ in enumerate(read_ahead(started.append, [(item, 30 * (item % 2)) for item in range(50)])):
        assert len(started) <= position + 1 + 4


def test_results_in_flight_are_bounded_by_threads():
    started: list[int] = []
    for position, _ in enumerate(read_ahead(started.append, [(item, 0) for item in range(500)])):
        assert len(started) <= position + 1 + 2 * NUM_THREADS


def test_error_is_raised_in_order_and_stops_reading():
    started = []

    def fail_at_five(item: int) -> int:
        started.append(item)
        if item == 5:
            raise FileNotFoundError(item)
        return item

    results = read_ahead(fail_at_five, [(item, 0) for item in range(1000)])
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError):
        next(results)
    assert len(started) < 200
