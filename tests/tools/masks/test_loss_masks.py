"""Who is trained: loss masks against token ids, and trained tokens against completion tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

CHECK, COUNT = "check_masks", "count_trained_tokens"
ONSET = 31

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]
Mask = npt.NDArray[np.bool_]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]

PAD, STOP = 0, 1


# ----------------------------------------------------------------------------------- captures


def test_hand_counted_tokens(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = capture(
        token_id=[
            [5, 6, STOP, PAD],  # right
            [5, 6, STOP, PAD],  # padding trained
            [5, 6, 7, 8],  # cut at the cap, all trained: right
            [5, PAD, 6, STOP],  # a sampled pad token is a completion token: right
            [5, 6, 7, STOP],  # a word left out
            [5, 6, 7, STOP],  # untrained
            [5, 6, STOP, PAD],  # stop token left out
        ],
        loss_mask=[
            [1, 1, 1, 0],
            [1, 1, 1, 1],
            [1, 1, 1, 1],
            [1, 1, 1, 1],
            [1, 0, 1, 1],
            [0, 0, 0, 0],
            [1, 1, 0, 0],
        ],
    )
    found = measure(CHECK, make_run(captures=[made], vocabulary=words))
    assert (found["n_captures"], found["n_rows"]) == (1, 7)
    assert found["n_tokens"] == 3 + 3 + 4 + 4 + 4 + 4 + 3
    assert found["prompt_trained"] == 0
    assert found["padding_trained"] == 1
    assert found["completion_untrained"] == 2, "one word and one stop token; untrained rows apart"
    assert found["rows_untrained"] == 1
    # Six rows hold a stop token, five of them are trained; one of these leaves only the stop out.
    assert found["finished_rows"] == 5
    assert found["share_rows_stop_untrained"] == 0.2
    assert found["share_rows_shifted"] == 0
    assert found["share_rows_wrong"] == pytest.approx(3 / 7, abs=1e-6)
    assert not found["stops_guessed"]
    assert found["sampled"]
    assert found["from_start"]


def padding(c: Capture) -> Mask:
    return np.ones_like(real(c))


def late(c: Capture) -> Mask:
    moved = np.zeros_like(real(c))
    moved[:, 1:] = real(c)[:, :-1]
    return moved


def no_stop(c: Capture) -> Mask:
    is_word: Mask = np.asarray(c.arrays["token_id"]) != STOP
    return real(c) & is_word


def dropped(c: Capture) -> Mask:
    mask = real(c).copy()
    mask[:, 2] = False
    return mask


def only(c: Capture, rows: Mask) -> Capture:
    return replace(c, arrays={k: v[rows] for k, v in c.arrays.items()})


def stopped(c: Capture) -> Mask:
    found: Mask = (np.asarray(c.arrays["token_id"]) == STOP).any(axis=1)
    return found


def real(c: Capture) -> Mask:
    mask = c.mask("completion_mask")
    assert mask is not None
    return mask


@pytest.mark.parametrize(
    ("fault", "shows", "at_least"),
    [
        (padding, "padding_trained", 100),
        (late, "share_rows_shifted", 0.9),
        (no_stop, "share_rows_stop_untrained", 0.85),
        (dropped, "completion_untrained", 100),
    ],
)
def test_each_wrong_mask_shows_and_is_dated_between_captures(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    fault: Callable[[Capture], Mask],
    shows: str,
    at_least: float,
) -> None:
    run = simulate(1, steps=60, dumps=6)
    steps = run.captures.steps.tolist()

    def change(c: Capture) -> Capture:
        if c.step < steps[3]:
            return c
        return replace(c, arrays={**c.arrays, "loss_mask": fault(c)})

    found = measure(CHECK, changed.recapture(run, change))
    assert (found["last_good_step"], found["first_bad_step"]) == (steps[2], steps[3])
    assert found["sampled"]
    assert not found["from_start"]
    # Half of the captures are wrong.
    assert found[shows] >= (at_least / 2 if at_least < 1 else at_least)
    assert found["prompt_trained"] == 0
    for other in {"share_rows_shifted", "share_rows_stop_untrained"} - {shows}:
        assert found[other] <= 0.05


@pytest.mark.parametrize(
    ("mask", "prompt", "shift"),
    [
        ([0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0], 2),
        ([0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0], 3),
        ([0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0], 1),  # the first token out, nothing else
        ([1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1], -2),
        ([1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0], None),  # the end is dropped
        ([0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0], None),  # the beginning is
        ([1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0], None),  # padding
        ([1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1], None),  # prompt
        ([1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0], None),  # right
    ],
)
def test_a_mask_that_is_moved(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    mask: list[int],
    prompt: list[int],
    shift: int | None,
) -> None:
    made = capture(
        token_id=[[5, 6, 7, STOP, PAD, PAD, PAD, PAD]] * 3,
        loss_mask=[mask] * 3,
        prompt_loss_mask=[prompt] * 3,
    )
    found = measure(CHECK, make_run(captures=[made], vocabulary=words))
    assert found["shift_tokens"] == shift
    assert found["shift_size"] == (None if shift is None else abs(shift))
    assert found["share_wrong_shifted"] == found["share_rows_shifted"] == (shift is not None)


@pytest.mark.parametrize(
    ("ids", "share"),
    [
        ([[5, STOP, 6, 7], [5, 6, STOP, STOP]], 1.0),  # sampled on, to the cap
        ([[5, STOP, PAD, PAD], [5, 6, STOP, PAD]], 0.0),  # padding
        ([[5, STOP, 6, PAD], [5, 6, STOP, PAD]], 1 / 3),
    ],
)
def test_tokens_after_the_stop_are_padding_or_were_sampled(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    ids: list[list[int]],
    share: float,
) -> None:
    made = capture(token_id=ids, loss_mask=np.ones_like(ids))
    found = measure(CHECK, make_run(captures=[made], vocabulary=words))
    assert found["padding_trained"] == 3
    assert found["made_after_stop_share"] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("pad", "after", "share"),
    [
        (
            STOP,
            [STOP, STOP, STOP],
            0.0,
        ),  # the stop token pads: it cannot be told from a sampled one
        (STOP, [STOP, 7, 8], 2 / 3),
        (None, [9, 9, 9], 0.0),  # no file names the pad id: one id over and over is taken for it
        (None, [9, 7, 8], 2 / 3),
    ],
)
def test_a_pad_id_that_stops_or_that_no_file_names(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    pad: int | None,
    after: list[int],
    share: float,
) -> None:
    made = capture(token_id=[[5, STOP, *after]], loss_mask=[[1] * 5])
    found = measure(CHECK, make_run(captures=[made], vocabulary=replace(words, pad_id=pad)))
    assert found["made_after_stop_share"] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("trained", [True, False])
def test_prompt_tokens_in_the_loss_beside_a_completion_mask_that_is_right(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace, trained: bool
) -> None:
    run = simulate(1, steps=60, dumps=6)
    steps = run.captures.steps.tolist()
    expected = 0

    def change(c: Capture) -> Capture:
        nonlocal expected
        prompt = c.mask("prompt_mask")
        assert prompt is not None
        wrong = prompt & (trained and c.step >= steps[3])
        expected += int(wrong.sum())
        return replace(c, arrays={**c.arrays, "loss_mask": real(c), "prompt_loss_mask": wrong})

    found = measure(CHECK, changed.recapture(run, change))
    assert found["prompt_trained"] == expected
    assert (expected > 100) == trained
    assert found["first_bad_step"] == (steps[3] if trained else None)
    assert found["padding_trained"] == found["completion_untrained"] == 0
    assert found["n_captures_without"] == 0


def test_captures_that_lost_their_mask_are_counted(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = [
        capture(1, token_id=[[5, STOP]], loss_mask=[[1, 1]]),
        capture(2, token_id=[[5, STOP]]),
        capture(3, token_id=[[5, STOP]], loss_mask=[[1, 1, 1]]),
        capture(4, logp_new=[[-1.0, -1.0]]),
    ]
    found = measure(CHECK, make_run(captures=made, vocabulary=words))
    assert (found["n_captures"], found["n_captures_without"]) == (1, 2)


@pytest.mark.parametrize("pads", [False, True])
def test_a_sound_mask_is_right_whatever_is_sampled(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure, pads: bool
) -> None:
    """Pad tokens may be sampled inside an answer, and rows end at the cap without a stop."""
    made = [sample(s, seed=s, pads=pads) for s in (1, 2, 3)]
    # A pad token sampled last in a row cut at the cap cannot be told from padding.
    made = [only(c, stopped(c) | (np.asarray(c.arrays["token_id"])[:, -1] != PAD)) for c in made]
    found = measure(CHECK, make_run(captures=made, vocabulary=words))
    assert found["share_rows_wrong"] == found["padding_trained"] == 0
    assert found["completion_untrained"] == 0
    assert found["first_bad_step"] is None
    assert 0 < found["finished_rows"] < found["n_rows"]
    if pads:
        ids = np.concatenate([np.asarray(c.arrays["token_id"])[real(c)] for c in made])
        assert (ids == PAD).sum() > 50


def test_truncated_rows_left_out_on_purpose_are_counted_apart(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = sample(1)
    cut = ~stopped(made)
    made = replace(made, arrays={**made.arrays, "loss_mask": real(made) & ~cut[:, None]})
    found = measure(CHECK, make_run(captures=[made], vocabulary=words))
    assert found["rows_untrained"] == cut.sum() > 0
    assert found["share_rows_wrong"] == 0


def test_without_a_tokenizer_the_stop_token_is_guessed(
    make_run: MakeRun, sample: MakeCapture, measure: Measure
) -> None:
    found = measure(CHECK, make_run(captures=[sample(1, rows=200, width=60)]))
    assert found["stops_guessed"]
    assert found["share_rows_wrong"] == 0


def test_the_framework_s_own_mask_is_not_believed(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Both masks cover one token after the stop: they agree, and both are wrong."""
    made = capture(token_id=[[5, STOP, PAD]], completion_mask=[[1, 1, 1]], loss_mask=[[1, 1, 1]])
    found = measure(CHECK, make_run(captures=[made], vocabulary=words))
    assert (found["completion_mask_differs"], found["padding_trained"]) == (1, 1)


