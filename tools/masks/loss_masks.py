"""Who is trained: loss masks of captures against token ids, and trained-token counts per step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.loss_units import Units, train_whole_batches
from firstbad.tools.masks.token_table import token_table
from firstbad.tools.probability.ratios import MicrobatchRows
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import (
    COMPLETION,
    TOOL,
    BoolArray,
    Capture,
    FloatArray,
    IntArray,
    Run,
    Signal,
)
from firstbad.tools.segments import OF_THE_BATCH, HeldToSettings, held_to_settings
from firstbad.tools.stats import pearson
from firstbad.tools.tokens import completion_end, pad_id, sources

FARTHEST = 8
"""Most places by which a mask is looked for."""


class Masks(Dated):
    """Token counts over all captures; the onset is that of the first wrong row."""

    n_captures: int
    n_captures_without: int
    """Captures that hold token ids and no loss mask of their shape."""
    n_rows: int
    n_tokens: int
    """Completion tokens, read off the token ids."""
    prompt_trained: int
    """Prompt tokens in the loss."""
    n_tool_tokens: int
    """Tokens that a tool or environment returned, where the source of tokens is known."""
    tool_trained: int
    """... of them in the loss."""
    padding_trained: int
    """Tokens after the first stop in the loss."""
    made_after_stop_share: float
    """Of those: sampled ones, which are not the pad id (where no file names it, not the commonest
    one there): generation went on. A pad id that is a stop token hides repeated stops."""
    share_rows_run_on: float
    """Of rows: sampled tokens, in the loss or not, stand behind a stop token of the same turn."""
    completion_untrained: int
    """Completion tokens outside the loss, in rows that are trained at all."""
    rows_untrained: int
    """Rows with no trained token."""
    share_rows_stop_untrained: float
    """Of finished rows: the stop token is outside the loss while the row is trained."""
    stop_untrained_since: float
    """... of the captures from the onset on, where there is one."""
    run_on_since: float
    """`share_rows_run_on` of these captures."""
    share_rows_shifted: float
    """Of rows: the mask is the right one moved by one to eight places."""
    share_wrong_shifted: float
    """... of those whose mask is wrong."""
    shift_tokens: int | None
    """By how many places most of them are moved, above 0 late."""
    shift_size: int | None
    """By how many tokens, whichever way."""
    share_rows_wrong: float
    finished_rows: int
    stops_guessed: bool
    """No file names the stop token; it was read off the rows."""
    completion_mask_differs: int
    """Rows whose completion mask disagrees with the ids (counts tokens after the stop)."""


@dataclass
class _Count:
    step: int
    rows: int = 0
    tokens: int = 0
    prompt: int = 0
    tool: int = 0
    tool_trained: int = 0
    padding: int = 0
    made: int = 0
    run_on: int = 0
    untrained: int = 0
    empty_rows: int = 0
    finished: int = 0
    stop_untrained: int = 0
    wrong: int = 0
    mask_differs: int = 0
    shifts: Counter[int] = field(default_factory=Counter)
    """Rows by the places that their mask is moved by."""
    ends: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Trained rows by the places of their first and last trained token, from the right ones."""


