"""What every test needs: a quiet TensorFlow, and an order: by itself, the quick tests first; spread over processes, the long modules."""

import os
import pathlib

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a machine whose cores are busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything imports TensorFlow

# Modules that take a minute or more, the longest first: one that began last would leave the other processes idle until its end.
LONG_MODULES = (
    "test_flink.py",
    "test_dataflow.py",
    "test_trainer.py",
    "test_source_engines.py",
    "test_benchmarks.py",
    "test_pages.py",
    "test_object_store.py",
    "test_prism.py",
    "test_resume_prepare.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # with --dist=loadfile --no-loadscope-reorder, as `make test` has it
        found = {path.name for path in pathlib.Path(__file__).parent.rglob("test_*.py")}
        assert found.issuperset(LONG_MODULES)
        ranks = {name: rank for rank, name in enumerate(LONG_MODULES)}
        items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
    else:
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
