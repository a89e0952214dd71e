"""What a run shows its user is found again behind whatever a runner wraps around it, and nothing else is."""

import contextlib
import errno
import os
import pickle
import traceback

import pytest

from beam_pipelines import log
from beam_pipelines.errors import InvalidInput, RunError, SilentStoreError, StorageError, UserError, find_full_disk, find_user_facing

MESSAGES = [
    ("one line", "--output=out exists; expected a new path, or --overwrite"),
    ("dead letters", "2 of 9 inputs are dead letters:\n  - cat/1.jpg: 0 bytes (check)\n  - dog/é.jpg: a link (list)"),
    ("dead letters and more", "9 inputs:\n  - a/1.jpg: JPEG: Corrupt data: bad Huffman code (check)\n  - and 8 more"),
    ("another error's words", "cat/1.jpg could not be read: ValueError: no [such] file"),
    ("a quote and a backslash", "class 'it\\'s' has no readable image: its folder \"it's/\" has none"),
]
STEPS = [
    ("no step", ""),
    ("a step", " [while running 'Write']"),
    ("a step, and what a runner adds", " [while running 'Write']\n\nTraceback: …"),
    ("a step within a step", " [while running 'WriteShards/Write-ptransform-42']"),
]
CLASSES = [UserError, RunError, SilentStoreError]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("wrap", ["plain", "as a cause", "as text"])
def test_a_full_disk_is_one_line_wherever_it_is_met(number, wrap):
    error = OSError(number, os.strerror(number), "/out/a\nb")
    if wrap != "plain":
        error = wrapped(error, by_cause=True) if wrap == "as a cause" else as_worker_process(error)
    actual = find_user_facing(error)
    assert isinstance(actual, StorageError) and actual.exit_code == 1 and os.strerror(number) in str(actual) and "\n" not in str(actual)
    assert find_full_disk(OSError(errno.EIO, os.strerror(errno.EIO))) is None and find_full_disk(ValueError("x")) is None


def test_what_a_dataset_says_controls_no_terminal(capsys):
    log.print_message("class '\x1b]0;owned\x07', \x9b31m and\n  - \u2028more \u202egnp.exe")
    assert capsys.readouterr().err == "recordmill: class '\\x1b]0;owned\\x07', \\x9b31m and\n  - \\u2028more \\u202egnp.exe\n"


def test_a_log_on_a_full_disk_ends_no_run(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        log.print_message("one line")
        log.log_progress(stages=[])
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def raised(error: BaseException) -> BaseException:
    """The same error, with a traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def wrapped(error: BaseException, *, by_cause: bool) -> BaseException:
    """A runner's error, raised because of `error` or while it was handled."""
    try:
        try:
            raise error
        except type(error) as caught:
            if by_cause:
                raise RuntimeError("Pipeline construction environment") from caught
            raise RuntimeError("while handling")
    except RuntimeError as outer:
        return outer


def as_worker_process(error: BaseException) -> RuntimeError:
    """What a runner with worker processes raises: the traceback's text and no more."""
    text = "".join(traceback.format_exception(raised(error)))
    return RuntimeError(f"Pipeline job-001 failed in state FAILED: bundle inst003 {text}\n")


def as_prefixed(error: BaseException) -> RuntimeError:
    """Some runners put the harness's own words first and last."""
    text = "".join(traceback.format_exception(raised(error)))
    return RuntimeError(f"Error received from SDK harness for instruction 5: {text}\n\tat org.apache.beam.Sdk.run(Sdk.java)")


def in_light_process(error: BaseException) -> RuntimeError:
    """With the note that `worker_processes` leaves."""
    error.add_note("in a light process:\n" + "".join(traceback.format_exception(raised(type(error)(str(error))))))
    return as_worker_process(error)


WRAPPERS = [
    ("the error itself", lambda error: error),
    ("as a cause", lambda error: wrapped(error, by_cause=True)),
    ("as a context", lambda error: wrapped(error, by_cause=False)),
    ("two deep", lambda error: wrapped(wrapped(error, by_cause=True), by_cause=False)),
    ("a worker's traceback", as_worker_process),
    ("a worker's traceback as a cause of a runner's error", lambda error: wrapped(as_worker_process(error), by_cause=True)),
    ("a traceback within other text", as_prefixed),
    ("a worker's light process", in_light_process),
    ("a traceback of a chain", lambda error: as_worker_process(wrapped(error, by_cause=True))),
]


@pytest.mark.parametrize("wrap", [wrapper for _, wrapper in WRAPPERS], ids=[name for name, _ in WRAPPERS])
def test_an_error_of_ours_is_found_as_it_was_raised(wrap):
    for cls in CLASSES:
        for case, message in MESSAGES:
            for step_case, step in STEPS:
                actual = find_user_facing(wrap(cls(message + step)))
                assert type(actual) is cls, (case, step_case)
                assert str(actual) == message, (case, step_case)


def test_what_is_not_ours_is_left_alone():
    cases = [
        ("a bug", ValueError("an index of 3 bytes")),
        ("a bug with a cause", wrapped(KeyError("label"), by_cause=True)),
        ("a bug in a worker process", as_worker_process(KeyError("label"))),
        ("our names in a message", RuntimeError("expected no UserError: but got one")),
        ("a class of theirs whose name ends like ours", RuntimeError("Traceback:\nTheirUserError: no")),
    ]
    for case, error in cases:
        assert find_user_facing(error) is None, case


def test_a_bug_while_an_error_of_ours_was_handled_stays_a_bug_where_its_raiser_says_so():
    try:
        try:
            raise UserError("no such option")
        except UserError:
            raise KeyError("a bug, from None") from None
    except KeyError as caught:
        assert find_user_facing(caught) is None


def test_errors_cross_processes():
    assert issubclass(RunError, RuntimeError)
    for cls in CLASSES:
        again = pickle.loads(pickle.dumps(cls("a message")))
        assert (type(again), str(again)) == (cls, "a message"), cls


def test_an_error_that_is_its_own_cause_is_looked_at_once():
    error = ValueError("round and round")
    error.__cause__ = error
    assert find_user_facing(error) is None


@pytest.mark.parametrize("error", [UserError("x"), InvalidInput("bad_row", "x")])
def test_a_handler_of_bad_values_catches_no_error_that_is_already_worded(error):
    """A programming error is no `UserError` either: `except ValueError` around code that checks its input hides neither of them."""
    assert not isinstance(error, ValueError)
    assert pickle.loads(pickle.dumps(raised(error) if isinstance(error, UserError) else UserError("x"))).args == ("x",)
