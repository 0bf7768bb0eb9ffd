"""Where a completion ends, and how many tokens it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.row_table import RowTable
from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary
from firstbad.tools.token_counts import TokenCounts
from firstbad.tools.tokens import completion_end

PAD, STOP = 0, 1

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
MakeCapture = Callable[..., Capture]


@pytest.mark.parametrize(
    ("row", "real", "stop_at"),
    [
        ([5, 6, STOP, PAD], [1, 1, 1, 0], 2),
        ([5, PAD, 6, STOP], [1, 1, 1, 1], 3),  # a sampled pad token
        ([PAD, STOP, PAD, PAD], [1, 1, 0, 0], 1),
        ([5, 6, 7, 8], [1, 1, 1, 1], -1),  # cut at the cap
        ([5, STOP, 6, STOP], [1, 1, 0, 0], 1),  # nothing after the first stop counts
        ([STOP, PAD, PAD, PAD], [1, 0, 0, 0], 0),
        ([5, 6, PAD, PAD], [1, 1, 0, 0], -1),  # cut earlier, and padded
    ],
)
def test_the_end_is_read_off_the_ids(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    row: list[int],
    real: list[int],
    stop_at: int,
) -> None:
    end = completion_end(make_run(vocabulary=words), capture(token_id=[row]))
    assert end.real[0].astype(int).tolist() == real
    assert end.stop_at.tolist() == [stop_at]
    assert (end.stops, end.guessed) == (frozenset({STOP}), False)


def test_several_stop_tokens_and_a_pad_token_that_is_one(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary
) -> None:
    both = replace(words, eos_ids=frozenset({STOP, 9}), pad_id=STOP)
    end = completion_end(make_run(vocabulary=both), capture(token_id=[[5, 9, STOP, STOP]]))
    assert end.real[0].tolist() == [True, True, False, False]


def test_without_a_tokenizer_the_common_last_token_is_the_stop(
    make_run: MakeRun, capture: MakeCapture
) -> None:
    ids = [[5, 6, 1, 0], [7, 1, 0, 0], [5, 6, 7, 1], [5, 6, 7, 8]]
    mask = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    end = completion_end(make_run(), capture(token_id=ids, completion_mask=mask))
    assert (end.stops, end.guessed) == (frozenset({1}), True)
    assert end.stop_at.tolist() == [2, 1, 3, -1]
    bare = completion_end(make_run(), capture(token_id=ids))
    assert (bare.stops, bare.guessed) == (frozenset(), True)
    assert bare.real.all()


@pytest.mark.parametrize(
    ("rows", "stops"),
    [
        ([[8, 8, 8, 8]] * 3, set()),  # nothing but one token, up to the cap
        ([[8, 6, 8, 6], [8, 6, 8, 6]], set()),  # two in turn
        ([[8, 6, 7, 6], [6, 9, 5, 6], [8, 9, 7, 6]], set()),
        ([[8, 9, 7, 6], [5, 9, 5, 6], [8, 9, 6, 6]], {6}),  # padding with the stop
        ([[8, 9, 7, 6]] * 3, {6}),
    ],
)
def test_a_token_that_is_said_again_and_again_is_no_stop(
    make_run: MakeRun, capture: MakeCapture, rows: list[list[int]], stops: set[int]
) -> None:
    ids = np.array(rows)
    made = capture(1, token_id=ids, completion_mask=np.ones_like(ids))
    assert completion_end(make_run(captures=[made]), made).stops == stops


@settings(max_examples=30, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_padding_after_a_stop_changes_nothing(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, row: list[int], more: int
) -> None:
    run = make_run(vocabulary=words)
    ended = [*row, STOP]
    short = completion_end(run, capture(token_id=[ended]))
    long = completion_end(run, capture(token_id=[ended + [PAD] * more]))
    assert long.stop_at.tolist() == short.stop_at.tolist()
    assert long.real.sum() == short.real.sum() == ended.index(STOP) + 1


# ------------------------------------------------------------------------------------- counts


def texts(batch: MakeBatch, words: int, steps: int = 5, **fields: object) -> list[RolloutBatch]:
    return [
        batch(s, completions=["word " * (words + s), "word " * (words + 3 * s)], **fields)
        for s in range(1, steps + 1)
    ]


def counts_of(run: Run, batches: list[RolloutBatch]) -> TokenCounts:
    return TokenCounts(run, RowTable(run, batches))


def rows_of(counts: TokenCounts, step: int, size: int = 2) -> list[float]:
    """Tokens of the rows of a step, where each has so many."""
    return list(counts.rows[step * size : (step + 1) * size])


def test_counts_that_are_written_are_taken(make_run: MakeRun, batch: MakeBatch) -> None:
    rows = batch(completions=["a b", "c"], n_tokens=[7, 9])
    counts = counts_of(make_run(), [rows])
    assert counts.rows.tolist() == [7, 9]
    assert counts.agreement is None


def test_else_words_are_scaled_to_the_logged_mean(make_run: MakeRun, batch: MakeBatch) -> None:
    # Step s has 10 + s and 10 + 3 s words, on average 10 + 2 s. Two tokens a word and one stop
    # token make a mean of 21 + 4 s.
    made = texts(batch, 10)
    run = make_run(signals={"completion_length_mean": [21 + 4 * s for s in range(1, 6)]})
    counts = counts_of(run, made)
    assert counts.agreement == pytest.approx(1)
    assert rows_of(counts, 0) == pytest.approx([2 * 11 + 1, 2 * 13 + 1])


def test_a_cut_row_has_the_cap_and_no_end_token(make_run: MakeRun, batch: MakeBatch) -> None:
    # An ended row has one token a word and one to end it. From step 4 on the second one is cut at
    # 20 tokens, which are 20 words: a line through all rows would take them for 21.
    words = [(5, 9), (7, 12), (4, 17), (6, 20), (9, 20), (3, 20)]
    made = [batch(s, completions=["w " * a, "w " * b]) for s, (a, b) in enumerate(words, 1)]
    run = make_run(
        signals={
            "completion_length_mean": [(a + 1 + min(b + 1, 20)) / 2 for a, b in words],
            "truncation_rate": [0, 0, 0, 0.5, 0.5, 0.5],
            "completion_length_max": [10, 13, 18, 20, 20, 20],
        }
    )
    counts = counts_of(run, made)
    assert counts.agreement == pytest.approx(1)
    assert rows_of(counts, 2) == pytest.approx([5, 18])
    assert rows_of(counts, 4) == pytest.approx([10, 20])
    assert counts.cut[8:10].tolist() == [False, True]


def test_the_unit_is_chosen_by_the_rows_that_ended(make_run: MakeRun, batch: MakeBatch) -> None:
    # From step 4 on every row is cut at 40, which any unit explains; before it only words do.
    made = [batch(s, completions=["w " * (s + 4), "longer " * (12 - s)] * 3) for s in range(1, 7)]
    ended = [((s + 5) + (13 - s)) / 2 + 0.5 * (s == 2) for s in range(1, 4)]
    made[1] = batch(2, completions=["w " * 6, "longer " * 11] * 3)
    run = make_run(
        signals={
            "completion_length_mean": [*ended, 40, 40, 40],
            "truncation_rate": [0, 0, 0, 1, 1, 1],
            "completion_length_max": [12, 12, 10, 40, 40, 40],
        }
    )
    counts = counts_of(run, made)
    assert rows_of(counts, 0, size=6) == pytest.approx([6, 12] * 3, abs=0.1)
    assert rows_of(counts, 5, size=6) == [40] * 6


def test_characters_where_they_follow_the_mean_better(make_run: MakeRun, batch: MakeBatch) -> None:
    sizes = [(3, 9), (20, 4), (7, 31), (15, 5), (40, 2)]
    made = [batch(s, completions=["x" * a, "y" * b]) for s, (a, b) in enumerate(sizes, 1)]
    run = make_run(signals={"completion_length_mean": [(a + b) / 2 for a, b in sizes]})
    assert rows_of(counts_of(run, made), 2) == pytest.approx([7, 31])


def test_without_a_logged_mean_words_count_as_tokens(make_run: MakeRun, batch: MakeBatch) -> None:
    (rows,) = texts(batch, 4, steps=1)
    counts = counts_of(make_run(), [rows])
    assert counts.rows.tolist() == [5, 7]
    empty = batch(completions=["", "a"])
    assert counts_of(make_run(), [empty]).rows.tolist() == [1, 1], "never below one"


@settings(max_examples=20, derandomize=True)
@given(st.floats(0.5, 4), st.floats(0, 10))
def test_any_straight_line_is_recovered(
    make_run: MakeRun, batch: MakeBatch, per_word: float, more: float
) -> None:
    made = texts(batch, 10)
    mean = [per_word * (10 + 2 * s) + more for s in range(1, 6)]
    counts = counts_of(make_run(signals={"completion_length_mean": mean}), made)
    assert rows_of(counts, 4) == pytest.approx([15 * per_word + more, 25 * per_word + more])
    assert np.isfinite(counts.agreement or 0)


def test_finish_reasons_tell_which_rows_were_cut(make_run: MakeRun, batch: MakeBatch) -> None:
    """Of two rows as long as the cap one ended there by itself."""
    fields = {"rewards": {"correct": [1, 0, 0]}, "n_tokens": [8, 8, 3]}
    reasons = batch(1, finish=["stop", "length", "stop"], **fields)
    counts = counts_of(make_run(), [reasons])
    assert counts.cut.tolist() == [False, True, False]
    signals = {"truncation_rate": [1 / 3], "completion_length_mean": [19 / 3],
               "completion_length_max": [8.0]}  # fmt: skip
    unsaid = batch(1, finish=[None, "length", "stop"], **fields)
    assert counts_of(make_run(signals=signals), [unsaid]).cut.sum() == 1


TOOL = 4


@pytest.mark.parametrize(
    ("ids", "source", "real", "stop_at"),
    [
        # Two turns: the stop token of each is real, what the tool returned is not.
        ([5, 1, 9, 1, 6, 1, 0], [3, 3, 4, 4, 3, 3, 0], [1, 1, 0, 0, 1, 1, 0], 5),
        # The second turn runs on behind its stop.
        ([5, 1, 9, 9, 6, 1, 7], [3, 3, 4, 4, 3, 3, 3], [1, 1, 0, 0, 1, 1, 0], 5),
        # The first turn ends in a stop token and a word that nobody sampled with it.
        ([5, 1, 8, 9, 6, 7, 8], [3, 3, 3, 4, 3, 3, 3], [1, 1, 0, 0, 1, 1, 1], -1),
        # One turn: nothing behind the first stop, whatever the source says.
        ([5, 1, 8, 8, 6, 7, 8], [3, 3, 3, 3, 3, 3, 3], [1, 1, 0, 0, 0, 0, 0], 1),
        # Cut inside what the tool returned.
        ([5, 1, 9, 9, 9, 9, 9], [3, 3, 4, 4, 4, 4, 4], [1, 1, 0, 0, 0, 0, 0], 1),
    ],
)
def test_each_turn_of_a_dialogue_ends_in_its_own_stop(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    ids: list[int],
    source: list[int],
    real: list[int],
    stop_at: int,
) -> None:
    end = completion_end(make_run(vocabulary=words), capture(token_id=[ids], source=[source]))
    assert end.real[0].astype(int).tolist() == real
    assert end.stop_at.tolist() == [stop_at]


def test_a_mask_over_tool_tokens_tells_their_source(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary
) -> None:
    """As TRL writes it: 0 on what a tool returned, padded with 1."""
    ids = [[5, 1, 9, 9, 6, 1, 0], [5, 6, 7, 0, 0, 0, 0]]
    mask = [[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]
    dump = capture(token_id=ids, tool_mask=mask)
    end = completion_end(make_run(vocabulary=words), dump)
    assert end.real.astype(int).tolist() == [[1, 1, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]]
    assert end.stop_at.tolist() == [5, -1]
    whole = capture(token_id=ids, tool_mask=np.ones_like(mask))
    end = completion_end(make_run(vocabulary=words), whole)
    assert end.real.astype(int).tolist() == [[1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0]]


@settings(max_examples=30, derandomize=True)
@given(st.lists(st.sampled_from([(5, 3), (STOP, 3), (9, 4)]), min_size=1, max_size=9))
def test_no_tool_token_and_no_padding_is_real(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, row: list[tuple[int, int]]
) -> None:
    run = make_run(vocabulary=words)
    ids, source = ([pair[k] for pair in row] for k in (0, 1))
    plain = completion_end(run, capture(token_id=[ids], source=[source]))
    longer = completion_end(run, capture(token_id=[[*ids, PAD, PAD]], source=[[*source, 0, 0]]))
    assert longer.real[0, : len(ids)].tolist() == plain.real[0].tolist()
    assert not longer.real[0, len(ids) :].any()
    assert not plain.real[0][np.array(source) == TOOL].any()
    assert longer.stop_at.tolist() == plain.stop_at.tolist()
