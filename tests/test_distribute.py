"""Many hosts: each reads its own part of a split, all of them as many batches, and together they read all."""

import json
import logging
import os
import pathlib
import socket
import subprocess
import sys
from collections import Counter
from typing import Iterable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared import prepare_images

import tf_input
from tf_input import order
from tf_input.distribute import divide, divide_shards

ROOT = pathlib.Path(__file__).parent.parent
NUM_SHARDS = 6
BUDGET = 1 << 30  # all is held in memory


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("prepared")
    return tf_input.open(prepare_images(folder, "--num_shards", f"train={NUM_SHARDS},validation=1", image_size=(20, 24)))


def names_of(batches: Iterable[tuple]) -> list[int]:
    """What tells examples apart."""
    return [hash(np.asarray(image).tobytes()) for batch in batches for image in batch[0]]


def records_of(part, counts: list[int], kind: str | None, key: int) -> list[int]:
    """The records that a host reads in an epoch, numbered through all shards."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    of_split = np.concatenate([np.arange(starts[shard], starts[shard + 1]) for shard in part.shards])
    of_host = order.Order(len(of_split), kind, 2, 6, part.first, part.count)
    assert of_host.num_positions == part.count
    return of_split[of_host.numbers(tf.constant(key, tf.int64), tf.range(part.count, dtype=tf.int64)).numpy()].tolist()


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    num_hosts=st.integers(1, 9),
    kind=st.sampled_from([None, "window", "exact"]),
    key=st.integers(0, 2**63 - 1),
)
def test_parts_are_disjoint_and_equal_and_leave_out_next_to_nothing(counts, num_hosts, kind, key):
    total = sum(counts)
    if total < num_hosts:
        if num_hosts > 1:
            with pytest.raises(ValueError, match="too few for"):
                divide("train", counts, (num_hosts, 0), kind)
        return
    parts = [divide("train", counts, (num_hosts, index), kind) for index in range(num_hosts)]
    assert len({part.count for part in parts}) == 1 and parts[0].count > 0
    read = [number for part in parts for number in records_of(part, counts, kind, key)]
    assert len(set(read)) == len(read) == num_hosts * parts[0].count
    own_shards = any(len(part.shards) < len(counts) for part in parts)
    assert total - len(read) <= (0.01 * total if own_shards else num_hosts - 1)
    assert not own_shards or kind == "window"


@pytest.mark.parametrize(
    "counts, num_hosts, kind, shards_of_last, count",
    [
        ([10] * 8, 4, "window", [3, 7], 20),
        ([1000] * 4 + [998] * 4, 4, "window", [3, 7], 1998),
        ([10] * 301, 2, "window", list(range(1, 301, 2)), 1500),  # a shard less than the other
        ([1000, 10, 10, 10], 2, "window", [0, 1, 2, 3], 515),  # shares of 1010 and 20 would leave out nearly all
        ([10] * 3, 4, "window", [0, 1, 2], 7),  # more hosts than shards
        ([10] * 8, 4, "exact", list(range(8)), 20),  # the order is one of all records
        ([10] * 8, 4, None, list(range(8)), 20),  # and so is that in which they lie
    ],
)
def test_hosts_have_shards_of_their_own_where_these_come_out_even(counts, num_hosts, kind, shards_of_last, count, caplog):
    caplog.set_level(logging.INFO, "tf_input")
    part = divide("train", counts, (num_hosts, num_hosts - 1), kind)
    assert (list(part.shards), part.count) == (shards_of_last, count)
    (message,) = caplog.messages
    how = "shards of its own" if len(shards_of_last) < len(counts) else "a part of the order of all records"
    assert f"train on {num_hosts} hosts, of which this is number {num_hosts - 1}: each reads {how}" in message
    left_out = sum(counts) - num_hosts * count
    assert (f"; {left_out} are left out" in message) == (left_out > 0)


def test_whole_shards_are_dealt_out_where_nothing_less_can_be():
    counts = [3, 1, 4, 1, 5]
    parts = [divide_shards("train", counts, (2, index)) for index in range(2)]
    assert [list(part.shards) for part in parts] == [[0, 2, 4], [1, 3]] and {part.count for part in parts} == {2}
    with pytest.raises(ValueError, match=r"hosts=\(6, 1\): train has 14 examples in 5 shards, too few for 6 hosts"):
        divide_shards("train", counts, (6, 1))


@pytest.mark.parametrize(
    "num_hosts, shuffle, memory_budget",
    [(2, False, 0), (2, "window", 0), (4, "exact", 0), (7, "window", 0), (2, None, BUDGET), (4, "window", BUDGET), (4, False, BUDGET)],
)
def test_hosts_together_read_the_split(dataset, num_hosts, shuffle, memory_budget):
    everything = names_of(dataset.batches("train", batch_size=50))
    assert len(set(everything)) == len(everything)
    options = {"batch_size": 5, "shuffle": shuffle, "seed": 3, "memory_budget": memory_budget}
    hosts = [dataset.batches("train", hosts=(num_hosts, index), **options) for index in range(num_hosts)]
    epochs = [list(data) for data in hosts]
    sizes = [[len(labels) for _, labels in epoch] for epoch in epochs]
    assert all(one == sizes[0] for one in sizes), sizes
    assert {int(data.cardinality()) for data in hosts} == {len(sizes[0])}
    read = Counter(name for epoch in epochs for name in names_of(epoch))
    assert set(read.values()) == {1} and set(read) <= set(everything)
    assert len(everything) - len(read) < num_hosts


def test_what_is_left_out_differs_between_epochs(dataset):
    num_examples = dataset.num_examples("train")
    num_hosts = next(number for number in range(4, 30) if num_examples % number > 1 and NUM_SHARDS % number)
    hosts = [dataset.batches("train", batch_size=8, seed=0, hosts=(num_hosts, index)) for index in range(num_hosts)]
    epochs = [{name for data in hosts for name in names_of(data)} for _ in range(3)]
    assert {len(epoch) for epoch in epochs} == {num_examples - num_examples % num_hosts}
    assert len(set.union(*epochs)) > len(epochs[0])


def test_a_host_goes_on_in_the_middle_of_its_epoch(dataset):
    options = {"batch_size": 4, "seed": 1, "image_size": 16, "augment": True, "hosts": (3, 1)}
    whole = [names_of([batch]) for batch in dataset.batches("train", start_epoch=2, **options)]
    assert [names_of([batch]) for batch in dataset.batches("train", start_epoch=2, start_step=3, **options)] == whole[3:]


def test_every_host_has_to_have_something_to_read(dataset):
    for memory_budget, where in ((0, " in 6 shards"), (BUDGET, "")):
        with pytest.raises(ValueError, match=rf"hosts=\(1000, 999\): train has \d+ examples{where}, too few for 1000 hosts"):
            dataset.batches("train", batch_size=1, hosts=(1000, 999), memory_budget=memory_budget)


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def tf_config(kind: str, index: int, cluster: dict = CLUSTER) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_hosts_are_found(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    one_device = tf.distribute.OneDeviceStrategy("CPU:0")
    strategies = [tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0"]), one_device]
    context = tf.distribute.InputContext(num_input_pipelines=3, input_pipeline_id=2, num_replicas_in_sync=6)
    assert tf_input.find_hosts() == (1, 0) and tf_input.find_hosts(context) == (3, 2)
    assert [tf_input.find_hosts(strategy) for strategy in strategies] == [(1, 0)] * 3
    cases = [
        (tf_config("chief", 0), (3, 0)),
        (tf_config("worker", 1), (3, 2)),
        (tf_config("worker", 1, {"worker": ["b:1", "c:1"]}), (2, 1)),
        (json.dumps({"environment": "cloud"}), (1, 0)),
    ]
    for text, expected in cases:
        monkeypatch.setenv("TF_CONFIG", text)
        assert tf_input.find_hosts() == expected, text
        assert tf_input.find_hosts(strategies[0]) == (1, 0), text  # it trains alone, whatever the variable says


def test_hosts_that_cannot_be_found_are_errors(monkeypatch):
    for text in ("{", "[]", tf_config("worker", 2), tf_config("ps", 0), tf_config("evaluator", 0)):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(ValueError, match="TF_CONFIG="):
            tf_input.find_hosts()
    with pytest.raises(ValueError, match="expected the InputContext of its distribute_datasets_from_function"):
        tf_input.find_hosts(tf.distribute.experimental.CentralStorageStrategy())


def start(code: str, *arguments: object, **variables: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | variables
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*processes: subprocess.Popen) -> list[dict]:
    """What each said in its last line."""
    try:
        said = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), said[0][1][-3000:]
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in said]


MIRRORED = """
import json
import keras
import numpy as np
import tensorflow as tf
import tf_input

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dataset = tf_input.open(sys.argv[1])
options = {"batch_size": 8, "seed": 0, "memory_budget": 0}


