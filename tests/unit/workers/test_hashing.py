"""The hash of ids: the same everywhere, whatever batch an id comes in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sources.hashing import hash_numbers, hash_texts, to_rows

_MASK = 2**64 - 1


def plain_mix(number: int) -> int:
    mixed = (number + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def hashes(texts: list[bytes]) -> list[int]:
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    found: list[int] = hash_texts(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets).tolist()
    return found


def test_numbers_are_hashed_by_splitmix64() -> None:
    # The first two outputs of SplitMix64 from seed 0, whose state advances by the golden gamma.
    assert hash_numbers(np.array([0])).tolist() == [0xE220A8397B1DCDAF]
    assert hash_numbers(np.array([0x9E3779B97F4A7C15], dtype=np.uint64)).tolist() == [0x6E789E6AA1B965F4]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_with_a_sign_are_hashed_by_their_bits(numbers: list[int]) -> None:
    assert hash_numbers(np.array(numbers, dtype=np.int64)).tolist() == [plain_mix(number & _MASK) for number in numbers]


@given(st.lists(st.binary(max_size=40)))
def test_a_text_has_one_hash_whatever_stands_before_and_after_it(texts: list[bytes]) -> None:
    assert hashes(texts) == [
        sum(plain_mix(place << 8 | byte) for place, byte in enumerate(text)) & _MASK for text in texts
    ]


def test_a_part_of_the_texts_is_hashed_alike() -> None:
    data, offsets = np.frombuffer(b"onetwothree", dtype=np.uint8), np.array([0, 3, 6, 11])
    assert hash_texts(data, offsets[1:]).tolist() == hashes([b"two", b"three"])


@pytest.mark.parametrize("one", [b"", b"a", b"ab", b"ba", b"aa", b"a\0", b"\0", b"\0\0"])
def test_texts_that_look_alike_have_hashes_of_their_own(one: bytes) -> None:
    others = [text for text in (b"", b"a", b"ab", b"ba", b"aa", b"a\0", b"\0", b"\0\0") if text != one]
    assert hashes([one])[0] not in hashes(others)


def test_rows_are_all_of_a_table_but_that_of_missing_ids() -> None:
    rows = to_rows(hash_numbers(np.arange(70_000)), 8)
    counts = np.bincount(rows)
    assert counts[0] == 0
    assert len(counts) == 8
    assert counts[1:] == pytest.approx([10_000] * 7, rel=0.05)
    assert set(to_rows(hash_numbers(np.arange(10)), 2).tolist()) == {1}


def test_each_table_has_its_own_number_of_rows() -> None:
    found = hash_numbers(np.arange(6)).reshape(3, 2)
    rows = to_rows(found, np.array([5, 1000]))
    np.testing.assert_array_equal(rows[:, 0], to_rows(found[:, 0], 5))
    np.testing.assert_array_equal(rows[:, 1], to_rows(found[:, 1], 1000))