@tool
def check_masks(run: Run) -> Measured[Masks]:
    """Loss masks of the captured rows against the token ids.

    Expected: prompt 0, completion 1 up to and including the first stop token, nothing after it; in
    a dialogue this holds for each turn, and what tools return is 0. The end of a completion is
    read off the ids, not off the framework's own mask.

    Cannot tell: tokens that were never captured; whether an untrained row was meant (truncated
    rows may be), which is counted apart.
    """
    counts: list[_Count] = []
    guessed = False
    without = 0
    example: Table | None = None
    sound: Table | None = None
    for capture in run.captures:
        ids, mask = capture.arrays.get("token_id"), capture.arrays.get("loss_mask")
        if ids is None or mask is None or mask.shape != ids.shape:
            without += ids is not None
            continue
        wanted = example is None, sound is None
        count, was_guessed, shown = _count(run, capture, *wanted)
        guessed |= was_guessed
        sound = sound or shown
        if example is None and count.wrong:
            example = shown
        counts.append(count)
    if not counts:
        raise NoData("no captures that hold token ids and a loss mask")
    rows = sum(c.rows for c in counts)
    finished = sum(c.finished for c in counts)
    wrong = sum(c.wrong for c in counts)
    shifts = sum((c.shifts for c in counts), Counter[int]())
    shift = shifts.most_common(1)[0][0] if shifts else None
    bad = [c.step for c in counts if c.wrong > 0.02 * c.rows or c.run_on > 0.2 * c.rows]
    good = [c.step for c in counts if not bad or c.step < bad[0]]
    late = [c for c in counts if not bad or c.step >= bad[0]]
    metrics = Masks(
        n_captures=len(counts),
        n_captures_without=without,
        n_rows=rows,
        n_tokens=sum(c.tokens for c in counts),
        prompt_trained=sum(c.prompt for c in counts),
        n_tool_tokens=sum(c.tool for c in counts),
        tool_trained=sum(c.tool_trained for c in counts),
        padding_trained=sum(c.padding for c in counts),
        made_after_stop_share=_share(sum(c.made for c in counts), sum(c.padding for c in counts)),
        share_rows_run_on=_share(sum(c.run_on for c in counts), rows),
        completion_untrained=sum(c.untrained for c in counts),
        rows_untrained=sum(c.empty_rows for c in counts),
        share_rows_stop_untrained=_share(sum(c.stop_untrained for c in counts), finished),
        stop_untrained_since=_share(
            sum(c.stop_untrained for c in late), sum(c.finished for c in late)
        ),
        run_on_since=_share(sum(c.run_on for c in late), sum(c.rows for c in late)),
        share_rows_shifted=_share(shifts.total(), rows),
        share_wrong_shifted=_share(shifts.total(), wrong),
        shift_tokens=shift,
        shift_size=None if shift is None else abs(shift),
        share_rows_wrong=_share(sum(c.wrong for c in counts), rows),
        finished_rows=finished,
        stops_guessed=guessed,
        completion_mask_differs=sum(c.mask_differs for c in counts),
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    shown = example or sound  # without a wrong row there is one to check by eye
    tables = [_per_capture(counts), *([shown] if shown else []), _table_of_ends(counts)]
    text = (
        f"{rows} rows of {len(counts)} captures: {wrong} with a loss mask that differs from the ids"
    )
    if wrong:
        text += (
            f" ({metrics.prompt_trained} prompt tokens, "
            + (f"{metrics.tool_trained} of tools, " if metrics.n_tool_tokens else "")
            + f"{metrics.padding_trained} after the stop trained, "
            f"{metrics.completion_untrained} completion tokens not)"
        )
    if run_on := sum(c.run_on for c in counts):
        text += f"; in {run_on} sampled tokens follow the stop token"
    if without:
        text += f"; {without} captures without a loss mask of the shape of the ids"
    return Measured(
        metrics,
        text,
        tables=tuple(tables),
        window=(counts[0].step, counts[-1].step),
        signal="loss mask against token ids",
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _count(
    run: Run, capture: Capture, show_wrong: bool, show_sound: bool
) -> tuple[_Count, bool, Table | None]:
    end = completion_end(run, capture)
    real = end.real
    loss = np.asarray(capture.arrays["loss_mask"]) != 0
    prompt = capture.mask("prompt_loss_mask")
    if prompt is None:
        prompt = np.zeros((len(loss), 0), bool)
    trained = loss.any(axis=1) | prompt.any(axis=1)
    finished = end.stop_at >= 0
    right = loss == real
    rows = np.arange(len(loss))
    stop_out = finished & trained & ~loss[rows, np.maximum(end.stop_at, 0)]
    wrong = (~right.all(axis=1) & trained) | prompt.any(axis=1)
    shift = np.where(wrong, _shift(loss, real, prompt), 0)
    shifted = shift != 0
    only_stop = stop_out & (right.sum(axis=1) == real.shape[1] - 1)
    mask = capture.mask("completion_mask")
    differs = 0
    if mask is not None and mask.shape == real.shape:
        differs = int((mask & ~real).any(axis=1).sum())
    ids, source = np.asarray(capture.arrays["token_id"]), sources(capture)
    tool = np.zeros_like(real) if source is None else np.asarray(source == TOOL)
    behind = ~real & ~tool
    beyond = ids[loss & behind]
    count = _Count(
        step=capture.step,
        rows=len(loss),
        tokens=int(real.sum()),
        prompt=int(prompt.sum()),
        tool=int(tool.sum()),
        tool_trained=int((loss & tool).sum()),
        padding=len(beyond),
        made=int((beyond != pad_id(run, beyond)).sum()),
        run_on=_rows_run_on(run, ids, behind & (end.stop_at >= 0)[:, None], source),
        untrained=int((~loss & real)[trained].sum()),
        empty_rows=int((~trained).sum()),
        finished=int((finished & trained).sum()),
        stop_untrained=int((only_stop & ~shifted).sum()),
        shifts=Counter(shift[shifted].tolist()),
        wrong=int(wrong.sum()),
        mask_differs=differs,
        ends=_ends(loss, real, prompt),
    )
    shown = None
    if len(real) and (show_wrong if wrong.any() else show_sound):
        row = int(np.argmax(wrong if wrong.any() else trained))
        shown = token_table(run, capture, real, prompt, row)
    return count, end.guessed, shown


def _ends(loss: BoolArray, real: BoolArray, prompt: BoolArray) -> Counter[tuple[int, int]]:
    """Rows by how far the first and the last trained token are from those of the completion.

    A trained prompt token counts as one place before the completion.
    """
    use = (loss.any(axis=1) | prompt.any(axis=1)) & real.any(axis=1)
    n = real.shape[1]
    first = np.where(prompt.any(axis=1), -prompt.sum(axis=1), loss.argmax(axis=1))
    first = first - real.argmax(axis=1)
    last = np.where(loss.any(axis=1), n - 1 - loss[:, ::-1].argmax(axis=1), -1)
    last = last - (n - 1 - real[:, ::-1].argmax(axis=1))
    return Counter(zip(first[use].tolist(), last[use].tolist(), strict=True))


def _table_of_ends(counts: list[_Count]) -> Table:
    found = sum((c.ends for c in counts), Counter[tuple[int, int]]())
    return Table(
        title="first and last trained token, in places from those of the completion",
        columns=("first", "last", "rows"),
        rows=tuple((*ends, rows) for ends, rows in found.most_common(8)),
        cut_rows=max(0, len(found) - 8),
    )


def _rows_run_on(
    run: Run, ids: npt.NDArray[np.generic], behind: BoolArray, source: IntArray | None
) -> int:
    """Rows with a sampled token behind their stop, (R, T) `behind`; the pad id is none."""
    if source is not None:
        behind = behind & (source == COMPLETION)
    made = behind & (ids != pad_id(run, ids[behind]))
    return int(made.any(axis=1).sum())


def _shift(loss: BoolArray, real: BoolArray, prompt: BoolArray) -> IntArray:
    """(R,) places by which a row's mask is the right one moved (what falls off an edge is lost).

    0: by none. Above 0: late, or without its first token. Below 0: early, with as many prompt
    tokens trained; without these it is a mask that lacks its end.
    """
    found = np.zeros(len(loss), np.int64)
    length = real.sum(axis=1)
    first_lost = real.copy()
    first_lost[:, 0] = False
    for k in range(1, min(FARTHEST, real.shape[1] - 1) + 1):
        late, early = np.zeros_like(real), np.zeros_like(real)
        late[:, k:], early[:, :-k] = real[:, :-k], real[:, k:]
        moved = (loss == late).all(axis=1) & ~prompt.any(axis=1)
        if k == 1:
            moved |= (loss == first_lost).all(axis=1) & ~prompt.any(axis=1)
        ahead = (loss == early).all(axis=1) & (prompt.sum(axis=1) == k)
        open_to = (found == 0) & (length > k)
        found = np.where(open_to & moved, k, np.where(open_to & ahead, -k, found))
    return found


def _per_capture(counts: list[_Count]) -> Table:
    return Table(
        title="masks per capture",
        columns=(
            "step",
            "rows",
            "wrong rows",
            "prompt trained",
            "tool trained",
            "sampled after the stop and trained",
            "padding trained",
            "untrained",
            "rows sampled on after the stop",
        ),
        rows=tuple(
            (
                c.step,
                c.rows,
                c.wrong,
                c.prompt,
                c.tool_trained,
                c.made,
                c.padding - c.made,
                c.untrained,
                c.run_on,
            )
            for c in counts[:60]
        ),
        cut_rows=max(0, len(counts) - 60),
    )


class TrainedTokens(HeldToSettings):
    """Logged trained tokens against completion tokens, per step."""

    n_steps: int
    ratio_median: float
    """Trained over completion tokens, median over steps; 1 expected."""
    ratio_worst: float
    """Median ratio of the steps from the onset on that are off 1."""
    excess_per_row: float
    """Trained less completion tokens per row, on those steps."""
    off_steps_share: float
    """Of steps: ratio off 1 by more than 2 %."""
    excess_steady: bool
    """The surplus per row does not follow the longest completion of the step."""
    lack_is_one: bool
    """One token per row is missing, within a tenth."""


@tool
@held_to_settings(*OF_THE_BATCH)
def count_trained_tokens(run: Run) -> Measured[TrainedTokens]:
    """Logged number of trained tokens against the completion tokens of the same step.

    The logged count is a mean over micro-batches; completion tokens are mean length times rows
    over micro-batches. A surplus of some tokens per row is prompt or padding, a lack of one per row
    a stop token or a shift.

    Where no config tells the rows of a micro-batch, they are the whole number that the count over
    the mean length holds for three steps or more: sound counts do, wrong ones vary with the
    lengths. Steps with truncated rows are left out where those may not be in the loss.

    Cannot tell: which tokens; that needs a capture (see `check_masks`). Without configured rows: a
    count that is wrong at all steps.
    """
    trained = run.signals.get("trained_tokens_mean")
    length = run.signals.get("completion_length_mean")
    if trained is None or length is None:
        raise NoData("no logged count of trained tokens and mean completion length")
    configured = MicrobatchRows(run)
    trained = _of_whole_batches(run, trained, length)
    steps = [int(s) for s in trained.steps if length.at(int(s))]
    known = [configured.at(step) for step in steps]
    cut = run.signals.get("truncation_rate")
    masked = run.config.flag("mask_truncated_completions")
    if cut is not None and (masked or (masked is None and not all(known))):
        steps = [s for s in steps if not cut.at(s)]
        known = [configured.at(step) for step in steps]
    if len(steps) < 5:
        raise NoData(
            "trained tokens and mean length share fewer than five steps without truncated rows,"
            " which may be left out of the loss (`mask_truncated_completions`)"
            if cut is not None and cut.values.any()
            else "trained tokens and mean length share fewer than five steps"
        )
    count = np.array([trained.at(s) for s in steps], float)
    mean = np.array([length.at(s) for s in steps], float)
    held = None if all(known) else _whole_rows(count / mean)
    if not all(known) and held is None:
        raise NoData("no config tells the rows of a micro-batch, nor do the trained tokens")
    rows = np.array([k or held for k in known], float)
    ratio = count / (mean * rows)
    off = np.abs(ratio - 1) > 0.02
    start = next(
        (i for i in range(len(off)) if off[i : i + 3].sum() >= 3 and off[i : i + 5].mean() >= 0.8),
        None,
    )
    # A fault that was mended leaves sound steps after it; they would hide it in the median.
    side = off & (np.arange(len(off)) >= start) if start is not None else np.ones_like(off)
    metrics = TrainedTokens(
        n_steps=len(steps),
        ratio_median=round(float(np.median(ratio)), 6),
        ratio_worst=round(float(np.median(ratio[side])), 6),
        excess_per_row=round(float(np.median((count / rows - mean)[side])), 4),
        off_steps_share=round(float(off.mean()), 6) if start is not None else 0.0,
        excess_steady=_steady(run, steps, count / rows - mean, side),
        lack_is_one=bool(abs(float(np.median((count / rows - mean)[side])) + 1) < 0.1),
        last_good_step=steps[start - 1] if start else (None if start == 0 else steps[-1]),
        first_bad_step=None if start is None else steps[start],
        from_start=start == 0,
    )
    return Measured(
        metrics,
        f"trained over completion tokens: median {metrics.ratio_median:.3f}"
        + (
            f", {metrics.ratio_worst:.3f} from step {steps[start]} "
            f"({metrics.excess_per_row:+.2f} tokens a row)"
            if start is not None
            else ""
        ),
        window=(steps[0], steps[-1]),
        signal="trained tokens per step",
    )


def _of_whole_batches(run: Run, trained: Signal, length: Signal) -> Signal:
    """The count as a mean over all steps of a rollout batch, as the mean length is one.

    A step may train a part of its batch (`steps_per_generation`).
    """
    if train_whole_batches(run):
        return trained
    units = Units(run, length.steps, trained.steps)
    return replace(trained, steps=units.starts, values=units.logged(trained))


def _whole_rows(per_length: FloatArray) -> float | None:
    """The whole number of rows that most steps hold, three of them in a row; None: there is none.

    `per_length` (S,) is trained tokens over the mean completion length.
    """
    nearest = np.round(per_length)
    whole = (np.abs(per_length - nearest) < 0.01) & (nearest >= 1)
    repeated = whole[2:] & whole[1:-1] & whole[:-2]
    repeated &= (nearest[2:] == nearest[1:-1]) & (nearest[1:-1] == nearest[:-2])
    if not repeated.any():
        return None
    values, times = np.unique(nearest[2:][repeated], return_counts=True)
    return float(values[np.argmax(times)])


def _steady(run: Run, steps: list[int], excess: FloatArray, side: BoolArray) -> bool:
    longest = run.signals.get("completion_length_max")
    if longest is None:
        return False
    pairs = [
        (value, e)
        for s, e, counted in zip(steps, excess, side, strict=True)
        if counted and (value := longest.at(s)) is not None
    ]
    if len(pairs) < 5:
        return False
    x, y = np.array(pairs).T
    r = pearson(x, y)
    return r is None or r < 0.6
