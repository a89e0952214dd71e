"""Tests that torch reads the batches of a loader in the same order with any number of worker processes."""

import multiprocessing
import pickle

import numpy as np
import pytest

import tf_input

OPTIONS = {"batch_size": 8, "image_size": (12, 16), "augment": True, "seed": 3}


def brightness(example: dict, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    return example["image"].astype(np.float32).mean() + rng.random(), example["key"]


@pytest.mark.parametrize("options", [{}, {"transform": brightness}, {"seed": None}], ids=["plain", "transform", "no seed"])
def test_unpickled_loader_continues_at_the_same_batch(mixed, options):
    loader = mixed.loader("train", **{**OPTIONS, **options})
    for _ in zip(range(3), loader):
        pass
    copied = pickle.loads(pickle.dumps(loader))
    for own, other in zip(loader, copied, strict=True):
        for one, another in zip(own.values(), other.values()) if isinstance(own, dict) else zip(own, other):
            np.testing.assert_array_equal(one, another)


def test_processes_divide_an_epoch(mixed):
    loader = mixed.loader("train", **OPTIONS)
    expected = [batch["key"].tolist() for _ in range(2) for batch in loader]
    for num_workers in (2, 5, 20):
        loaders = [mixed.loader("train", **OPTIONS) for _ in range(num_workers)]
        epochs = [[list(loader.iterate(index, num_workers)) for index, loader in enumerate(loaders)] for _ in range(2)]
        num_batches = len(loaders[0])
        actual = [parts[step % num_workers][step // num_workers]["key"].tolist() for parts in epochs for step in range(num_batches)]
        assert actual == expected


def test_worker_restores_its_next_batch(mixed):
    loader = mixed.loader("train", **OPTIONS)
    batches = loader.iterate(1, 3)
    for _ in range(2):
        next(batches)
    restored = mixed.loader("train", **OPTIONS)
    restored.load_state_dict(loader.state_dict())
    expected = [batch["key"].tolist() for batch in batches]
    assert expected == [batch["key"].tolist() for batch in restored.iterate(1, 3)]


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (2, "fork"), (3, "spawn")])
def test_data_loader_returns_the_batches_in_order(mixed, num_workers, method):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'recordmill[backends]'")
    loader = mixed.loader("train", **OPTIONS)
    batches = tf_input.TorchBatches(mixed.loader("train", **OPTIONS))
    data = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=num_workers, multiprocessing_context=method)
    for epoch in range(2):
        batches.set_epoch(epoch)
        for actual, expected in zip(data, loader, strict=True):
            assert actual["key"].tolist() == expected["key"].tolist()
            assert actual["image"].shape[1:] == (3, 12, 16)
            np.testing.assert_array_equal(actual["image"].movedim(1, -1).numpy(), expected["image"])
            np.testing.assert_array_equal(actual["label"].numpy(), expected["label"])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_data_loader_continues_in_the_middle_of_an_epoch(mixed, num_workers):
    pytest.importorskip("torchdata", reason="needs torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> StatefulDataLoader:
        return StatefulDataLoader(tf_input.TorchBatches(mixed.loader("train", **OPTIONS)), batch_size=None, num_workers=num_workers)

    expected = [batch["key"].tolist() for batch in mixed.loader("train", **OPTIONS)]
    first = make()
    actual = [batch["key"].tolist() for _, batch in zip(range(5), first)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    restored = make()
    restored.load_state_dict(state)
    assert actual + [batch["key"].tolist() for batch in restored] == expected
