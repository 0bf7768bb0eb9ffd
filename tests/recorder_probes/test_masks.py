from __future__ import annotations

from typing import Any

import pytest

from firstbad_recorder.probes.masks import masks

SOURCE = [[0, 0, 2, 2, 3, 3, 3], [1, 2, 2, 3, 4, 4, 3], [2, 2, 3, 3, 3, 0, 0]]
RIGHT = [[int(kind == 3) for kind in row] for row in SOURCE]
FAULTS = (
    "n_trained_padding", "n_trained_prompt", "n_trained_tool", "n_sampled_untrained",
    "n_last_untrained", "n_unseen_trained", "shift",
)  # fmt: skip


def faults(found: dict[str, Any]) -> dict[str, int]:
    return {key: found[key] for key in FAULTS if found[key]}


def trained(*kinds: int) -> list[list[int]]:
    return [[int(kind in kinds) for kind in row] for row in SOURCE]


def test_sampled_tokens_alone_are_right() -> None:
    attention = [[int(kind != 0) for kind in row] for row in SOURCE]
    found = masks(SOURCE, RIGHT, attention, ["stop", "stop", "length"])
    assert faults(found) == {}
    assert found["n_trained"] == 8
    assert found["offenders"] == []


@pytest.mark.parametrize(
    ("mask", "name", "count"),
    [
        (trained(2, 3), "n_trained_prompt", 6),
        (trained(1, 3), "n_trained_prompt", 1),
        (trained(3, 4), "n_trained_tool", 2),
        (trained(0, 3), "n_trained_padding", 4),
    ],
)
def test_tokens_that_must_not_be_trained_are_counted_by_their_source(
    mask: list[list[int]], name: str, count: int
) -> None:
    assert faults(masks(SOURCE, mask)) == {name: count}


def test_a_mask_that_lies_one_place_off_is_told_by_its_shift() -> None:
    left = [[*row[1:], 0] for row in RIGHT]
    assert masks(SOURCE, left)["shift"] == 1
    right = [[0, *row[:-1]] for row in RIGHT]
    assert masks(SOURCE, right)["shift"] == -1


def test_a_last_token_that_is_left_out_counts_only_where_the_row_ended_by_it() -> None:
    mask = [list(row) for row in RIGHT]
    mask[0][6] = 0
    finish = ["stop", "stop", "stop"]
    assert faults(masks(SOURCE, mask, finish=finish)) == {
        "n_sampled_untrained": 1,
        "n_last_untrained": 1,
    }
    assert "n_last_untrained" not in faults(masks(SOURCE, mask, finish=["length", None, "stop"]))


def test_a_row_that_is_left_out_whole_is_no_fault() -> None:
    mask = [RIGHT[0], [0] * 7, RIGHT[2]]
    found = masks(SOURCE, mask)
    assert faults(found) == {}
    assert found["n_rows_untrained"] == 1


def test_trained_places_that_attention_does_not_see_are_counted() -> None:
    attention = [[1] * 6 + [0], [1] * 7, [1] * 7]
    assert faults(masks(SOURCE, RIGHT, attention)) == {"n_unseen_trained": 1}


def test_offenders_name_row_and_place() -> None:
    mask = [list(row) for row in RIGHT]
    mask[1][0] = 1
    assert masks(SOURCE, mask)["offenders"] == [[1, 0]]


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="same shape"):
        masks(SOURCE, RIGHT[:2])
    with pytest.raises(ValueError, match="holds 9"):
        masks([[9]], [[1]])


def test_tensors_are_read_like_lists() -> None:
    torch = pytest.importorskip("torch")
    assert masks(torch.tensor(SOURCE), torch.tensor(RIGHT)) == masks(SOURCE, RIGHT)
