"""`--judge`: ask the user's command once, keep its answers in the incident folder, read them back.

Rows go in as JSON lines (`id`, `step`, `prompt`, `completion`, `gold`), answers come out as JSON
lines (`id` and `score`, or `id` and `error`). The command starts once per batch of rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstbad.agent.files import write_atomic
from firstbad.agent.incident import Incident
from firstbad.agent.judge_process import Reply, ask, words_of
from firstbad.agent.plain import plain
from firstbad.agent.progress import OnProgress, Progress, silent
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.judge_breaks import longest_equal
from firstbad.tools.judge_scores import JudgeScores
from firstbad.tools.run import RolloutBatch, Run

ROWS = 4000
"""Most rows that are judged: the earliest, and the others evenly spread over the run."""
EARLIEST = 300
ROWS_EACH = 500
"""Rows of a batch."""
AGAIN = 20
"""Most rows of either kind that are asked about a second time, in the end."""
ANSWER_BYTES = 4096
"""What the answer for one row may take, on the average of a batch."""
LINES_EACH = 4
"""Lines that are read, for each row asked about."""
ERROR_CHARACTERS = 200
COUNTS = (
    "asked",
    "not_finite",
    "unknown",
    "twice",
    "unreadable",
    "batches",
    "timeouts",
    "crashes",
    "too_long",
)


@dataclass(frozen=True)
class JudgeOrder:
    """What was asked for."""

    command: str
    batch_seconds: float = 120.0
    """For one start of the command."""
    seconds: float = 600.0
    """In all."""


def check_order(order: JudgeOrder, run: Run) -> None:
    """Refuse what can't work before anything is written.

    Raises:
        UserError: no such program, no time, or nothing to judge.
    """
    words_of(order.command)
    if not (0 < order.batch_seconds < math.inf and 0 < order.seconds < math.inf):
        raise UserError("--judge: its time limits must be above 0 s, and finite")
    if not run.rollouts:
        raise UserError("--judge: the run has no rollouts to be judged")


def order_of(record: Mapping[str, Any]) -> JudgeOrder:
    """What was asked for, from an incident's record."""
    limits = float(record["batch_seconds"]), float(record["seconds"])
    return JudgeOrder(str(record["command"]), *limits)


def file_of(incident: Incident) -> Path:
    """Where the answers of the judge are kept."""
    return incident.folder / "judge.jsonl"


def check_resumed(incident: Incident, said: JudgeOrder | None) -> None:
    """Refuse to start a judge that a folder from elsewhere names and the user does not.

    Raises:
        UserError: it is to be asked yet, lies outside of the home folder, and was not repeated; or
            another command was given than the incident began with.
    """
    order = incident.record().judge
    kept = str(order["command"]) if order else ""
    if said is not None and said.command != kept:
        raise UserError("--resume keeps the judge that the incident began with; begin anew")
    asked = not order or file_of(incident).is_file()
    if said is None and not asked and not incident.under_home:
        raise UserError(
            f"the incident names a judge and lies outside of your own incidents; where the command "
            f"is yours, repeat it: --judge {shlex.quote(plain(kept, one_line=True))}"
        )


def with_judge(incident: Incident, run: Run, tell: OnProgress = silent) -> Run:
    """The run with the answers of its incident's judge; asked now where that was not done yet.

    Raises:
        UserError: the judge gave no score at all, or the file is damaged.
    """
    order = incident.record().judge
    if order:
        if not file_of(incident).is_file():
            handle, command = incident.handle, shlex.quote(str(order["command"]))
            again = handle if incident.under_home else f"{handle} --judge {command}"
            answers = ask_judge(run, order_of(order), again, tell)
            write_atomic(file_of(incident), answers)
            incident.log("judged")
        run.judge = read_answers(file_of(incident))
    return run


def ask_judge(run: Run, order: JudgeOrder, handle: str, tell: OnProgress = silent) -> str:
    """The text of the file of answers.

    Raises:
        UserError: not one score came back.
    """
    words, end = words_of(order.command), time.monotonic() + order.seconds
    counts, said, last = Counter(dict.fromkeys(COUNTS, 0)), dict[str, dict[str, Any]](), None
    rows = chosen(run)
    for i in range(0, len(rows), ROWS_EACH):
        batch = rows[i : i + ROWS_EACH]
        counts["asked"] += len(batch)
        left = min(order.batch_seconds, end - time.monotonic())
        if left <= 0:
            continue
        tell(Progress("asked", f"asking the judge: {i} of {len(rows)} rows are done"))
        last = ask(words, _lines(batch), seconds=left, most_bytes=ANSWER_BYTES * len(batch))
        counts["batches"] += 1
        _take(last, {_id(b.step, row) for b, row in batch}, said, counts)
        if not said:  # what fails on the first rows fails on all
            break
    if not any("score" in answer for answer in said.values()):
        raise UserError(
            f"--judge: {_why(last, counts, said)}; mend it, then go on with: "
            f"firstbad investigate --resume {handle}"
        )
    answered = {name: (b, row) for b, row in rows if (name := _id(b.step, row)) in said}
    left = min(order.batch_seconds, end - time.monotonic())
    if left > 0:
        again = to_ask_again({n: said[n]["score"] for n in answered if "score" in said[n]})
        tell(Progress("asked", f"asking the judge again about {len(again)} rows"))
        batch = [answered[name] for name in again]
        last = ask(words, _lines(batch), seconds=left, most_bytes=ANSWER_BYTES * len(batch))
        second = dict[str, dict[str, Any]]()
        _take(last, set(again), second, Counter())
        for name, answer in second.items():
            if "score" in answer:
                said[name]["again"] = answer["score"]
    head = {"schema": 1, **{name: counts[name] for name in COUNTS}}
    answers = ({"id": name, **said[name]} for name in answered)
    return "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in (head, *answers))


