"""Packing, grouping and splitting: always within the bound, nothing lost unsaid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.selection import Piece, Shorten, cluster, cut, pack, split

# -- pack ----------------------------------------------------------------------------------------------------


def keep(size: int) -> Piece:
    return Piece(size, shorten="keep")


@pytest.mark.parametrize(
    ("pieces", "size_max", "parts_max", "granted"),
    [
        ([], 10, 5, ()),
        ([Piece(3), Piece(4)], 10, 5, (3, 4)),
        ([Piece(6), Piece(6)], 10, 5, (6, 0)),  # the earlier of equals
        ([Piece(6), Piece(6, priority=1)], 10, 5, (0, 6)),
        ([Piece(6), Piece(6, value=1)], 10, 5, (0, 6)),
        ([Piece(6, value=9), Piece(6, priority=1)], 10, 5, (0, 6)),  # priority before value
        ([Piece(6, priority=2), Piece(6, priority=1), Piece(4)], 10, 5, (6, 0, 4)),  # the smaller one fits
        ([Piece(6), keep(6)], 10, 5, (0, 6)),
        ([Piece(6, priority=9), keep(6)], 10, 5, (0, 6)),  # no priority is above what must stay
        ([keep(6), keep(5)], 10, 5, None),
        ([keep(11)], 10, 5, None),
        ([keep(1), keep(1)], 10, 1, None),
        ([keep(10)], 10, 1, (10,)),
        ([Piece(1), Piece(1, priority=1), Piece(1)], 10, 2, (1, 1, 0)),
        ([Piece(1), Piece(1)], 10, 0, (0, 0)),
        ([Piece(6, shorten="cut"), keep(6)], 10, 5, (4, 6)),
        ([Piece(6, shorten="cut", size_min=4), keep(6)], 10, 5, (4, 6)),
        ([Piece(6, shorten="cut", size_min=5), keep(6)], 10, 5, (0, 6)),
        ([Piece(6, shorten="cut"), keep(10)], 10, 5, (0, 10)),
        ([Piece(6, shorten="cut"), keep(10)], 20, 1, (0, 10)),
        ([Piece(0), keep(10)], 10, 5, (0, 10)),
    ],
)
def test_pack(pieces: list[Piece], size_max: int, parts_max: int, granted: tuple[int, ...] | None) -> None:
    assert pack(pieces, size_max, parts_max) == granted


def test_pack_counts_what_joins_the_parts() -> None:
    assert pack([Piece(4), Piece(4)], 10, 5, joint=2) == (4, 4)
    assert pack([Piece(4), Piece(4)], 9, 5, joint=2) == (4, 0)
    assert pack([keep(4), Piece(4, shorten="cut")], 9, 5, joint=2) == (4, 3)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        pack([Piece(-1)], 10, 5)


shortenings: list[Shorten] = ["keep", "cut", "drop"]
pieces_of = st.lists(
    st.builds(
        Piece,
        size=st.integers(1, 50),
        priority=st.integers(-2, 2),
        value=st.integers(0, 3),
        shorten=st.sampled_from(shortenings),
        size_min=st.integers(0, 10),
    ),
    max_size=12,
)


@given(pieces_of, st.integers(0, 200), st.integers(0, 12), st.integers(0, 5))
def test_any_packing_is_within_both_bounds_and_wastes_nothing(
    pieces: list[Piece], size_max: int, parts_max: int, joint: int
) -> None:
    granted = pack(pieces, size_max, parts_max, joint)
    kept = [piece.size for piece in pieces if piece.shorten == "keep"]
    kept_whole = sum(kept) + joint * max(len(kept) - 1, 0)
    assert (granted is None) == bool(kept and (kept_whole > size_max or len(kept) > parts_max))
    if granted is None:
        return
    parts = sum(1 for take in granted if take)
    used = sum(granted) + joint * max(parts - 1, 0)
    assert used <= size_max
    assert parts <= parts_max
    for piece, take in zip(pieces, granted, strict=True):
        assert 0 <= take <= piece.size
        if piece.shorten == "keep":
            assert take == piece.size
        if piece.shorten == "drop":
            assert take in (0, piece.size)
        if 0 < take < piece.size:
            assert take >= piece.size_min
        if take == 0:
            assert parts == parts_max or used + piece.size + (joint if parts else 0) > size_max


# -- cluster -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "size_max", "items_max", "groups"),
    [
        ([], 10, 5, []),
        ([3], 10, 5, [[0]]),
        ([3, 3, 3], 10, 5, [[0, 1, 2]]),
        ([3, 3, 3, 3], 10, 5, [[0, 1], [2, 3]]),  # even, not three and one
        ([1, 1, 1, 1, 1], 10, 2, [[0, 1], [2, 3], [4]]),
        ([1] * 6, 100, 4, [[0, 1, 2], [3, 4, 5]]),
        ([10, 1, 10], 10, 5, [[0], [1], [2]]),
        ([0, 0, 0], 0, 5, [[0, 1, 2]]),
    ],
)
def test_cluster(sizes: list[int], size_max: int, items_max: int, groups: list[list[int]]) -> None:
    assert cluster(sizes, size_max, items_max) == groups


def test_cluster_counts_what_joins_the_items() -> None:
    assert cluster([4, 4], 10, 5, joint=1) == [[0, 1]]
    assert cluster([4, 4], 10, 5, joint=2) == [[0], [1]]


@pytest.mark.parametrize(("sizes", "items_max"), [([3, 11], 5), ([3, -1], 5), ([3], 0)])
def test_what_cannot_be_grouped_is_refused(sizes: list[int], items_max: int) -> None:
    with pytest.raises(ValueError, match=r"item"):
        cluster(sizes, 10, items_max)


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(100, 400), st.integers(1, 12))
def test_any_grouping_is_whole_in_order_within_bounds_and_small(
    sizes: list[int], size_max: int, items_max: int
) -> None:
    groups = cluster(sizes, size_max, items_max)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    assert all(0 < len(group) <= items_max for group in groups)
    assert all(sum(sizes[i] for i in group) <= size_max for group in groups)
    greedy, used, count = 0, 0, items_max
    for size in sizes:  # filling each group to the brim needs the fewest groups of neighbours
        if count == items_max or used + size > size_max:
            greedy, used, count = greedy + 1, 0, 0
        used, count = used + size, count + 1
    assert len(groups) == greedy


# -- split ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bytes_max", "pieces"),
    [
        ("", 10, []),
        ("short", 10, ["short"]),
        ("one two three", 10, ["one two ", "three"]),
        ("a b c d e f", 10, ["a b c d e ", "f"]),  # after the last word that fits
        ("One. Two three", 10, ["One. Two ", "three"]),  # the sentence ends too early
        ("One two. Three", 10, ["One two. ", "Three"]),
        ("first\nsecond. third", 14, ["first\nsecond. ", "third"]),
        ("a first\nb second c", 14, ["a first\n", "b second c"]),  # a line before a later word
        ("para one\n\nb. c d e f", 18, ["para one\n\n", "b. c d e f"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("ééééé", 5, ["éé", "éé", "é"]),
        ("𝄞𝄞𝄞", 4, ["𝄞", "𝄞", "𝄞"]),
        ("第一句。第二句。第三", 26, ["第一句。第二句。", "第三"]),
        ("x" * 8 + "\ud800" + "y", 10, ["x" * 8, "\ud800y"]),
    ],
)
def test_split(text: str, bytes_max: int, pieces: list[str]) -> None:
    assert split(text, bytes_max) == pieces


TEXTS = st.text() | st.text(alphabet="ab .\n!é。", max_size=200)


@given(TEXTS, st.integers(4, 60))
def test_any_split_is_lossless_within_the_bound_and_of_few_pieces(text: str, bytes_max: int) -> None:
    pieces = split(text, bytes_max)
    assert "".join(pieces) == text
    lengths = [len(piece.encode()) for piece in pieces]
    assert all(0 < length <= bytes_max for length in lengths)
    assert all(length > bytes_max // 2 - 4 for length in lengths[:-1])


@given(TEXTS, st.integers(0, 60))
def test_a_cut_is_the_beginning(text: str, bytes_max: int) -> None:
    head = cut(text, bytes_max)
    assert text.startswith(head)
    assert len(head.encode()) <= bytes_max
    if bytes_max >= 4:
        assert head == (split(text, bytes_max) or [""])[0]


@pytest.mark.parametrize("bytes_max", [3, 0, -1])
def test_a_piece_without_room_for_a_character_is_refused(bytes_max: int) -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        split("text", bytes_max)
