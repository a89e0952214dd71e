"""The tf.data service of `deploy/tf_data_service`: a real dispatcher and real workers, as processes on loopback."""

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


def names(data: tf.data.Dataset) -> Counter:
    """What tells examples apart, and how often each came."""
    return names_of(data.as_numpy_iterator())


def names_of(batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> Counter:
    return Counter(
        (hashlib.md5(image.tobytes()).hexdigest(), int(label))
        for images, labels in batches
        for image, label in zip(images, labels)
    )


@pytest.fixture(scope="module")
def plain(dataset) -> Counter:
    """The examples as they are read without a service."""
    return names(dataset.batches("train", batch_size=16, image_size=SIZE, seed=0))


def test_each_pass_has_every_example_exactly_once(dataset, service, plain):
    options = {"batch_size": 16, "image_size": SIZE, "seed": 0}
    assert set(plain.values()) == {1}
    data = dataset.batches("train", service=service.address, **options)
    assert data.element_spec[0].shape[1:] == (SIZE, SIZE, 3) and data.element_spec[0].dtype == tf.uint8
    assert not hasattr(data, "iterator_state")  # such an epoch can't be gone on with
    for _ in range(2):
        assert names(data) == plain


def test_workers_batches_are_joined_so_that_a_pass_has_as_many_as_without_a_service(dataset, service):
    for drop_remainder in (False, True):
        options = {"batch_size": 16, "image_size": SIZE, "drop_remainder": drop_remainder}
        data = dataset.batches("train", service=service.address, **options)
        last = dataset.num_examples("train") % 16
        assert last and [len(labels) for _, labels in data] == [16] * (dataset.num_examples("train") // 16) + [last] * (not drop_remainder)


def test_augmentation_runs_on_the_workers(dataset, service, plain):
    options = {"batch_size": 16, "image_size": SIZE, "augment": True}
    options |= {"service": service.address, "seed": 0}
    iterations = [names(dataset.batches("train", start_epoch=epoch, **options)) for epoch in range(2)]
    labels = Counter(label for _, label in plain.elements())
    for iteration in iterations:
        assert Counter(label for _, label in iteration.elements()) == labels
        assert len(iteration - plain) > 0.9 * len(plain)
    assert iterations[0] != iterations[1]


def test_the_trainer_reads_full_batches_of_distinct_examples(dataset, service, plain, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "deploy" / "trainer"))
    import inputs

    strategy = tf.distribute.get_strategy()
    options = {"seed": 0, "image_size": SIZE, "service": service.address}
    batches = inputs.training_batches(dataset, "train", strategy, 16, **options)
    assert batches.num_steps == dataset.num_examples("train") // 16
    epochs = [[(images.numpy(), labels.numpy()) for images, labels, _ in batches.iterator(epoch)] for epoch in range(2)]
    for epoch in epochs:
        assert [len(labels) for _, labels in epoch] == [16] * batches.num_steps
        assert names_of(epoch) <= plain
    assert [labels.tolist() for _, labels in epochs[0]] != [labels.tolist() for _, labels in epochs[1]]


def test_hosts_have_shards_of_their_own(dataset, service):
    options = {"batch_size": 3 * 16, "image_size": SIZE, "service": service.address}
    hosts = [list(dataset.batches("train", hosts=(3, index), **options).as_numpy_iterator()) for index in range(3)]
    sizes = [[len(labels) for _, labels in host] for host in hosts]
    shards = [shard.num_examples for shard in dataset.manifest.splits["train"]]
    count = min(sum(shards[index::3]) for index in range(3))
    assert sizes == [[16] * (count // 16) + [count % 16] * (count % 16 > 0)] * 3
    read = sum(map(names_of, hosts), Counter())
    assert set(read.values()) == {1}
    full = dataset.batches("train", hosts=(3, 1), drop_remainder=True, **options)
    assert [len(labels) for _, labels in full] == [16] * (count // 16)


def test_functions_run_on_the_workers_if_they_are_of_tensorflow(dataset, service, plain):
    options = {"batch_size": 16, "image_size": SIZE, "seed": 0, "service": service.address}

    def double(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return images, 2 * labels

    for name in ("map_example", "map_batch"):
        doubled = names(dataset.batches("train", **{name: double}, **options))
        assert doubled == Counter({(image, 2 * label): count for (image, label), count in plain.items()}), name
        python = {name: lambda images, labels: (tf.numpy_function(np.copy, [images], tf.uint8), labels)}
        with pytest.raises(ValueError, match=f"service='{service.address}'.* Python code"):
            dataset.batches("train", **python, **options)


def test_workers_read_what_is_chosen_and_as_often(dataset, service):
    choices = {"where": "label != 'cow'", "balance": {"ant": 0.75, "bee": 0.25}, "start_epoch": 2}
    for shuffle in (True, False):
        options = {"batch_size": 16, "image_size": SIZE, "seed": 0, "shuffle": shuffle, **choices}
        expected = dataset.batches("train", **options)
        data = dataset.batches("train", service=service.address, **options)
        assert data.cardinality() == expected.cardinality() and names(data) == names(expected), shuffle


def test_what_cannot_be_had_from_a_service_is_refused(dataset):
    cases = [
        ({"start_step": 3}, "start_step=3"),
        ({"on_error": "skip"}, "on_error='skip'"),
        ({"shuffle": "exact"}, "shuffle='exact'"),
        ({"hosts": (41, 0)}, "in 40 shards, too few for 41 hosts"),
        ({"batch_size": 1000, "drop_remainder": True}, "drop_remainder leaves no batch of 1000"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            dataset.batches("train", **{"batch_size": 4, "image_size": SIZE, "service": "grpc://localhost:1", **options})


def test_both_workers_take_part(dataset, service):
    """Each makes a last batch of its own that is not full: without joining, sizes tell who read."""
    distribute = tf.data.experimental.service.distribute
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    many = []
    for seed in range(100):  # a pass over so few images may be over before the second one has asked for a shard
        config = tf_input.ReadConfig(batch_size=100, image_size=SIZE, seed=seed)
        data = dataset.split_reader("train").read_files(config).apply(distribute(policy, service.address))
        sizes = [len(labels) for _, labels in data]
        assert sum(sizes) == dataset.num_examples("train")
        many.append(sum(size < 100 for size in sizes))
        if 2 in many:
            break
    assert 2 in many, many


@pytest.fixture(scope="module")
def long_dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    """More examples than workers and trainer hold ready: when a pass has just begun, most have not been sent."""
    folder = tmp_path_factory.mktemp("long")
    num_images = {label: 500 for label in NUM_IMAGES}
    return tf_input.open(prepare_images(folder, "--num_shards", "train=6,validation=1", num_images=num_images))


def test_workers_that_die_and_come_back_cost_no_step_and_the_next_pass_is_whole(long_dataset, service):
    options = {"batch_size": 7, "image_size": SIZE, "seed": 0}
    plain = list(long_dataset.batches("train", **options).as_numpy_iterator())
    data = long_dataset.batches("train", service=service.address, **options)
    iterator = data.as_numpy_iterator()
    batches = [next(iterator)]
    for name, worker in list(service.workers.items()):  # both: it may be one of them that has all shards
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        service.workers[name] = service.start_worker(name)
    batches += iterator
    assert [len(labels) for _, labels in batches] == [len(labels) for _, labels in plain]
    # What they took with them is missing, and others come again in its place.
    assert set(names_of(batches)) < set(names_of(plain))
    assert names(data) == names_of(plain)


def test_wrong_usage_is_one_line():
    cases = [
        ([], "required: dispatcher|worker"),
        (["worker"], "required: --dispatcher"),
        (["worker", "--dispatcher", "grpc://a:1"], "HOST:PORT"),
        (["dispatcher", "--port", "x"], "'x'"),
    ]
    for arguments, message in cases:
        run = subprocess.run([sys.executable, str(FOLDER / "serve.py"), *arguments], capture_output=True, text=True)
        assert run.returncode == 2 and message in run.stderr and run.stderr.count("\n") == 1, (arguments, run.stderr)


def test_a_server_stops_when_it_is_asked_to_and_a_taken_port_is_one_line():
    first = start("dispatcher", "--port", "0")
    try:
        port = first.stdout.readline().strip().rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, str(FOLDER / "serve.py"), "dispatcher", "--port", port],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (second.returncode, second.stderr) == (1, f"serve.py: --port={port}: Address already in use\n")
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


def test_manifests_use_flags_that_there_are(monkeypatch):
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