def chosen(run: Run) -> list[tuple[RolloutBatch, int]]:
    """Rows to be judged, in order: all, or the earliest and every so many-th of the others."""
    rows = [(batch, row) for batch in run.rollouts.batches() for row in range(len(batch))]
    if len(rows) <= ROWS:
        return rows
    first, rest = rows[:EARLIEST], rows[EARLIEST:]
    return first + rest[:: math.ceil(len(rest) / (ROWS - EARLIEST))]


def to_ask_again(scores: Mapping[str, float]) -> list[str]:
    """Names of the rows whose second answer tells a judge that broke on the way from a sound one.

    A judge that broke gives one score for all rows. Rows of the longest stretch with one score come
    first: another score for them now says that it had broken there, for a time or at a place of
    each batch. The earliest rows with any other score come last: that one for all of them now says
    that it is broken since.

    Args:
        scores: first score by name, in the order in which the rows were asked about.
    """
    names, values = list(scores), list(scores.values())
    start, stop = longest_equal(values)
    stretch = names[start:stop]
    others = [name for name in names if scores[name] != values[start]]
    return stretch[:: math.ceil(len(stretch) / AGAIN)] + others[:AGAIN]


def _id(step: int, row: int) -> str:
    return f"{step}:{row}"


def _lines(rows: Sequence[tuple[RolloutBatch, int]]) -> bytes:
    """The rows as the judge gets them; not what the run's own reward said of them."""
    text = (
        json.dumps(
            {
                "id": _id(batch.step, row),
                "step": batch.step,
                "prompt": batch.prompts[row],
                "completion": batch.completions[row],
                "gold": None if batch.gold is None else batch.gold[row],
            }
        )
        for batch, row in rows
    )
    return "".join(line + "\n" for line in text).encode("ascii")


def _take(
    reply: Reply, asked: set[str], said: dict[str, dict[str, Any]], counts: Counter[str]
) -> None:
    """Add the answers of one batch; of two for a row the first one counts."""
    for line in reply.out.split(b"\n")[: LINES_EACH * len(asked)]:
        if not line.strip():
            continue
        try:
            answer = json.loads(line)
            name, score, error = answer["id"], answer.get("score"), answer.get("error")
            value = None if score is None else float(score)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            counts["unreadable"] += 1
            continue
        if not isinstance(name, str) or name not in asked:
            counts["unknown"] += 1
        elif name in said:
            counts["twice"] += 1
        elif error is not None:
            said[name] = {"error": plain(str(error), one_line=True)[:ERROR_CHARACTERS]}
        elif value is None or isinstance(score, str):
            counts["unreadable"] += 1
        elif not math.isfinite(value):
            counts["not_finite"] += 1
        else:
            said[name] = {"score": value}
    counts["timeouts"] += reply.stopped == "timeout"
    counts["too_long"] += reply.stopped == "too_long"
    counts["crashes"] += not reply.stopped and reply.code != 0


def _why(reply: Reply | None, counts: Mapping[str, int], said: Mapping[str, Any]) -> str:
    """Why there is no score, in a line."""
    if reply is None:
        return "the judge was not asked: there are no rows"
    ended = {
        "timeout": "it was stopped at its time limit",
        "too_long": "it was stopped for writing too much",
        "": f"it ended with exit code {reply.code}",
    }[reply.stopped]
    wrong = [f"{counts[n]} {n.replace('_', ' ')}" for n in COUNTS[1:5] if counts[n]]
    errors = [answer["error"] for answer in said.values() if "error" in answer]
    told = [line for line in reply.err.splitlines() if line.strip()]
    text = f"the judge gave no score: {ended}"
    text += f", of its answers {', '.join(wrong)}" if wrong else ""
    text += f", {len(errors)} errors such as `{errors[0]}`" if errors else ""
    return text + (f"; it said `{plain(told[-1], one_line=True)[:200]}`" if told else "")


def read_answers(path: Path) -> JudgeScores:
    """The answers as they were stored.

    Raises:
        UserError: the file is damaged.
    """
    try:
        raw = path.read_bytes()
        lines = [json.loads(line) for line in raw.splitlines()]
        counts = {name: int(lines[0][name]) for name in COUNTS}
        scores = {key: float(line["score"]) for key, line in _keyed(lines[1:]) if "score" in line}
        errors = {key: str(line["error"]) for key, line in _keyed(lines[1:]) if "error" in line}
        again = {key: float(line["again"]) for key, line in _keyed(lines[1:]) if "again" in line}
        if not all(map(math.isfinite, (*scores.values(), *again.values()))):
            raise ValueError("a score is not finite")
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(f"`{path}` can't be read: {error}; remove it, then resume") from error
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()[:16]}"
    source = Source(kind="judge", ref=path.name, digest=digest)
    return JudgeScores(scores, errors, counts, source, again)


def _keyed(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[int, int], Any]]:
    for line in lines:
        step, row = line["id"].split(":")
        yield (int(step), int(row)), line
