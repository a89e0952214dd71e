"""Tests that user errors are found in the exceptions of Beam runners, and that other errors are not shown to users."""

import contextlib
import errno
import os
import pickle
import traceback

import pytest

from beam_pipelines import log
from beam_pipelines.errors import InvalidInput, RunError, SilentStoreError, StorageError, UserError, find_full_disk, find_user_facing

MESSAGES = [
    ("one line", "--output=out exists. Choose a new path, or pass --overwrite."),
    ("dead letters", "2 of 9 inputs are dead letters:\n  - cat/1.jpg: 0 bytes (check)\n  - dog/é.jpg: a link (list)"),
    ("dead letters and more", "9 inputs:\n  - a/1.jpg: JPEG: Corrupt data: bad Huffman code (check)\n  - and 8 more"),
    ("the words of another error", "cat/1.jpg could not be read: ValueError: no [such] file"),
    ("a quote and a backslash", "class 'it\\'s' has no readable image: its folder \"it's/\" has none"),
]
STEPS = [
    ("no step", ""),
    ("a step", " [while running 'Write']"),
    ("a step and text of the runner", " [while running 'Write']\n\nTraceback: …"),
    ("a step within a step", " [while running 'WriteShards/Write-ptransform-42']"),
]
CLASSES = [UserError, RunError, SilentStoreError]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("wrap", ["plain", "as a cause", "as text"])
def test_full_disk_is_reported_in_one_line(number, wrap):
    error = OSError(number, os.strerror(number), "/out/a\nb")
    if wrap != "plain":
        error = wrap_error(error, by_cause=True) if wrap == "as a cause" else as_worker_process(error)
    actual = find_user_facing(error)
    assert isinstance(actual, StorageError) and actual.exit_code == 1 and os.strerror(number) in str(actual) and "\n" not in str(actual)
    assert find_full_disk(OSError(errno.EIO, os.strerror(errno.EIO))) is None and find_full_disk(ValueError("x")) is None


def test_messages_escape_control_characters(capsys):
    log.print_message("class '\x1b]0;owned\x07', \x9b31m and\n  - \u2028more \u202egnp.exe")
    assert capsys.readouterr().err == "recordmill: class '\\x1b]0;owned\\x07', \\x9b31m and\n  - \\u2028more \\u202egnp.exe\n"


def test_full_disk_for_the_log_does_not_end_a_run(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        log.print_message("one line")
        log.log_progress(stages=[])
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def with_traceback(error: BaseException) -> BaseException:
    """Raises and catches an error, and returns the error with its traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def wrap_error(error: BaseException, *, by_cause: bool) -> BaseException:
    """Wraps `error` in an exception, as its cause or as its context, like the exceptions of Beam runners."""
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
    """Returns an exception with the traceback of `error` as text, as a runner with worker processes raises it."""
    text = "".join(traceback.format_exception(with_traceback(error)))
    return RuntimeError(f"Pipeline job-001 failed in state FAILED: bundle inst003 {text}\n")


def as_prefixed(error: BaseException) -> RuntimeError:
    """Returns an exception whose message has other text before and after the traceback of `error`."""
    text = "".join(traceback.format_exception(with_traceback(error)))
    return RuntimeError(f"Error received from SDK harness for instruction 5: {text}\n\tat org.apache.beam.Sdk.run(Sdk.java)")


def with_process_note(error: BaseException) -> RuntimeError:
    """Returns an exception with the note that `worker_processes` adds to an error in a worker process."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(with_traceback(type(error)(str(error))))))
    return as_worker_process(error)


WRAPPERS = [
    ("the error itself", lambda error: error),
    ("as a cause", lambda error: wrap_error(error, by_cause=True)),
    ("as a context", lambda error: wrap_error(error, by_cause=False)),
    ("nested twice", lambda error: wrap_error(wrap_error(error, by_cause=True), by_cause=False)),
    ("a worker's traceback", as_worker_process),
    ("a worker's traceback as a cause of a runner's error", lambda error: wrap_error(as_worker_process(error), by_cause=True)),
    ("a traceback within other text", as_prefixed),
    ("a note of a worker process", with_process_note),
    ("a traceback of chained errors", lambda error: as_worker_process(wrap_error(error, by_cause=True))),
]


@pytest.mark.parametrize("wrap", [wrapper for _, wrapper in WRAPPERS], ids=[name for name, _ in WRAPPERS])
def test_error_for_the_user_is_found_in_the_exception_of_a_runner(wrap):
    for cls in CLASSES:
        for case, message in MESSAGES:
            for step_case, step in STEPS:
                actual = find_user_facing(wrap(cls(message + step)))
                assert type(actual) is cls, (case, step_case)
                assert str(actual) == message, (case, step_case)


def test_other_errors_are_not_shown_to_the_user():
    cases = [
        ("a bug", ValueError("an index of 3 bytes")),
        ("a bug with a cause", wrap_error(KeyError("label"), by_cause=True)),
        ("a bug in a worker process", as_worker_process(KeyError("label"))),
        ("the name of our class in a message", RuntimeError("expected no UserError: but got one")),
        ("a foreign class with a similar name", RuntimeError("Traceback:\nTheirUserError: no")),
    ]
    for case, error in cases:
        assert find_user_facing(error) is None, case


def test_error_raised_from_none_is_a_programming_error():
    try:
        try:
            raise UserError("no such option")
        except UserError:
            raise KeyError("a bug, from None") from None
    except KeyError as caught:
        assert find_user_facing(caught) is None


def test_errors_can_be_pickled():
    assert issubclass(RunError, RuntimeError)
    for cls in CLASSES:
        again = pickle.loads(pickle.dumps(cls("a message")))
        assert (type(again), str(again)) == (cls, "a message"), cls


def test_error_that_is_its_own_cause_ends_the_search():
    error = ValueError("round and round")
    error.__cause__ = error
    assert find_user_facing(error) is None


@pytest.mark.parametrize("error", [UserError("x"), InvalidInput("bad_row", "x")])
def test_except_value_error_does_not_catch_user_errors(error):
    """Code that parses an input and catches `ValueError` must not hide user errors."""
    assert not isinstance(error, ValueError)
    assert pickle.loads(pickle.dumps(with_traceback(error) if isinstance(error, UserError) else UserError("x"))).args == ("x",)