class Names(keras.metrics.Metric):
    # Sums of images, which tell them apart: of each step, on each replica.
    def __init__(self):
        super().__init__()
        self.sum = self.add_weight(name="sum", initializer="zeros", dtype="float32")
        self.count = self.add_weight(name="count", initializer="zeros", dtype="float32")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sum.assign_add(tf.reduce_sum(tf.cast(y_pred[:, -1], tf.float32)))
        self.count.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

    def result(self):
        return {"sum": self.sum, "count": self.count}


with strategy.scope():
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[Names()])
train = dataset.batches("train", **options)
history = model.fit(train, epochs=3, verbose=0).history
evaluation = model.evaluate(dataset.batches("validation", **options), return_dict=True, verbose=0)


def of_worker(context):
    return dataset.batches("train", hosts=tf_input.find_hosts(context), start_epoch=2, **options)


read = []
for batch in strategy.distribute_datasets_from_function(of_worker):
    read += [int(np.sum(image)) for part in strategy.experimental_local_results(batch[0]) for image in part.numpy()]
print(json.dumps({
    "counts": history["count"], "loss": history["loss"], "evaluated": evaluation["count"], "next": repr(train.position),
    "read": sorted(read), "hosts": tf_input.find_hosts(strategy),
}))
"""


@pytest.mark.slow
def test_mirrored_strategy_reads_each_example_once(dataset):
    (said,) = finish(start(MIRRORED, dataset.directory))
    num_examples = dataset.num_examples("train")
    assert said["counts"] == [num_examples] * 3 and np.isfinite(said["loss"]).all()
    assert said["evaluated"] == dataset.num_examples("validation")
    assert said["next"] == "Position(epoch=3, step=0)"  # the batch from which Keras built the model is of no pass
    assert said["read"] == sorted(int(np.sum(image)) for images, _ in dataset.batches("train", batch_size=50) for image in images)
    assert said["hosts"] == [1, 0]


JAX = """
import json
import jax

