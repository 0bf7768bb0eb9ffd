"""Special tokens of a chat template in the prompts, and the form of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, RolloutBatch, Run, Vocabulary

TOOL = "check_chat_template"
START, TURN, A, B = 5, 6, 7, 8
TEXTS = {0: "<pad>", 1: "</s>", START: "<|im_start|>", TURN: "user", A: "add", B: "2<3"}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}{% endfor %}"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def words(template: str = TEMPLATE) -> Vocabulary:
    return Vocabulary(TEXTS, frozenset({1}), 0, template=template)


def asked(capture: Callable[..., Capture], step: int, rows: Sequence[Sequence[int]]) -> Capture:
    """Prompts of these ids, padded on the left."""
    width = max(map(len, rows))
    ids = np.array([[0] * (width - len(row)) + list(row) for row in rows])
    return capture(step, prompt_token_id=ids, prompt_mask=ids > 0, token_id=np.ones_like(ids))


FRAMED, BARE = [START, TURN, A, B], [A, B]


def test_the_template_is_lost_between_two_captures(
    make_run: MakeRun, capture: Callable[..., Capture], measure: Measure
) -> None:
    captures = [asked(capture, s, [FRAMED, FRAMED]) for s in (1, 10, 20)]
    captures += [asked(capture, s, [BARE, BARE]) for s in (30, 40)]
    found = measure(TOOL, make_run(captures=captures, vocabulary=words()))
    assert (found["lost"], found["marked_before"], found["marked_after"]) == (True, 1.0, 0.0)
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 30)
    assert found["sampled"]


@pytest.mark.parametrize(
    "rows",
    [
        [[FRAMED, FRAMED]] * 4,  # always there
        [[BARE, BARE]] * 4,  # never there
        [[FRAMED, BARE]] * 4,  # some prompts have it
        [[FRAMED, FRAMED], [FRAMED, BARE], [BARE, BARE], [BARE, BARE]],  # a mix that shifts
        [[FRAMED, FRAMED], [BARE, BARE], [FRAMED, FRAMED], [FRAMED, FRAMED]],  # and comes back
        [[BARE, BARE], [BARE, BARE], [FRAMED, FRAMED], [FRAMED, FRAMED]],  # it is added
    ],
)
def test_prompts_that_did_not_lose_it(
    make_run: MakeRun,
    capture: Callable[..., Capture],
    measure: Measure,
    rows: list[list[list[int]]],
) -> None:
    captures = [asked(capture, 10 * i + 1, prompts) for i, prompts in enumerate(rows)]
    found = measure(TOOL, make_run(captures=captures, vocabulary=words()))
    assert not found["lost"]
    assert found["first_bad_step"] is None


@pytest.mark.parametrize(
    ("messages", "prompt", "template", "plain", "known"),
    [
        (False, "What is 2<3?", TEMPLATE, True, True),
        (False, "<|im_start|>user What?", TEMPLATE, False, True),  # templated by the user
        (True, "What is 2?", TEMPLATE, False, True),
        (False, "What is 2?", "", True, False),  # a base model without a template
        (False, "What is 2?", "{{ messages[0].content }}", True, False),
    ],
)
def test_the_form_of_the_prompts(
    make_run: MakeRun,
    batch: Callable[..., RolloutBatch],
    measure: Measure,
    messages: bool,
    prompt: str,
    template: str,
    plain: bool,
    known: bool,
) -> None:
    rollouts = [batch(1, rewards={"r": [0, 1]}, prompts=[prompt] * 2, messages=messages)]
    found = measure(TOOL, make_run(rollouts=rollouts, vocabulary=words(template)))
    assert (found["plain_prompts"], found["template_known"]) == (plain, known)
    assert found["marked_before"] is None


def test_nothing_that_tells(
    make_run: MakeRun, batch: Callable[..., RolloutBatch], missing: Callable[..., str]
) -> None:
    run = make_run(rollouts=[batch(1, rewards={"r": [0, 1]})], vocabulary=words())
    assert "captured prompt ids" in missing(TOOL, run)