def test_a_wrong_row_is_shown_token_by_token(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    evidence: Callable[..., Evidence],
) -> None:
    made = capture(9, token_id=[[5, STOP, PAD]], loss_mask=[[1, 1, 1]], advantage=[0.25])
    found = evidence(CHECK, make_run(captures=[made], vocabulary=words))
    assert found.tables[1].title == "token table: step 9, row 0"
    assert found.tables[1].rows == (
        (0, 5, "w5", "completion", 1, 1, 0.25),
        (1, STOP, "</s>", "completion", 1, 1, 0.25),
        (2, PAD, "<pad>", "padding", 1, 0, 0.25),
    )


def test_the_tokens_shown_lie_around_the_first_wrong_one(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    evidence: Callable[..., Evidence],
) -> None:
    ids = [[5] * 13 + [STOP] + [6] * 50 + [PAD] * 2]  # generation went on behind the stop
    made = capture(9, token_id=ids, loss_mask=np.ones_like(ids))
    found = evidence(CHECK, make_run(captures=[made], vocabulary=words))
    per_capture, tokens, _ = found.tables
    trained = dict(zip(per_capture.columns, per_capture.rows[0], strict=True))
    assert trained["sampled after the stop and trained"] == 50
    assert trained["padding trained"] == 2
    assert [(row[0], row[3]) for row in tokens.rows[:6]] == [
        (10, "completion"),
        (11, "completion"),
        (12, "completion"),
        (13, "completion"),
        (14, "after the stop"),
        (15, "after the stop"),
    ]
    assert (len(tokens.rows), tokens.cut_rows) == (40, 26)


