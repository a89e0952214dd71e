"""Processes that are forked once TensorFlow has run: each way to read says at once that it can't, and none hangs.

The threads of pytest's process are not to be among those that are forked: each case is a program of its own.
"""

import json
import pathlib
from typing import Callable

import pytest

import forked_python
from prepared import prepare_images

PROGRAM = """
import json, multiprocessing, sys
import tf_input

directory, before, method, executable = sys.argv[1:]
OPTIONS = dict(batch_size=4, image_size=8, seed=0)
flowers = tf_input.open(directory)
READ = {
    "example": lambda: flowers["train"][3]["label"],
    "slice": lambda: [one["label"] for one in flowers["train"][3:5]],
    "batches": lambda: next(iter(flowers.batches("train", **OPTIONS))),
    "arrays": lambda: next(iter(flowers.as_numpy("train", **OPTIONS))),
    "sequence": lambda: tf_input.Sequence(flowers, "train", **OPTIONS)[0],
    "foreign": lambda: tf_input.open_tfrecords(directory + "/*.tfrecord*"),
}
if before == "read" and __name__ == "__main__":
    READ["example"]()
    batches, arrays = flowers.batches("train", **OPTIONS), flowers.as_numpy("train", **OPTIONS)
    sequence, workers = (tf_input.Sequence(flowers, "train", workers=number, **OPTIONS) for number in (1, 2))
    READ["what batches made before are"] = lambda: [repr(batches), repr(arrays), str(flowers)]
    READ["batches made before"] = lambda: next(iter(batches))
    READ["arrays made before"] = lambda: next(iter(arrays))
    READ["sequence made before"] = lambda: sequence[1]
    READ["sequence with workers made before"] = lambda: workers[1]
    sequence[0], workers[0]
elif before == "tensorflow":
    import tensorflow as tf

    tf.constant(1) + 1


def child(accesses, results):
    for access in accesses:
        try:
            READ[access]()
            results.put("read")
        except Exception as error:
            results.put(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    found = {}
    multiprocessing.set_executable(executable)
    context = multiprocessing.get_context(method)
    for accesses in [[access] for access in READ] if before != "nothing" and method == "fork" else [["example", "sequence"]]:
        results = context.SimpleQueue()
        process = context.Process(target=child, args=(accesses, results), daemon=True)
        process.start()
        process.join(60)  # only who hangs takes so long
        found |= {access: "hangs" if process.is_alive() else results.get() for access in accesses}
        process.kill()
    if before == "read":
        found["parent"] = len(READ["batches made before"]()) and "read"
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return prepare_images(tmp_path_factory.mktemp("made"), num_images={"ant": 12, "bee": 12})


@pytest.fixture
def run(directory: pathlib.Path, tmp_path: pathlib.Path, quick_spawn: pathlib.Path) -> Callable[[str, str], dict[str, str]]:
    """The program, and what it found."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(before: str, method: str) -> dict[str, str]:
        done = forked_python.run(program, directory, before, method, quick_spawn)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("before", ["read", "tensorflow"])
def test_a_process_forked_after_tensorflow_has_run_is_told_at_once(before: str, run) -> None:
    actual = run(before, "fork")
    if before == "read":
        assert actual.pop("parent") == actual.pop("what batches made before are") == "read"
    assert len(actual) == (10 if before == "read" else 6)
    for access, result in actual.items():
        assert result.startswith("RuntimeError: this process was forked") and "'spawn'" in result, (access, result)


@pytest.mark.slow
@pytest.mark.parametrize("before, method", [("nothing", "fork"), ("read", "spawn")])
def test_processes_that_can_read_do(before: str, method: str, run) -> None:
    actual = run(before, method)
    assert set(actual.values()) == {"read"}, actual
