"""In which order an epoch has the records of a split: a function of seed, epoch and place, of which any part can be computed alone.

That is what lets a training go on in the middle of an epoch without reading what came before, and 300 million records be
permuted without a table of them.
"""

import dataclasses
import hashlib

import tensorflow as tf

# Of the cipher by which TensorFlow permutes, up to 2 ** 16 values and beyond. With 4, as tf.random.experimental.index_shuffle has it,
# records that lie together keep a distance; with these, no test that we know tells it from a shuffled table.
_NUM_ROUNDS, _NUM_ROUNDS_OF_MANY = 8, 16
_TABLE_SIZE = 1024  # up to here a table is quicker: the cipher draws from 65536 at least until it hits what is small
_BLOCKS, _WINDOWS, _RECORDS = 1, 2, 3  # what is permuted: each has a permutation of its own


def epoch_key(seed: int, epoch: int) -> int:
    """A number of 63 bits on which all depends that differs between epochs: order, crops, flips, colours."""
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of an epoch.

    Attributes:
        num_examples: Records of the split.
        kind: None: as they lie in the shards. "exact": any permutation of all is as likely. "buffer": blocks of records that lie
            together are permuted, and then the records of each window of blocks.
        block: Records in a block.
        window: Records in a window; a multiple of the block.
        first: The place in the epoch at which this reader's part begins.
        count: Records in its part; None: all.
    """

    num_examples: int
    kind: str | None
    block: int = 1
    window: int = 1
    first: int = 0
    count: int | None = None

    @property
    def num_positions(self) -> int:
        """Records in this reader's part of an epoch."""
        return self.num_examples if self.count is None else self.count

    def batch_numbers(self, key: tf.Tensor, step: tf.Tensor, batch_size: int) -> tf.Tensor:
        """The records of a batch: int64 [batch], numbers in the split.

        Args:
            key: int64 [], the epoch's `epoch_key`.
            step: int64 [], which batch of the epoch.
            batch_size: Records in a batch; the last one has fewer.
        """
        start = step * batch_size
        return self.numbers(key, tf.range(start, tf.minimum(start + batch_size, self.num_positions)))

    def numbers(self, key: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """The records at places of this reader's part of an epoch: int64 [n].

        Args:
            key: int64 [], the epoch's `epoch_key`.
            positions: int64 [n], each below `num_positions`.
        """
        positions = positions + self.first
        if self.kind is None:
            return positions
        if self.kind == "exact":
            return _permute(positions, (key, 0, _RECORDS), self.num_examples)
        return self._in_blocks(key, self._in_windows(key, positions))

    def _in_windows(self, key: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        windows = positions // self.window
        sizes = tf.minimum(tf.constant(self.window, tf.int64), self.num_examples - windows * self.window)
        return windows * self.window + _permute(positions % self.window, (key, windows, _WINDOWS), sizes, self.window)

    def _in_blocks(self, key: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """The records that lie after the last whole block come before one of the blocks, or after all of them."""
        num_blocks, rest = divmod(self.num_examples, self.block)
        if not num_blocks:
            return positions
        rest_at = key % (num_blocks + 1) * self.block
        places = tf.where(positions < rest_at, positions, positions - rest)
        is_rest = (positions >= rest_at) & (positions < rest_at + rest)
        places = tf.where(is_rest, tf.zeros_like(places), places)  # any: they are taken from the other branch
        places_of_blocks, at = tf.unique(places // self.block, tf.int64)  # few: the fewer there are in all, the longer each takes
        blocks = tf.gather(_permute(places_of_blocks, (key, 0, _BLOCKS), num_blocks), at)
        return tf.where(is_rest, num_blocks * self.block + positions - rest_at, blocks * self.block + places % self.block)


def _permute(values: tf.Tensor, seed: tuple[tf.Tensor, tf.Tensor | int, int], sizes: tf.Tensor | int, most: int = 0) -> tf.Tensor:
    """Where a permutation of 0 .. size - 1 takes each value: int64 [n].

    Args:
        values: int64 [n].
        seed: A key, a number, or one for each value, and a constant: what the permutation depends on.
        sizes: One size, or one for each value, then with the largest that one may be.
    """
    if isinstance(sizes, int) and sizes <= _TABLE_SIZE:
        table = tf.random.experimental.stateless_shuffle(tf.range(sizes, dtype=tf.int64), tf.stack([seed[0], seed[2]]))
        return tf.gather(table, values)
    shape = tf.shape(values)
    bits = tf.broadcast_to(_mix(*seed), shape)
    # Of each word, only as many bits count as a third of what is permuted needs.
    words = tf.stack([tf.cast(_right_shift(bits, by), tf.int64) for by in (0, 21, 42)], axis=1)
    ends = tf.broadcast_to(tf.cast(sizes, tf.int64) - 1, shape)
    rounds = _NUM_ROUNDS if (most or sizes) <= 1 << 16 else _NUM_ROUNDS_OF_MANY
    return tf.raw_ops.RandomIndexShuffle(index=values, seed=words, max_index=ends, rounds=rounds)


def _mix(key: tf.Tensor, number: tf.Tensor | int, constant: int) -> tf.Tensor:
    """64 bits that each depend on all of these: the last steps of SplitMix64, https://doi.org/10.1145/2714064.2660195."""
    bits = tf.cast(key, tf.uint64) + tf.cast(number, tf.uint64) * tf.constant(0x9E3779B97F4A7C15, tf.uint64) + tf.constant(constant, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(bits, _right_shift(bits, shift)) * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, _right_shift(bits, 31))


def _right_shift(bits: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(bits, tf.constant(by, tf.uint64))