def test_an_advantage_that_is_nan_is_no_number_of_the_table(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    evidence: Callable[..., Evidence],
) -> None:
    made = capture(1, token_id=[[5, STOP, PAD]], loss_mask=[[1, 1, 1]], advantage=[np.nan])
    evidence(CHECK, make_run(captures=[made], vocabulary=words))


def test_captures_without_data(
    make_run: MakeRun, capture: MakeCapture, missing: Callable[..., str]
) -> None:
    assert "loss mask" in missing(CHECK, make_run())
    assert "loss mask" in missing(CHECK, make_run(captures=[capture(token_id=[[1]])]))


@settings(max_examples=8, derandomize=True)
@given(more=st.integers(0, 9), seed=st.integers(0, 50), by=st.integers(0, 100))
def test_more_padding_and_another_order_of_rows_change_nothing(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    changed: SimpleNamespace,
    more: int,
    seed: int,
    by: int,
) -> None:
    def run_of(*made: Capture) -> Run:
        return make_run(captures=made, vocabulary=words)

    good, bad = sample(1, seed=seed), sample(2, seed=seed + 1000)
    # Only finished rows: a cut row is as wide as the batch.
    bad = only(replace(bad, arrays={**bad.arrays, "loss_mask": no_stop(bad)}), stopped(bad))
    before = measure(CHECK, run_of(good, bad))
    assert before["first_bad_step"] == 2

    order = np.random.default_rng(seed).permutation(len(bad.arrays["token_id"]))

    def change(c: Capture) -> Capture:
        if c.step == 1:
            return c
        wide = {
            k: np.pad(v, ((0, 0), (0, more))) if v.ndim == 2 and not k.startswith("prompt") else v
            for k, v in c.arrays.items()
        }
        return replace(c, arrays={k: v[order] for k, v in wide.items()})

    moved = changed.shift_steps(changed.recapture(run_of(good, bad), change), by)
    assert measure(CHECK, moved) == changed.dates_moved(before, by)


