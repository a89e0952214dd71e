"""Configures TensorFlow's logging and pytest's assertion messages, and distributes tests to processes."""

import collections
import gc
import logging
import multiprocessing.spawn
import os
import pathlib
import signal
import sys
import tempfile
from typing import Iterator

import pytest
from hypothesis import HealthCheck, settings

from beam_pipelines import log
from beam_pipelines.parallel import progress

# The duration of an example depends on the load of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_LOG_STATE = {name: getattr(log, name) for name in ("_format", "_is_quiet", "_is_command", "_run_id", "_find_stage")}

progress.LOG_SECONDS = 3600.0  # a busy machine would log more progress lines

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # must be set before TensorFlow is imported
os.environ["LANGUAGE"] = "C"  # argparse would search for a translation of each word, which takes 7 % of a small run
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle OpenBLAS threads would busy-wait

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # programs that tests start would inherit the ignored signal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite(*(path.stem for path in pathlib.Path(__file__).parent.glob("*.py")))

gc.disable()  # until all modules are imported, because collecting garbage would take a third of the time


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list) -> None:
    """Makes pytest-xdist fork the workers of a complete test run from a process that has imported all tests."""
    import forked_python

    if config.args == config.getini("testpaths"):
        for spec in specs:
            spec.python = forked_python.command_line(preloaded=("collected",))
    address, process = forked_python.start()
    config.add_cleanup(process.stdin.close)  # closing its standard input ends the fork server
    os.environ[forked_python.SHARED] = address.hex()
    for names in (forked_python.TENSORFLOW, forked_python.BEAM):
        forked_python.forker(*names)  # starts while the other process imports the tests


def pytest_configure() -> None:
    """Adds the directories that test modules put on `sys.path`, because xdist replaces `sys.path` in workers."""
    if "collected" in sys.modules:
        sys.path += [path for path in sys.modules["collected"].path if path not in sys.path]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Returns a scheduler that assigns all tests of a module, or of an `xdist_group`, to the same worker."""
    from xdist.scheduler import LoadGroupScheduling

    class ModuleScheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return ModuleScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts test modules by duration, so that the longest modules run first and no worker is idle at the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        seconds = collections.Counter()
        for item in items:
            if slow := item.get_closest_marker("slow"):
                seconds[_unit_of(item)] += slow.args[0] if slow.args else 2
        items.sort(key=lambda item: -seconds[_unit_of(item)])


def pytest_runtest_teardown() -> None:
    """Restores the log settings after each test, because options such as `--quiet` change the log settings."""
    vars(log).update(_LOG_STATE)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts temporary files below the test directory, so that killed programs leave no files elsewhere."""
    folder = str(tmp_path_factory.mktemp("t"))  # paths of sockets must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
def quick_spawn(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes `multiprocessing` fork its processes from a process that has imported TensorFlow, which saves time."""
    import forked_python  # an import at the top would disable the rewriting of its assertions

    before, command = multiprocessing.spawn.get_executable(), forked_python.write_command(tmp_path / "python")
    multiprocessing.set_executable(command)
    yield command
    multiprocessing.set_executable(before)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Limits pytest's `caplog` to messages of Recordmill, because threads of other libraries also log warnings."""

    def is_package_record(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in ("beam_pipelines", "recordmill", "tf_input")

    caplog.handler.addFilter(is_package_record)
    try:
        yield caplog
    finally:
        caplog.handler.removeFilter(is_package_record)  # the handler is shared by all tests


def pytest_collection_finish() -> None:
    """Runs Python's garbage collection less often, because most new objects belong to TensorFlow graphs."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(30_000, 10, 30)


def _unit_of(item: pytest.Item) -> str:
    """Returns the `xdist_group` of a test, or its module if the test is in no group."""
    group = item.get_closest_marker("xdist_group")
    return group.args[0] if group else str(item.path)
