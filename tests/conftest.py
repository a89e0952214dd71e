"""What every test needs: a quiet TensorFlow, failures of helper modules that show values, and work for processes that is dealt by modules."""

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

# How long an example takes says nothing on a machine whose cores are busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_TOLD = {name: getattr(log, name) for name in ("_format", "_is_quiet", "_is_command", "_run_id", "_find_stage")}

progress.TELL_SECONDS = 3600.0  # else a run says more where the machine is busy; the test of these lines says its own

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything imports TensorFlow
os.environ["LANGUAGE"] = "C"  # what argparse says is English; else it looks for a translation of each word, for a fifteenth of a small run
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # whose threads turn round and round while they wait
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # which looks through all kernels for each node of a graph, however little that computes

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup: what tests start would ignore it too, as it should there
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite(*(path.stem for path in pathlib.Path(__file__).parent.glob("*.py")))

gc.disable()  # until all is imported: it would look through that again and again, for a third of the time


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list) -> None:
    """Processes for all tests are forked off one that has imported these. What programs are forked off is one for all processes."""
    import forked_python

    if config.args == config.getini("testpaths"):
        for spec in specs:
            spec.python = forked_python.command_line(preloaded=("collected",))
    address, process = forked_python.start()
    config.add_cleanup(process.stdin.close)  # which ends it
    os.environ[forked_python.SHARED] = address.hex()
    for names in (forked_python.TENSORFLOW, forked_python.BEAM):
        forked_python.forker(*names)  # while the other process imports


def pytest_configure() -> None:
    """pytest-xdist gives its processes the path of the one that started them, which has imported no test: what those add to it comes after."""
    if "collected" in sys.modules:
        sys.path += [path for path in sys.modules["collected"].path if path not in sys.path]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Deals modules, and what has one `xdist_group` in all modules, to processes: each to the next that is idle, in their order."""
    from xdist.scheduler import LoadGroupScheduling

    class ModuleScheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return ModuleScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For processes, as `make test` starts them: the longest modules first. One that began last would leave the others idle until its end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        seconds = collections.Counter()
        for item in items:
            if slow := item.get_closest_marker("slow"):
                seconds[_dealt_with(item)] += slow.args[0] if slow.args else 2
        items.sort(key=lambda item: -seconds[_dealt_with(item)])


def pytest_runtest_teardown() -> None:
    """How a command that a test calls tells what it does, as with `--quiet`, is that test's alone."""
    vars(log).update(_TOLD)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs that tests kill leave behind lies, and goes, with the tests' own files."""
    folder = str(tmp_path_factory.mktemp("t"))  # paths of sockets must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
def quick_spawn(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Processes that `multiprocessing` starts anew are forked off one that has imported TensorFlow. Gives the command which does that, for a
    program to say so too."""
    import forked_python  # here, as what it asserts is to be shown

    before, command = multiprocessing.spawn.get_executable(), forked_python.write_command(tmp_path / "python")
    multiprocessing.set_executable(command)
    yield command
    multiprocessing.set_executable(before)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's own, of what our two packages say: other libraries warn of what earlier tests did, or from threads that these have left."""

    def is_ours(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in ("beam_pipelines", "recordmill", "tf_input")

    caplog.handler.addFilter(is_ours)
    try:
        yield caplog
    finally:
        caplog.handler.removeFilter(is_ours)  # it is the one of all tests


def pytest_collection_finish() -> None:
    """What was imported stays, and need not be looked through again and again; what is made since, graphs mostly, not for each few hundred objects."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(30_000, 10, 30)
    if "tensorflow" in sys.modules:
        # A graph that computes for milliseconds is not worth its optimisation, a fifth of what such a test takes; programs that tests start have it.
        sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def _dealt_with(item: pytest.Item) -> str:
    """What has the same name is run by one process: a module, or those that wait more than they compute, which would leave cores idle at once."""
    group = item.get_closest_marker("xdist_group")
    return group.args[0] if group else str(item.path)