# ------------------------------------------------------------------------------------- counts


def test_hand_computed_ratio(make_run: MakeRun, measure: Measure) -> None:
    # Mean length 10 in micro-batches of 4 rows: 40 tokens. From step 6 on 52 are trained:
    # 52/40 = 1.3, and (52 - 40)/4 = 3 tokens a row too many.
    signals = {
        "trained_tokens_mean": [40.0] * 5 + [52.0] * 5,
        "completion_length_mean": [10.0] * 10,
    }
    run = make_run(signals=signals, config={"per_device_train_batch_size": 4})
    found = measure(COUNT, run)
    assert (found["n_steps"], found["ratio_median"], found["ratio_worst"]) == (10, 1.15, 1.3)
    assert found["excess_per_row"] == 3
    assert found["off_steps_share"] == 0.5
    assert (found["last_good_step"], found["first_bad_step"]) == (5, 6)
    assert not found["lack_is_one"]


@pytest.mark.parametrize(
    ("extra", "excess", "steady", "one"),
    [(-1.0, -1, True, True), (6.0, 6, True, False), (None, 4, False, False)],
    ids=["stop token left out", "prompt trained", "padding trained"],
)
def test_each_surplus_is_told_and_dated(
    simulate: MakeRun,
    measure: Measure,
    extra: float | None,
    excess: float,
    steady: bool,
    one: bool,
) -> None:
    def log(values: Values, steps: Steps) -> None:
        after = steps >= ONSET
        mean, longest = values["completion_length_mean"], values["completion_length_max"]
        # Lengths vary between steps, or a surplus that follows the longest cannot be seen.
        scale = 1 + 0.5 * np.sin(steps)
        mean *= scale
        longest *= scale
        values["trained_tokens_mean"] = 32 * mean
        more = longest - mean if extra is None else np.full(len(steps), extra)
        values["trained_tokens_mean"][after] += 32 * more[after]

    found = measure(COUNT, simulate(1, log=log))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["excess_per_row"] == pytest.approx(excess, rel=0.4)
    assert (found["excess_steady"], found["lack_is_one"]) == (steady, one)
    assert found["ratio_median"] == pytest.approx(1, abs=0.25)
    assert abs(found["ratio_worst"] - 1) > 0.05