address, index, directory = sys.argv[1:]
jax.distributed.initialize(address, num_processes=2, process_id=int(index))
import numpy as np
import tf_input

hosts = tf_input.find_hosts()
data = tf_input.open(directory).batches("train", batch_size=8, seed=0)  # who reads what is found
sums = [[int(np.sum(image)) for image in images] for images, _ in data.as_numpy_iterator()]
jax.distributed.shutdown()
print(json.dumps({"hosts": hosts, "sums": sums}))
"""


@pytest.mark.slow
def test_jax_processes_are_found_and_read_disjoint_parts(dataset):
    pytest.importorskip("jax", reason="JAX is not installed")
    with socket.create_server(("localhost", 0)) as one:
        address = f"localhost:{one.getsockname()[1]}"
    said = finish(*(start(JAX, address, index, dataset.directory) for index in range(2)))
    assert [one["hosts"] for one in said] == [[2, 0], [2, 1]]
    assert [len(batch) for batch in said[0]["sums"]] == [len(batch) for batch in said[1]["sums"]]
    read = [name for one in said for batch in one["sums"] for name in batch]
    everything = [int(np.sum(image)) for images, _ in dataset.batches("train", batch_size=50) for image in images]
    assert not Counter(read) - Counter(everything) and len(everything) - len(read) < NUM_SHARDS


FOUND = """
import json, logging
import tf_input

logging.basicConfig(level=logging.INFO, format="%(message)s")  # what a script shows
dataset = tf_input.open(sys.argv[1])
options = {"batch_size": 8, "seed": 0}
names = lambda data: [hash(image.tobytes()) for images, _ in data for image in images]
print(json.dumps({
    "train": names(dataset.as_generator("train", **options)),
    "validation": names(dataset.as_generator("validation", **options)),
    "sequence": names(tf_input.Sequence(dataset, "train", **options)),
    "all": names(dataset.as_generator("train", hosts=(1, 0), **options)),
}))
"""


def test_hosts_are_found_where_nobody_says_which_there_are(dataset):
    """Two processes of a TF_CONFIG: together they read everything, each once, and each says so."""
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    processes = [start(FOUND, dataset.directory, PYTHONHASHSEED="0", TF_CONFIG=tf_config("worker", index, cluster)) for index in range(2)]
    said = [process.communicate(timeout=240) for process in processes]
    assert all(process.returncode == 0 for process in processes), said
    hosts = [json.loads(stdout.splitlines()[-1]) for stdout, _ in said]
    num_train, num_valid = dataset.num_examples("train"), dataset.num_examples("validation")
    for split, total in (("train", num_train), ("validation", num_valid), ("sequence", num_train)):
        read = [name for host in hosts for name in host[split]]
        assert len(set(read)) == len(read) == total // 2 * 2, split
        assert len(hosts[0][split]) == len(hosts[1][split])
    assert len(set(hosts[0]["all"])) == num_train and sorted(hosts[0]["all"]) == sorted(hosts[1]["all"])
    for index, (_, stderr) in enumerate(said):
        for split in ("train", "validation"):
            assert f"{split}: found 2 hosts by TF_CONFIG; this is number {index}, and reads its own part. hosts=(1, 0)" in stderr


def test_who_reads_beside_a_training_is_told_apart(dataset, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config("evaluator", 0))
    assert len(names_of(dataset.batches("validation", batch_size=8))) == dataset.num_examples("validation")
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 1))
    with pytest.raises(ValueError, match=r"parameter servers is not known from here; expected hosts=\(number of hosts, index\)"):
        dataset.batches("train", batch_size=8)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():  # it trains alone, whatever the variable says
        assert len(names_of(dataset.batches("train", batch_size=8))) == dataset.num_examples("train")
    with tf.distribute.experimental.CentralStorageStrategy().scope():
        with pytest.raises(ValueError, match=r"hosts=None: strategy=.*hosts=\(1, 0\) reads all of it"):
            dataset.batches("train", batch_size=8)
