"""Tests the tf.data service in `deploy/tf_data_service` with a dispatcher and workers in local processes."""

import hashlib
import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter
from typing import Iterable, Iterator

import numpy as np
import pytest
import tensorflow as tf
import yaml

import tf_input
from prepared import prepare_images
from tf_data_service import FOLDER, Service, run_service, start, stop

ROOT = pathlib.Path(__file__).resolve().parents[3]
SIZE = 16
NUM_IMAGES = {"ant": 50, "bee": 50, "cow": 50}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    folder = tmp_path_factory.mktemp("prepared")
    return tf_input.open(prepare_images(folder, "--num_shards", "train=40,validation=1", num_images=NUM_IMAGES))


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    with run_service(tmp_path_factory.mktemp("journal")) as running:
        yield running


def count_dataset_examples(data: tf.data.Dataset) -> Counter:
    """Returns the number of occurrences of each example, identified by image hash and label."""
    return count_examples(data.as_numpy_iterator())


def count_examples(batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> Counter:
    return Counter(
        (hashlib.md5(image.tobytes()).hexdigest(), int(label))
        for images, labels in batches
        for image, label in zip(images, labels)
    )


@pytest.fixture(scope="module")
def expected_examples(dataset) -> Counter:
    """Returns the number of occurrences of each example if batches are read without a service."""
    return count_dataset_examples(dataset.batches("train", batch_size=16, image_size=SIZE, seed=0))


def test_each_iteration_reads_every_example_exactly_once(dataset, service, expected_examples):
    options = {"batch_size": 16, "image_size": SIZE, "seed": 0}
    assert set(expected_examples.values()) == {1}
    data = dataset.batches("train", service=service.address, **options)
    assert data.element_spec[0].shape[1:] == (SIZE, SIZE, 3) and data.element_spec[0].dtype == tf.uint8
    assert not hasattr(data, "iterator_state")  # an epoch of a service cannot be resumed
    for _ in range(2):
        assert count_dataset_examples(data) == expected_examples


def test_service_returns_as_many_batches_as_local_reading(dataset, service):
    for drop_remainder in (False, True):
        options = {"batch_size": 16, "image_size": SIZE, "drop_remainder": drop_remainder}
        data = dataset.batches("train", service=service.address, **options)
        last = dataset.num_examples("train") % 16
        assert last and [len(labels) for _, labels in data] == [16] * (dataset.num_examples("train") // 16) + [last] * (not drop_remainder)


def test_augmentation_runs_on_the_workers(dataset, service, expected_examples):
    options = {"batch_size": 16, "image_size": SIZE, "augment": True}
    options |= {"service": service.address, "seed": 0}
    iterations = [count_dataset_examples(dataset.batches("train", start_epoch=epoch, **options)) for epoch in range(2)]
    labels = Counter(label for _, label in expected_examples.elements())
    for iteration in iterations:
        assert Counter(label for _, label in iteration.elements()) == labels
        assert len(iteration - expected_examples) > 0.9 * len(expected_examples)
    assert iterations[0] != iterations[1]


def test_trainer_reads_full_batches_of_distinct_examples(dataset, service, expected_examples, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "deploy" / "trainer"))
    import inputs

    strategy = tf.distribute.get_strategy()
    options = {"seed": 0, "image_size": SIZE, "service": service.address}
    batches = inputs.training_batches(dataset, "train", strategy, 16, **options)
    assert batches.num_steps == dataset.num_examples("train") // 16
    epochs = [[(images.numpy(), labels.numpy()) for images, labels, _ in batches.iterator(epoch)] for epoch in range(2)]
    for epoch in epochs:
        assert [len(labels) for _, labels in epoch] == [16] * batches.num_steps
        assert count_examples(epoch) <= expected_examples
    assert [labels.tolist() for _, labels in epochs[0]] != [labels.tolist() for _, labels in epochs[1]]


def test_hosts_read_disjoint_shards(dataset, service):
    options = {"batch_size": 3 * 16, "image_size": SIZE, "service": service.address}
    hosts = [list(dataset.batches("train", hosts=(3, index), **options).as_numpy_iterator()) for index in range(3)]
    sizes = [[len(labels) for _, labels in host] for host in hosts]
    shards = [shard.num_examples for shard in dataset.manifest.splits["train"]]
    count = min(sum(shards[index::3]) for index in range(3))
    assert sizes == [[16] * (count // 16) + [count % 16] * (count % 16 > 0)] * 3
    read = sum(map(count_examples, hosts), Counter())
    assert set(read.values()) == {1}
    full = dataset.batches("train", hosts=(3, 1), drop_remainder=True, **options)
    assert [len(labels) for _, labels in full] == [16] * (count // 16)


def test_tensorflow_functions_run_on_the_workers(dataset, service, expected_examples):
    options = {"batch_size": 16, "image_size": SIZE, "seed": 0, "service": service.address}

    def double(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return images, 2 * labels

    for name in ("map_example", "map_batch"):
        doubled = count_dataset_examples(dataset.batches("train", **{name: double}, **options))
        assert doubled == Counter(
            {(image, 2 * label): count for (image, label), count in expected_examples.items()}
        ), name
        python = {name: lambda images, labels: (tf.numpy_function(np.copy, [images], tf.uint8), labels)}
        with pytest.raises(ValueError, match=f"service='{service.address}'.* Python code"):
            dataset.batches("train", **python, **options)


def test_workers_read_selected_and_balanced_examples(dataset, service):
    choices = {"where": "label != 'cow'", "balance": {"ant": 0.75, "bee": 0.25}, "start_epoch": 2}
    for shuffle in (True, False):
        options = {"batch_size": 16, "image_size": SIZE, "seed": 0, "shuffle": shuffle, **choices}
        expected = dataset.batches("train", **options)
        data = dataset.batches("train", service=service.address, **options)
        assert data.cardinality() == expected.cardinality() and count_dataset_examples(data) == count_dataset_examples(
            expected
        ), shuffle


def test_rejects_options_that_a_service_does_not_support(dataset):
    cases = [
        ({"start_step": 3}, "start_step=3"),
        ({"on_error": "skip"}, "on_error='skip'"),
        ({"shuffle": "exact"}, "shuffle='exact'"),
        ({"hosts": (41, 0)}, "40 shards.* 41 hosts"),
        ({"batch_size": 1000, "drop_remainder": True}, "drop_remainder.* 1000"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            dataset.batches("train", **{"batch_size": 4, "image_size": SIZE, "service": "grpc://localhost:1", **options})


def test_both_workers_read_examples(dataset, service):
    """If batches of several workers are not joined, each worker that has read examples returns one incomplete batch."""
    distribute = tf.data.experimental.service.distribute
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    num_workers = []
    for seed in range(100):  # an iteration may end before the second worker requests a shard
        config = tf_input.ReadConfig(batch_size=100, image_size=SIZE, seed=seed)
        data = dataset.split_reader("train").read_files(config).apply(distribute(policy, service.address))
        sizes = [len(labels) for _, labels in data]
        assert sum(sizes) == dataset.num_examples("train")
        num_workers.append(sum(size < 100 for size in sizes))
        if 2 in num_workers:
            break
    assert 2 in num_workers, num_workers


@pytest.fixture(scope="module")
def long_dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    """Dataset with more examples than the workers and the trainer can buffer."""
    folder = tmp_path_factory.mktemp("long")
    num_images = {label: 500 for label in NUM_IMAGES}
    return tf_input.open(prepare_images(folder, "--num_shards", "train=6,validation=1", num_images=num_images))


def test_restarted_workers_change_no_number_of_batches(long_dataset, service):
    options = {"batch_size": 7, "image_size": SIZE, "seed": 0}
    expected_examples = list(long_dataset.batches("train", **options).as_numpy_iterator())
    data = long_dataset.batches("train", service=service.address, **options)
    iterator = data.as_numpy_iterator()
    batches = [next(iterator)]
    for name, worker in list(service.workers.items()):  # one of the workers may have all shards
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        service.workers[name] = service.start_worker(name)
    batches += iterator
    assert [len(labels) for _, labels in batches] == [len(labels) for _, labels in expected_examples]
    # Examples in the buffers of the workers are lost, and other examples are repeated.
    assert set(count_examples(batches)) < set(count_examples(expected_examples))
    assert count_dataset_examples(data) == count_examples(expected_examples)


def test_invalid_arguments_print_one_line():
    cases = [
        ([], "dispatcher|worker"),
        (["worker"], "--dispatcher"),
        (["worker", "--dispatcher", "grpc://a:1"], "HOST:PORT"),
        (["dispatcher", "--port", "x"], "'x'"),
    ]
    for arguments, message in cases:
        run = subprocess.run([sys.executable, str(FOLDER / "serve.py"), *arguments], capture_output=True, text=True)
        assert run.returncode == 2 and message in run.stderr and run.stderr.count("\n") == 1, (arguments, run.stderr)


def test_server_stops_on_sigterm_and_reports_a_port_in_use():
    first = start("dispatcher", "--port", "0")
    try:
        port = first.stdout.readline().strip().rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, str(FOLDER / "serve.py"), "dispatcher", "--port", port],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert second.returncode == 1 and f"--port={port}: " in second.stderr and second.stderr.count("\n") == 1
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=240) == 0
    finally:
        stop(first)


def containers() -> Iterator[tuple[str, dict]]:
    for path in sorted(FOLDER.glob("kubernetes/*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if "template" in document.get("spec", {}):
                for container in document["spec"]["template"]["spec"]["containers"]:
                    yield document["metadata"]["name"], container


def test_kubernetes_manifests_use_valid_flags(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import serve

    roles = set()
    for name, container in containers():
        arguments = [argument.replace("$(POD_NAME)", "tf-data-worker-0") for argument in container["args"]]
        parsed = serve.make_parser().parse_args(arguments)
        assert [port["containerPort"] for port in container["ports"]] == [parsed.port], name
        roles.add(parsed.role)
    assert roles == {"dispatcher", "worker"}
    assert os.path.exists(FOLDER / "Dockerfile")