def test_counts_that_agree_and_one_that_strays(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["trained_tokens_mean"][steps == ONSET] *= 2

    found = measure(COUNT, simulate(1, log=log))
    assert found["ratio_median"] == found["ratio_worst"] == 1
    assert found["off_steps_share"] == 0
    assert found["first_bad_step"] is None


def test_one_stray_count_at_the_last_step_is_no_onset(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["trained_tokens_mean"][-1] *= 2

    assert measure(COUNT, simulate(1, log=log))["first_bad_step"] is None


def test_the_rows_of_a_micro_batch_are_read_off_where_no_config_tells(
    make_run: MakeRun, measure: Measure
) -> None:
    signals = {
        "trained_tokens_mean": [41.0, 39, 40, 40, 40],
        "completion_length_mean": [10.0] * 5,
    }
    found = measure(COUNT, make_run(signals=signals))
    assert found["ratio_median"] == 1
    assert found["excess_per_row"] == 0


LENGTHS = np.array([14.75, 15.5, 14.0, 16.25, 15.0, 14.5, 15.75, 14.25] * 5)


def test_without_config_the_rows_are_those_of_the_steps_that_are_sound(
    make_run: MakeRun, measure: Measure
) -> None:
    """Most steps are wrong, yet the whole number that few hold is the rows of a micro-batch."""
    trained = np.where(np.arange(40) < 9, 24 * LENGTHS, 24 * 21.0)
    signals = {"trained_tokens_mean": trained, "completion_length_mean": LENGTHS}
    found = measure(COUNT, make_run(signals=signals))
    assert (found["last_good_step"], found["first_bad_step"]) == (9, 10)
    assert found["excess_per_row"] == pytest.approx(6, abs=0.2)


def test_without_config_a_level_alone_tells_nothing(
    make_run: MakeRun, missing: Callable[..., str]
) -> None:
    """Wrong or not from the first step on: no step shows how many rows there are."""
    signals = {"trained_tokens_mean": 24 * (LENGTHS - 1), "completion_length_mean": LENGTHS}
    assert "rows of a micro-batch" in missing(COUNT, make_run(signals=signals))


@pytest.mark.parametrize("config", [{}, {"mask_truncated_completions": True}])
def test_truncated_rows_that_may_be_left_out_of_the_loss_are_no_lack(
    make_run: MakeRun, measure: Measure, missing: Callable[..., str], config: dict[str, Any]
) -> None:
    cut = np.where(np.arange(40) % 4, 1 / 24, 0.0)  # three of four steps have one truncated row
    signals = {
        "trained_tokens_mean": 24 * (LENGTHS - cut * 20),
        "completion_length_mean": LENGTHS,
        "truncation_rate": cut,
    }
    found = measure(COUNT, make_run(signals=signals, config=config))
    assert (found["n_steps"], found["ratio_median"]) == (10, 1)
    assert found["first_bad_step"] is None
    every = {**signals, "truncation_rate": np.full(40, 1 / 24)}
    assert "mask_truncated_completions" in missing(COUNT, make_run(signals=every, config=config))


def test_a_fault_that_was_mended_keeps_its_size(make_run: MakeRun, measure: Measure) -> None:
    """12 tokens a row too many in a quarter of the steps: the sound ones after it don't count."""
    wrong = (np.arange(40) >= 10) & (np.arange(40) < 20)
    signals = {
        "trained_tokens_mean": 24 * (LENGTHS + 12 * wrong),
        "completion_length_mean": LENGTHS,
        "completion_length_max": LENGTHS + 6,
    }
    found = measure(COUNT, make_run(signals=signals, config={"per_device_train_batch_size": 24}))
    assert (found["last_good_step"], found["first_bad_step"]) == (10, 11)
    assert found["excess_per_row"] == 12
    assert found["ratio_worst"] == pytest.approx(1.8, abs=0.05)
    assert found["excess_steady"]


def test_steps_with_fewer_rows_have_fewer_trained_tokens(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace
) -> None:
    """Rows that a filter dropped are not in the loss: half the rows, half the tokens."""
    run = simulate(1, config={"generation_batch_size": 32})

    def fewer(b: RolloutBatch) -> RolloutBatch:
        kept: RolloutBatch = changed.reorder(b, list(range(16 if b.step >= ONSET else 32)))
        return kept

    half = np.where(np.arange(1, 61) >= ONSET, 16, 32)
    length = run.signals.known["completion_length_mean"].values
    run = changed.relog(changed.rebatch(run, fewer), trained_tokens_mean=half * length)
    found = measure(COUNT, run)
    assert found["ratio_median"] == found["ratio_worst"] == 1
    assert found["first_bad_step"] is None


def test_counts_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "trained tokens" in missing(COUNT, make_run())
    few = {"trained_tokens_mean": [40.0] * 4, "completion_length_mean": [10.0] * 4}
    assert "fewer than five" in missing(COUNT, make_run(signals=few))


@settings(max_examples=10, derandomize=True)
@given(by=st.integers(0, 1000), rows=st.integers(1, 64))
def test_neither_step_numbers_nor_the_size_of_a_micro_batch_matter(
    make_run: MakeRun, measure: Measure, changed: SimpleNamespace, by: int, rows: int
) -> None:
    length = 10 + np.arange(20) % 3
    trained = (length + 2.0 * (np.arange(20) >= 10)) * rows
    run = make_run(
        signals={"trained_tokens_mean": trained, "completion_length_mean": length},
        config={"per_device_train_batch_size": rows},
    )
    found = measure(COUNT, changed.shift_steps(run, by))
    assert found["first_bad_step"] == 11 + by
    assert found["excess_per_row"] == 2


# ------------------------------------------------------------------------- turns, tools, run on


def dialogue(capture: MakeCapture, mask: list[list[int]], **fields: object) -> Capture:
    """A row with a tool's answer, one of one turn, and one that ran on behind its stop token."""
    ids = [[5, STOP, 9, 9, 6, STOP, PAD], [5, 6, 7, STOP, PAD, PAD, PAD], [5, STOP, 6, 7, 8, 6, 7]]
    source = [[3, 3, 4, 4, 3, 3, 0], [3, 3, 3, 3, 0, 0, 0], [3] * 7]
    return capture(4, token_id=ids, source=source, loss_mask=mask, **fields)


RIGHT = [[1, 1, 0, 0, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "shows"),
    [
        ({}, {}),
        ({(0, 2): 1, (0, 3): 1}, {"tool_trained": 2}),
        ({(1, 4): 1}, {"padding_trained": 1, "made_after_stop_share": 0.0}),
        ({(2, 2): 1, (2, 3): 1}, {"padding_trained": 2, "made_after_stop_share": 1.0}),
        ({(0, 5): 0}, {"completion_untrained": 1, "share_rows_stop_untrained": 0.333333}),
    ],
)
def test_tokens_by_their_source(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    change: dict[tuple[int, int], int],
    shows: dict[str, float],
) -> None:
    mask = [list(row) for row in RIGHT]
    for (row, at), value in change.items():
        mask[row][at] = value
    found = measure(CHECK, make_run(captures=[dialogue(capture, mask)], vocabulary=words))
    named = ("tool_trained", "padding_trained", "completion_untrained")
    assert {name: found[name] for name in named} == dict.fromkeys(named, 0) | {
        name: value for name, value in shows.items() if name in named
    }
    assert {name: found[name] for name in shows} == shows
    assert found["n_tool_tokens"] == 2
    assert found["share_rows_wrong"] == (round(1 / 3, 6) if change else 0.0)
    assert found["share_rows_run_on"] == round(1 / 3, 6), "the last row, trained there or not"


def test_the_table_names_where_each_token_comes_from(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    evidence: Callable[..., Evidence],
) -> None:
    mask = [[1, 1, 1, 1, 1, 1, 0], *RIGHT[1:]]
    made = dialogue(
        capture,
        mask,
        prompt_token_id=[[7, 8, PAD]] * 3,
        prompt_source=[[1, 2, 0]] * 3,
        prompt_loss_mask=[[0, 0, 0]] * 3,
        attention_mask=[[1, 1, 1, 1, 1, 1, 0]] * 3,
        prompt_attention_mask=[[1, 1, 0]] * 3,
        advantage=[0.5, 0.0, 0.0],
        **{"loss_mask.sft": RIGHT, "prompt_loss_mask.sft": [[0, 1, 0]] * 3},
    )
    table = evidence(CHECK, make_run(captures=[made], vocabulary=words)).tables[1]
    assert table.columns == (
        "position", "id", "text", "source", "attention", "in loss", "expected", "in sft",
        "advantage",
    )  # fmt: skip
    assert [row[0] for row in table.rows] == list(range(-2, 7))
    assert [row[3] for row in table.rows] == [
        "system", "prompt", "completion", "completion", "tool", "tool", "completion",
        "completion", "padding",
    ]  # fmt: skip
    assert [row[5] for row in table.rows] == [0, 0, 1, 1, 1, 1, 1, 1, 0]
    assert [row[6] for row in table.rows] == [0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert [row[7] for row in table.rows] == [0, 1, 1, 1, 0, 0, 1, 1, 0]
    assert table.rows[2][2] == "w5"


def test_trained_prompt_tokens_stand_in_the_table(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, evidence: Callable[..., Evidence]
) -> None:
    """A dump pads prompts on the left; the rows shown begin inside the prompt."""
    made = capture(
        2,
        token_id=[[5, 6, STOP]],
        loss_mask=[[1, 1, 1]],
        prompt_token_id=[[PAD, 7, 8, 9]],
        prompt_mask=[[0, 1, 1, 1]],
        prompt_loss_mask=[[0, 0, 0, 1]],
    )
    table = evidence(CHECK, make_run(captures=[made], vocabulary=words)).tables[1]
    assert [(row[0], row[1], row[3], row[4], row[5]) for row in table.rows] == [
        (-3, 7, "prompt", 0, 0),
        (-2, 8, "prompt", 0, 0),
        (-1, 9, "prompt", 1, 0),
        (0, 5, "completion", 1, 1),
        (1, 6, "completion", 1, 1),
        (2, STOP, "completion", 1, 1),
    ]


@pytest.mark.parametrize(
    ("mask", "prompt", "first", "last"),
    [
        ([0, 0, 1, 1, 1, 1, 0], [0, 0, 0], 2, 2),  # late by two
        ([1, 1, 0, 0, 0, 0, 0], [0, 1, 1], -2, -2),  # early by two
        ([1, 1, 1, 0, 0, 0, 0], [0, 0, 0], 0, -1),  # without its stop token
        ([1, 1, 1, 1, 1, 1, 1], [1, 1, 1], -3, 3),
    ],
)
def test_first_and_last_trained_token(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    evidence: Callable[..., Evidence],
    mask: list[int],
    prompt: list[int],
    first: int,
    last: int,
) -> None:
    made = capture(
        2,
        token_id=[[5, 6, 7, STOP, PAD, PAD, PAD]] * 3,
        loss_mask=[mask, mask, [1, 1, 1, 1, 0, 0, 0]],
        prompt_loss_mask=[prompt, prompt, [0, 0, 0]],
    )
    ends = evidence(CHECK, make_run(captures=[made], vocabulary=words)).tables[2]
    assert ends.rows == ((first, last, 2), (0, 0, 1))
