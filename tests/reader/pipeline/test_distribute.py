"""Tests that several hosts read disjoint examples of a split, and that all hosts read the same number of batches."""

import json
import os
import re
import sys
import types
from collections import Counter
from typing import Iterable

import numpy as np
import pytest
import tensorflow as tf

from tensorflow.python.distribute.input_ops import auto_shard_dataset

import tf_input
from beam_pipelines.runners.job_servers import reserve_port
from forked_python import ForkedPython
from prepared import prepare_images
from resumed import batches_from

NUM_SHARDS = 6
MEMORY_BUDGET = 1 << 30  # the whole split fits in memory


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("prepared")
    return tf_input.open(prepare_images(folder, "--num_shards", f"train={NUM_SHARDS},validation=1", image_size=(20, 24)))


def image_hashes(batches: Iterable[tuple]) -> list[int]:
    """Returns a hash of each image."""
    return [hash(np.asarray(image).tobytes()) for batch in batches for image in batch[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shuffle, cache_in_memory, num_hosts", [(False, 0, 2), ("window", 0, 3), ("exact", 0, 2), (True, MEMORY_BUDGET, 2)]
)
def test_hosts_together_read_the_batches_of_a_single_host(dataset, shuffle, cache_in_memory, num_hosts):
    """Random crops and color changes do not depend on the host. Padding examples in the last batch have weight 0."""
    augment = tf_input.Augmentation(brightness=0.3, hue=0.1)
    options = {"batch_size": 12, "shuffle": shuffle, "seed": 3, "cache_in_memory": cache_in_memory, "read_buffer": 30_000}
    options |= {"augment": augment, "image_size": 16}
    read = lambda **more: list(batches_from(dataset.batches("train", **options, **more), 1, 2).as_numpy_iterator())
    alone = read()
    hosts = [read(hosts=(num_hosts, index)) for index in range(num_hosts)]
    assert {len(host) for host in hosts} == {len(alone)}
    for step, batch in enumerate(alone):
        parts = [host[step] for host in hosts]
        assert len({len(part[0]) for part in parts}) == 1, "all hosts have equally many examples"
        read = Counter(name for part in parts for name in image_hashes([without_padding(part)]))
        assert read == Counter(image_hashes([batch])), step


def without_padding(batch: tuple) -> tuple:
    """Returns the images and labels of a batch without its padding examples."""
    return batch if len(batch) == 2 else (batch[0][batch[2] > 0], batch[1][batch[2] > 0])


@pytest.mark.slow
def test_last_batch_is_padded_only_if_hosts_cannot_divide_it(dataset):
    num_examples = dataset.num_examples("validation")
    complete = sorted(image_hashes(dataset.batches("validation", batch_size=7)))
    for batch_size, num_hosts in ((4, 2), (1002, 3)):
        parts = [dataset.batches("validation", batch_size=batch_size, hosts=(num_hosts, index)) for index in range(num_hosts)]
        is_padded = num_examples % batch_size % num_hosts > 0
        assert all(len(data.element_spec) == 2 + is_padded for data in parts)
        batches = [batch for data in parts for batch in data.as_numpy_iterator()]
        weights = [batch[2] for batch in batches] if is_padded else [np.ones(num_examples)]
        assert sum(weight.sum() for weight in weights) == num_examples
        assert sorted(image_hashes(map(without_padding, batches))) == complete


@pytest.mark.slow
def test_padding_examples_have_weight_zero(tmp_path):
    """Because padding examples have weight 0, Keras computes the same metrics on several hosts as on a single host."""
    dataset = tf_input.open(prepare_images(tmp_path, "--splits=validation=1", num_images={"ant": 8, "bee": 9}))
    options = {"batch_size": 8, "image_size": 8, "class_weight": {0: 0.5, 1: 2.0}}
    ((_, labels, weights),) = dataset.batches("validation", **{**options, "batch_size": 100}).as_numpy_iterator()
    np.testing.assert_array_equal(weights, np.array([0.5, 2.0], np.float32)[labels])
    hosts = [list(dataset.batches("validation", hosts=(4, index), **options).as_numpy_iterator()) for index in range(4)]
    assert sum(batch[2].sum() for host in hosts for batch in host) == weights.sum()
    assert [[len(batch[1]) for batch in host] for host in hosts] == [[2, 2, 1]] * 4


def test_warns_if_padding_cannot_be_marked_without_targets(dataset, caplog):
    num_examples = dataset.num_examples("validation")
    for num_hosts in (next(count for count in range(2, 9) if num_examples % count), 1):
        caplog.clear()
        dataset.batches("validation", batch_size=100 * num_hosts, hosts=(num_hosts, 0), targets=())
        warnings = [message for message in caplog.messages if "validation has no targets" in message]
        assert len(warnings) == (num_hosts > 1)


@pytest.mark.slow
def test_training_resumes_with_a_different_number_of_hosts(dataset):
    options = {"batch_size": 12, "seed": 1, "image_size": 16, "augment": True, "drop_remainder": True}
    alone = dataset.batches("train", **options)
    complete = [Counter(image_hashes([batch])) for batch in batches_from(alone, 2)]
    parts = [dataset.batches("train", hosts=(3, index), **options) for index in range(3)]
    first = [list(batches_from(part, 2).take(3)) for part in parts]
    second = [list(batches_from(dataset.batches("train", hosts=(2, index), **options), 2, 3)) for index in range(2)]
    read = [Counter(name for host in hosts for name in image_hashes([host[step]])) for hosts in (first, second) for step in range(len(hosts[0]))]
    assert read == complete
    assert dataset.example_spec("train", hosts=(3, 2), **options) == parts[2].element_spec
    for hosts in ((1, 0), (4, 2)):  # the last batch of four hosts has weights because it is padded
        read_options = {**options, "drop_remainder": False, "hosts": hosts}
        assert (
            dataset.example_spec("train", **read_options) == dataset.batches("train", **read_options).element_spec
        ), hosts
    assert alone.iterator_state.fingerprint == parts[2].iterator_state.fingerprint


def test_rejects_batch_size_that_hosts_cannot_divide(dataset):
    for cache_in_memory in (0, MEMORY_BUDGET):
        with pytest.raises(ValueError, match="batch_size=8 .* 3 hosts.* 6"):
            dataset.batches("train", batch_size=8, hosts=(3, 1), cache_in_memory=cache_in_memory)


@pytest.mark.slow(2)
def test_batches_of_one_host_cannot_be_sharded_again(dataset):
    """The test covers `shard`, automatic sharding, and datasets that are derived from the batches."""
    derivations = [lambda data: data, lambda data: data.map(lambda *batch: batch).prefetch(2), lambda data: data.repeat(2).unbatch().batch(4)]
    for derive in derivations:

        def make(hosts: tuple[int, int] = (1, 0)) -> tf.data.Dataset:
            return derive(dataset.batches("train", batch_size=12, cache_in_memory=0, seed=0, hosts=hosts))

        part, everything = make((2, 1)), Counter(image_hashes(make()))
        with pytest.raises(ValueError, match=r"hosts=\(2, 1\)"):
            part.shard(2, 1)
        with pytest.raises(tf.errors.NotFoundError, match="hosts_1_0"):
            auto_shard_dataset(part, 2, 1, 2)
        # A strategy with a single worker reads all batches of its host.
        assert auto_shard_dataset(part, 1, 0, 1).cardinality() == part.cardinality()
        for divide in (lambda index: auto_shard_dataset(make(), 2, index, 2), lambda index: make().shard(2, index)):
            parts = [Counter(image_hashes(divide(index))) for index in range(2)]
            assert all(parts) and parts[0] + parts[1] == everything


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def tf_config(kind: str, index: int, cluster: dict = CLUSTER) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_find_hosts_reads_strategies_and_tf_config(monkeypatch):
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
        assert tf_input.find_hosts(strategies[0]) == (1, 0), text  # a local strategy takes precedence over TF_CONFIG


def test_find_hosts_supports_jax_without_is_initialized(monkeypatch):
    """The oldest supported version of JAX has no `jax.distributed.is_initialized`."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    jax = types.SimpleNamespace(distributed=types.SimpleNamespace(), process_count=lambda: 4, process_index=lambda: 3)
    for client, expected in ((None, (1, 0)), (object(), (4, 3))):
        state = types.SimpleNamespace(global_state=types.SimpleNamespace(client=client))
        monkeypatch.setitem(sys.modules, "jax", jax)
        monkeypatch.setitem(sys.modules, "jax._src.distributed", state)
        assert tf_input.find_hosts() == expected


def test_find_hosts_rejects_invalid_tf_config_and_strategies(monkeypatch):
    for text in ("{", "[]", tf_config("worker", 2), tf_config("ps", 0), tf_config("evaluator", 0)):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(ValueError, match=re.escape(f"TF_CONFIG={text}: ")):
            tf_input.find_hosts()
    with pytest.raises(ValueError, match="strategy=.*InputContext"):
        tf_input.find_hosts(tf.distribute.experimental.CentralStorageStrategy())


def start(code: str, *arguments: object, **variables: str) -> ForkedPython:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | variables
    return ForkedPython("-c", f"import sys\n{code}", *arguments, env=environment)


def finish(*processes: ForkedPython) -> list[dict]:
    """Returns the JSON value in the last output line of each process."""
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), outputs[0][1][-3000:]
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]


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
options = {"batch_size": 8, "seed": 0, "cache_in_memory": 0}


class PixelSums(keras.metrics.Metric):
    # Sums of pixels, which identify images, and numbers of images.
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
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[PixelSums()], jit_compile=False)
train = dataset.batches("train", **options)
history = model.fit(train, epochs=3, verbose=0).history
evaluation = model.evaluate(dataset.batches("validation", **options), return_dict=True, verbose=0)


def of_worker(context):
    batches = dataset.batches("train", hosts=tf_input.find_hosts(context), **options)
    batches.iterator_state.go_to(2)
    return batches


read = []
for batch in strategy.distribute_datasets_from_function(of_worker):
    read += [int(np.sum(image)) for part in strategy.experimental_local_results(batch[0]) for image in part.numpy()]
print(json.dumps({
    "counts": history["count"], "loss": history["loss"], "evaluated": evaluation["count"], "next": repr(train.iterator_state),
    "read": sorted(read), "hosts": tf_input.find_hosts(strategy),
}))
"""


@pytest.mark.slow(3.3)
def test_mirrored_strategy_reads_each_example_once(dataset):
    (outputs,) = finish(start(MIRRORED, dataset.directory))
    num_examples = dataset.num_examples("train")
    assert outputs["counts"] == [num_examples] * 3 and np.isfinite(outputs["loss"]).all()
    assert outputs["evaluated"] == dataset.num_examples("validation")
    # the batch that Keras reads to build the model does not count
    assert outputs["next"] == "IteratorState(epoch=3, step=0)"
    assert outputs["read"] == sorted(
        int(np.sum(image)) for images, _ in dataset.batches("train", batch_size=50) for image in images
    )
    assert outputs["hosts"] == [1, 0]


JAX = """
import json
import jax

address, index, directory = sys.argv[1:]
jax.distributed.initialize(address, num_processes=2, process_id=int(index))
import numpy as np
import tf_input

hosts = tf_input.find_hosts()
data = tf_input.open(directory).batches("train", batch_size=8, seed=0)  # hosts are detected
remove_padding = lambda images, labels, weights=None: images if weights is None else images[weights > 0]
sums = [[int(np.sum(image)) for image in remove_padding(*batch)] for batch in data.as_numpy_iterator()]
jax.distributed.shutdown()
print(json.dumps({"hosts": hosts, "sums": sums}))
"""


@pytest.mark.slow
def test_jax_processes_are_detected_and_read_disjoint_parts(dataset):
    pytest.importorskip("jax", reason="JAX is not installed")
    address = f"localhost:{reserve_port()}"
    outputs = finish(*(start(JAX, address, index, dataset.directory) for index in range(2)))
    assert [output["hosts"] for output in outputs] == [[2, 0], [2, 1]]
    assert len(outputs[0]["sums"]) == len(outputs[1]["sums"])
    read = [name for output in outputs for batch in output["sums"] for name in batch]
    everything = [int(np.sum(image)) for images, _ in dataset.batches("train", batch_size=50) for image in images]
    assert Counter(read) == Counter(everything)


DETECT_HOSTS = """
import hashlib, json, logging
import tf_input

logging.basicConfig(level=logging.INFO, format="%(message)s")
dataset = tf_input.open(sys.argv[1])
options = {"batch_size": 8, "seed": 0}
remove_padding = lambda images, labels, weights=None: images if weights is None else images[weights > 0]
names = lambda data: [hashlib.md5(image.tobytes()).hexdigest() for batch in data for image in remove_padding(*batch)]
print(json.dumps({
    "train": names(dataset.as_numpy("train", **options)),
    "validation": names(dataset.as_numpy("validation", **options)),
    "sequence": names(tf_input.Sequence(dataset, "train", **options)),
    "all": names(dataset.as_numpy("train", hosts=(1, 0), **options)),
}))
"""


@pytest.mark.slow
def test_hosts_are_detected_from_tf_config(dataset):
    """Two processes with TF_CONFIG read each example once in total, and both log the detected hosts."""
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    processes = [
        start(DETECT_HOSTS, dataset.directory, TF_CONFIG=tf_config("worker", index, cluster)) for index in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    hosts = [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]
    num_train, num_valid = dataset.num_examples("train"), dataset.num_examples("validation")
    for split, total in (("train", num_train), ("validation", num_valid), ("sequence", num_train)):
        read = [name for host in hosts for name in host[split]]
        assert len(set(read)) == len(read) == total, split
        assert abs(len(hosts[0][split]) - len(hosts[1][split])) <= 1
    assert len(set(hosts[0]["all"])) == num_train and sorted(hosts[0]["all"]) == sorted(hosts[1]["all"])
    for index, (_, stderr) in enumerate(outputs):
        for split in ("train", "validation"):
            assert f"{split}: found 2 hosts from TF_CONFIG; this is host {index} " in stderr


MULTI_WORKER = """
import json
import tensorflow as tf
import tf_input

strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset, outputs = tf_input.open(sys.argv[1]), {"error": ""}


def read(distributed):
    batches = [[strategy.experimental_local_results(values)[0].numpy() for values in batch] for batch in distributed]
    images_of_batches = [batch[0] if len(batch) == 2 else batch[0][batch[2] > 0] for batch in batches]
    return [len(images) for images in images_of_batches], [int(image.sum()) for images in images_of_batches for image in images]


with strategy.scope():
    batches = lambda **options: dataset.batches("train", batch_size=8, seed=0, **options)
    try:
        strategy.experimental_distribute_dataset(batches())
    except tf.errors.NotFoundError as error:
        outputs["error"] = str(error)
    outputs["by_strategy"] = read(strategy.experimental_distribute_dataset(batches(hosts=(1, 0))))
    outputs["by_function"] = read(strategy.distribute_datasets_from_function(lambda _: batches()))
print(json.dumps(outputs))
"""


@pytest.mark.slow(30)
def test_multi_worker_strategy_reads_each_example_once(dataset):
    cluster = {"worker": [f"localhost:{reserve_port()}" for _ in range(2)]}
    outputs = finish(*(start(MULTI_WORKER, dataset.directory, TF_CONFIG=tf_config("worker", index, cluster)) for index in range(2)))
    everything = Counter(int(np.sum(image)) for images, _ in dataset.batches("train", batch_size=50) for image in images)
    assert all("hosts_1_0" in output["error"] for output in outputs)
    for how in ("by_strategy", "by_function"):
        sizes = [output[how][0] for output in outputs]
        assert [sum(step_sizes) for step_sizes in zip(*sizes, strict=True)][:-1] == [8] * (dataset.num_examples("train") // 8), how
        assert Counter(outputs[0][how][1] + outputs[1][how][1]) == everything, how


def test_evaluators_and_parameter_servers_are_distinguished(dataset, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config("evaluator", 0))
    assert len(image_hashes(dataset.batches("validation", batch_size=8))) == dataset.num_examples("validation")
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 1))
    with pytest.raises(ValueError, match=r"parameter servers.*hosts="):
        dataset.batches("train", batch_size=8)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():  # a local strategy takes precedence over TF_CONFIG
        assert len(image_hashes(dataset.batches("train", batch_size=8))) == dataset.num_examples("train")
    with tf.distribute.experimental.CentralStorageStrategy().scope():
        with pytest.raises(ValueError, match=r"hosts=None: strategy=.*hosts=\(1, 0\)"):
            dataset.batches("train", batch_size=8)
