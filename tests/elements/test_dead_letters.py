"""Tests that counts of dead letters do not depend on how the dead letters are distributed."""

from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.elements.dead_letters import NUM_SHOWN, NUM_THUMBNAILS, DeadLetter, DeadLetterCount, to_json_lines

LETTERS = st.builds(
    DeadLetter, st.text("abc", min_size=1, max_size=4), st.just("check"), st.sampled_from(["bad_box", "bad_image"]), st.just("m"), st.sampled_from(["", "t"])
)


@given(st.lists(LETTERS, unique_by=lambda letter: letter.path, max_size=60), st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_first_dead_letters_do_not_depend_on_the_distribution(letters, parts):
    total = DeadLetterCount()
    for part in range(4):
        count = DeadLetterCount()
        count.add([letter for letter, assigned in zip(letters, parts) if assigned == part])
        total.merge(count)
    assert total.num == len(letters)
    assert total.first == [letter._replace(thumbnail="") for letter in sorted(letters)[:NUM_SHOWN]]
    for reason in ("bad_box", "bad_image"):
        seen = sorted(letter for letter in letters if letter.reason == reason and letter.thumbnail)
        assert [letter for letter in total.seen if letter.reason == reason] == seen[:NUM_THUMBNAILS]


def test_thumbnails_are_only_in_the_internal_lines():
    letter = DeadLetter("p", "check", "bad_image", "m", "abc")
    assert "abc" not in to_json_lines([letter]) and '"thumbnail": "abc"' in to_json_lines([letter], with_thumbnails=True)
