"""Tests that reading batches fails immediately in a process that was forked after TensorFlow has run."""

import json
import pathlib
from typing import Callable

import pytest

import forked_python
from prepared import prepare_images

# Each case runs in its own program, so that the threads of the pytest process are not forked.
PROGRAM = """
import json, multiprocessing, sys
import tf_input

directory, before, method, executable = sys.argv[1:]
OPTIONS = dict(batch_size=4, image_size=8, seed=0)
flowers = tf_input.open(directory)
READ = {
    "example": lambda: flowers["train"][3]["label"],
    "slice": lambda: [example["label"] for example in flowers["train"][3:5]],
    "batches": lambda: next(iter(flowers.batches("train", **OPTIONS))),
    "arrays": lambda: next(iter(flowers.as_numpy("train", **OPTIONS))),
    "sequence": lambda: tf_input.Sequence(flowers, "train", **OPTIONS)[0],
    "foreign": lambda: tf_input.open_tfrecords(directory + "/*.tfrecord*"),
}
if before == "read" and __name__ == "__main__":
    READ["example"]()
    batches, arrays = flowers.batches("train", **OPTIONS), flowers.as_numpy("train", **OPTIONS)
    sequence, workers = (tf_input.Sequence(flowers, "train", workers=number, **OPTIONS) for number in (1, 2))
    READ["repr of batches made before"] = lambda: [repr(batches), repr(arrays), str(flowers)]
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
    outcomes = {}
    multiprocessing.set_executable(executable)
    context = multiprocessing.get_context(method)
    for accesses in [[access] for access in READ] if before != "nothing" and method == "fork" else [["example", "sequence"]]:
        results = context.SimpleQueue()
        process = context.Process(target=child, args=(accesses, results), daemon=True)
        process.start()
        process.join(60)  # only a process that hangs takes this long
        outcomes |= {access: "hangs" if process.is_alive() else results.get() for access in accesses}
        process.kill()
    if before == "read":
        outcomes["parent"] = len(READ["batches made before"]()) and "read"
    print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return prepare_images(tmp_path_factory.mktemp("prepared"), num_images={"ant": 12, "bee": 12})


@pytest.fixture
def run(directory: pathlib.Path, tmp_path: pathlib.Path, quick_spawn: pathlib.Path) -> Callable[[str, str], dict[str, str]]:
    """Returns a function that runs the program and returns whether each read succeeds, fails or hangs."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(before: str, method: str) -> dict[str, str]:
        done = forked_python.run(program, directory, before, method, quick_spawn)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("before", ["read", "tensorflow"])
def test_process_forked_after_tensorflow_has_run_raises_an_error(before: str, run) -> None:
    actual = run(before, "fork")
    if before == "read":
        assert actual.pop("parent") == actual.pop("repr of batches made before") == "read"
    assert actual.pop("example") == actual.pop("slice") == "read", "single examples do not need TensorFlow"
    assert len(actual) == (8 if before == "read" else 4)
    for access, outcome in actual.items():
        assert outcome.startswith("RuntimeError: ") and "'spawn'" in outcome, (access, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("before, method", [("nothing", "fork"), ("read", "spawn")])
def test_spawned_or_early_forked_processes_can_read(before: str, method: str, run) -> None:
    actual = run(before, method)
    assert set(actual.values()) == {"read"}, actual
