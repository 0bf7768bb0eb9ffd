"""The memo: structure, traced numbers, determinism, hostile text, and its three outcomes.

The incident is that of the hand-written example memo (a verifier outage at step 66), with its
numbers; the run is made of plain formulas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import Environment, UndefinedError
from markdown_it import MarkdownIt

from firstbad.agent.memo.build import Memo, build_memo
from firstbad.agent.memo.glossary import words_used
from firstbad.agent.memo.head import first_page
from firstbad.agent.remarks import Remark
from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.model import Playbook
from firstbad.playbooks.results import (
    CheckResult,
    Clause,
    Finding,
    LayerResult,
    LeastBad,
    NotChecked,
    Onset,
    PlaybookRef,
    Request,
    Usage,
    Verdict,
    Waiver,
)
from firstbad.tools.evidence import Evidence, Source, StepWindow, Table
from firstbad.tools.run import FloatArray, RolloutBatch, Rollouts, Run, Signal, Signals

ONSET = 66
STEPS = 120

# ------------------------------------------------------------------------------------- a small case

ASKS = {
    "window": "Which step was first, and in which signal?",
    "records": "Are the records what they claim?",
    "probability": "Can old and new probability be compared?",
    "optimizer": "Are the steps of the size that was meant?",
    "reward": "Does the reward measure what it should?",
    "samples": "How many samples decide?",
}
NUMBERS = {
    "window": "0",
    "records": "0.5",
    "probability": "1",
    "optimizer": "4",
    "reward": "5",
    "samples": "C3",
}


def playbook() -> Loaded:
    gate = ({"strength": "direct"},)
    layers = [
        {
            "id": layer,
            "number": NUMBERS[layer],
            "asks": asks,
            "checks": [{"id": "main", "asks": f"Asked of {layer}.", "evidence": {}, "gate": gate}],
        }
        for layer, asks in ASKS.items()
    ]
    book = Playbook.model_validate(
        {
            "name": "crash",
            "title": "Crash",
            "window": (),
            "outcome_holds": {},
            "layers": layers,
            "decisions": [
                {
                    "result": "one reward part turns constant, judged right",
                    "causes": ["reward.verifier_outage"],
                    "found_by": ["reward.main"],
                    "conclusion": "scores were not judged",
                    "do": "replay the step through the verifier",
                },
                {
                    "result": "r",
                    "causes": ["id.rows"],
                    "found_by": ["reward.main"],
                    "conclusion": "OTHER CAUSE",
                    "do": "d",
                },
                {
                    "result": "r",
                    "causes": ["reward.verifier_outage"],
                    "found_by": ["reward.scoring_errors"],
                    "conclusion": "OTHER CHECK",
                    "do": "d",
                },
            ],
        }
    )
    return Loaded(book, PlaybookRef(name="crash", digest="sha256:0123456789abcdef"), "crash.yaml")


def evidence(id_: str, tool: str, summary: str, **fields: Any) -> Evidence:
    metrics = fields.pop("metrics", {})
    return Evidence(
        id=id_,
        tool=tool,
        tool_version="0.1.0",
        args=fields.pop("args", {}),
        window=fields.pop("window", StepWindow(first=1, last=STEPS)),
        status=fields.pop("status", "measured"),
        metrics=metrics,
        summary=summary,
        **fields,
    )


def wave(step: int, size: float = 1.0) -> float:
    return round(size * float(np.sin(step * 1.7)), 4)


def case_evidence() -> dict[str, Evidence]:
    judged = tuple(
        (step, 24, round(0.78 + wave(step, 0.06), 4), 0.0 if step >= ONSET else 0.8)
        for step in range(1, STEPS + 1)
    )
    groups = tuple(
        (step, 6 if step >= ONSET else 0, 0 if step >= ONSET else 4, 0 if step >= ONSET else 2)
        for step in range(1, STEPS + 1)
    )
    source = Source(kind="metrics", ref="trainer_state.json", digest="sha256:91f2c3d4e5f60718")
    found = [
        evidence(
            "E1",
            "find_first_bad",
            "`reward` left its band first, at step 66 (with rewards/correctness/mean)",
            args={"noticed_step": 66},
            metrics={"is_onset": True, "first_bad_step": 66, "last_good_step": 65, "n_moved": 2},
            tables=(
                Table(
                    title="signals that moved",
                    columns=("signal", "last good", "first bad", "before", "after", "band widths"),
                    rows=(
                        ("rewards/correctness/mean", 65, 66, 0.83333, 0.0, 13.5),
                        ("reward", 65, 66, 1.0864583, 0.2632, 10.9),
                        ("step_time", 65, 66, 0.174, 0.729, 49.2),
                    ),
                ),
            ),
            sources=(source,),
            signal="reward",
        ),
        evidence("E2", "check_rows", "48 rows a step, 8 per prompt", metrics={"n_uneven": 0}),
        evidence("E3", "check_ratios", "1 update per batch, largest ratio 1", metrics={"n_off": 0}),
        evidence(
            "E4",
            "check_learning_rate",
            "learning rate follows its schedule",
            metrics={"worst_relative": 1.25e-07},
        ),
        evidence(
            "E7",
            "compare_judges",
            "judged 1,004 of 1,304 right after step 66, all scored 0",
            args={"judge": "exact", "from_step": 66, "tolerance": None},
            metrics={
                "agreement_before": 0.99937,
                "agreement_after": 0.22999999,
                "n_judged": 2880,
                "right_scored_zero": 1004,
            },
            tables=(
                Table(
                    title="per step: judged and logged accuracy",
                    columns=("step", "rows", "judged", "logged"),
                    rows=judged,
                ),
            ),
            sources=(
                Source(
                    kind="rollouts", ref="completions/1.parquet", digest="sha256:0000000000000001"
                ),
                source,
            ),
            signal="judged accuracy",
        ),
        evidence(
            "E8",
            "read_rollouts",
            "8 rollouts of steps 65 and 66",
            tables=(
                Table(
                    title="rollouts",
                    columns=("row", "before: prompt", "before: completion", "after: completion"),
                    rows=((0, "sort: 3 1", "<answer>1 3</answer>", "<answer> 1 3 </answer>"),),
                ),
            ),
        ),
        evidence(
            "E11",
            "count_groups",
            "from step 66 on 330 of 330 groups are all wrong",
            metrics={"all_wrong_share": 1.0, "n_groups": 330},
            tables=(
                Table(
                    title="per step: groups by outcome",
                    columns=("step", "all wrong", "mixed", "all right"),
                    rows=groups,
                ),
            ),
        ),
        evidence(
            "E12",
            "check_masks",
            "no captures in this run",
            status="no_data",
            metrics=None,
            window=None,
        ),
    ]
    return {e.id: e for e in found}


def clause(measure: str, op: str, limit: float, observed: Any, **fields: Any) -> Clause:
    held = fields.pop("held", False)
    return Clause(
        measure=measure,
        role=fields.pop("role", "fail_if"),
        op=op,
        limit=limit,
        observed=observed,
        held=held,
        evidence=fields.pop("evidence", None),
    )


def check(layer: str, outcome: str, message: str, **fields: Any) -> CheckResult:
    values: dict[str, Any] = {
        "playbook": "crash",
        "layer": layer,
        "check": "main",
        "outcome": outcome,
        "strength": "direct",
        "required": True,
        "depends_on": (),
        "reason": "bounds_held",
        "clauses": (),
        "evidence": (),
        "message": message,
    }
    return CheckResult(**{**values, **fields})


def layer(name: str, outcome: str, reason: str, strength: str | None = "direct") -> LayerResult:
    return LayerResult.model_validate(
        {
            "id": name,
            "number": NUMBERS[name],
            "outcome": outcome,
            "strength": strength,
            "reason": reason,
        }
    )


CHECKS = (
    check("window", "pass", "`reward` left its band first, at step 66", evidence=("E1",)),
    check("records", "pass", "48 rows a step, 8 per prompt", evidence=("E2",)),
    check(
        "probability",
        "pass",
        "1 update per batch, largest ratio 1",
        strength="declared",
        evidence=("E3",),
        excludes_not="a sampler that differs from the trainer",
        clauses=(clause("ratios.n_off", ">", 0, 0, evidence="E3"),),
    ),
    check("optimizer", "pass", "learning rate follows its schedule", evidence=("E4",)),
    check(
        "reward",
        "fail",
        "judged 1,004 of 1,304 right after step 66, all scored 0",
        reason="bound_broken",
        evidence=("E7", "E11"),
        clauses=(
            clause("judge.n_judged", ">=", 200.0, 2880, role="needs", held=True, evidence="E7"),
            clause("judge.agreement_after", "<", 0.95, 0.22999999, held=True, evidence="E7"),
            clause("judge.agreement_before", "<", 0.9, 0.99937, evidence="E7"),
        ),
    ),
    check(
        "samples",
        "not_reached",
        "",
        strength=None,
        reason="depends_on_open",
        depends_on=("reward",),
        blocked_by=("reward",),
    ),
    check(
        "samples",
        "fail",
        "from step 66 on 330 of 330 groups are all wrong",
        check="composition",
        reason="bound_broken",
        evidence=("E11",),
        clauses=(clause("groups.all_wrong_share", ">", 0.5, 1.0, held=True, evidence="E11"),),
    ),
)

LEADING = Finding(
    id="F1",
    cause="reward.verifier_outage",
    layer="reward",
    check="main",
    claim="The correctness verifier stopped judging at step 66 and its failures are scored 0.",
    first_bad=Onset(last_good=65, first_bad=66, signal="judged accuracy"),
    supports=("E7", "E11"),
    confidence="high",
    refuted_by="judged accuracy after the onset near 0",
    remedy="make the verifier raise or mark the sample as unjudged (`fallback score 0.0`)",
    remedy_kind="fixes",
    dilutes="lower learning rate, larger batch",
    ruled_out=("prompts became too hard: judged accuracy did not fall (0.77)",),
    independent=True,
)
SECOND = Finding(
    id="F2",
    cause="collapse.all_wrong",
    layer="samples",
    check="composition",
    claim="All groups are all wrong from step 66 on.",
    first_bad=Onset(last_good=65, first_bad=66, signal="groups"),
    supports=("E11",),
    confidence="medium",
    refuted_by="a mixed group",
    remedy="none of its own",
    remedy_kind="experiment",
    mechanism_of="F1",
)


def incident(**changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "incident": "20260101-000000-abcd",
        "run": "trl:/runs/otter",
        "framework": "trl",
        "complaint": "reward dropped to a quarter at step 66",
        "outcome": "incident",
        "headline": LEADING.claim,
        "window": "onset",
        "first_bad": LEADING.first_bad,
        "noticed_step": 70,
        "layers": (
            layer("window", "pass", "`reward` left its band first, at step 66"),
            layer("records", "pass", "48 rows a step, 8 per prompt"),
            layer("probability", "pass", "1 update per batch, largest ratio 1", "declared"),
            layer("optimizer", "pass", "learning rate follows its schedule"),
            layer("reward", "fail", "judged 1,004 of 1,304 right after step 66, all scored 0"),
            layer("samples", "not_reached", "an earlier layer has not passed", None),
        ),
        "checks": CHECKS,
        "findings": (LEADING, SECOND),
        "notes": ("`frac_reward_zero_std` reads 0 although equal groups exist: harmless here.",),
        "conditional_on": (),
        "waivers": (),
        "not_checked": (NotChecked(layer="samples", check="main", why="depends on reward"),),
        "requests": (),
        "resume_from": "checkpoint-60",
        "playbooks": (PlaybookRef(name="crash", digest="sha256:0123456789abcdef"),),
        "usage": Usage(tool_calls=8, seconds=0.734),
        "versions": {"firstbad": "0.1.0"},
    }
    return Verdict(**{**values, **changes})


def healthy(**changes: Any) -> Verdict:
    layers = tuple(
        layer(name, "pass", "all bounds held", "declared" if name == "probability" else "direct")
        for name in NUMBERS
    )
    return incident(
        outcome="healthy",
        headline="Every layer passed and no check failed.",
        window="steady",
        first_bad=Onset(last_good=None, first_bad=None, signal=""),
        layers=layers,
        checks=CHECKS[:4],
        findings=(),
        not_checked=(),
        resume_from=None,
        **changes,
    )


def undetermined(**changes: Any) -> Verdict:
    layers = (
        layer("window", "pass", "an onset at 66"),
        layer("records", "inconclusive", "rows: no rollouts in this run", None),
        *(
            layer(n, "not_reached", "an earlier layer has not passed", None)
            for n in list(NUMBERS)[2:]
        ),
    )
    checks = (
        CHECKS[0],
        check(
            "records",
            "inconclusive",
            "no rollouts in this run",
            strength=None,
            reason="evidence_missing",
            evidence=("E12",),
            clauses=(clause("rows.n_rows", ">=", 100.0, None, role="needs", held=None),),
        ),
    )
    return incident(
        outcome="undetermined",
        headline="No failed check, but layer `records` could not be decided.",
        layers=layers,
        checks=checks,
        findings=(),
        resume_from=None,
        requests=(
            Request(
                layer="records",
                need="the rollouts of steps 60 to 70",
                command="firstbad investigate trl:/runs/otter --resume 20260101-000000-abcd",
                decides="whether the rows still form groups",
            ),
        ),
        **changes,
    )


def run_of(n: int = STEPS, onset: int = ONSET) -> Run:
    steps = np.arange(1, n + 1, dtype=np.int64)
    noise = np.sin(steps * 12.9898) * 0.04

    def signal(name: str, key: str, values: FloatArray) -> Signal:
        return Signal(name=name, steps=steps, values=values, source_key=key)

    fell = np.where(steps >= onset, 0.0, 1.0)
    found = [
        signal("reward_mean", "reward", 0.26 + 0.82 * fell + noise),
        signal("reward_part/correctness", "rewards/correctness/mean", 0.83 * fell + noise * fell),
        signal("reward_part/format", "rewards/format/mean", 0.9 + noise),
        signal("entropy", "entropy", 1.1 + noise),
        signal("kl_ref", "kl", 0.05 + noise * 0.2),
        signal("grad_norm_preclip", "grad_norm", 0.8 + noise * 3),
        signal("completion_length_mean", "completions/mean_length", 15 + noise * 10),
        signal("step_time", "step_time", 0.174 + 0.55 * (1 - fell) + noise * 0.1),
    ]
    return Run(
        ref="trl:/runs/otter",
        root=Path("/runs/otter"),
        framework="trl",
        signals=Signals(known={s.name: s for s in found}),
    )


def memo(
    verdict: Verdict | None = None,
    found: Mapping[str, Evidence] | None = None,
    run: Run | None = None,
) -> Memo:
    return build_memo(verdict or incident(), found or case_evidence(), run, playbook())


# ------------------------------------------------------------------------------------------ helpers


def text_of(html: str) -> str:
    """The words of a page, without style, tags and drawings."""
    import html as entities

    html = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", entities.unescape(re.sub(r"<[^>]*>", " ", html)))


def tokens_of(markdown: str) -> set[str]:
    """Kinds of tokens that a Markdown parser with HTML, tables and bare links finds."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    kinds: set[str] = set()
    for token in parser.parse(markdown):
        kinds.add(token.type)
        kinds |= {child.type for child in token.children or ()}
    return kinds


def prose_of(markdown: str) -> list[str]:
    """Text outside code, line by line."""
    parsed = MarkdownIt("commonmark").enable("table").parse(markdown)
    return [
        "".join(child.content for child in token.children or () if child.type == "text")
        for token in parsed
        if token.type == "inline"
    ]


def rows_of(markdown: str) -> list[int]:
    """Cells of each table row."""
    parsed = MarkdownIt("commonmark").enable("table").parse(markdown)
    rows: list[int] = []
    for token in parsed:
        if token.type == "tr_open":
            rows.append(0)
        elif token.type in ("td_open", "th_open"):
            rows[-1] += 1
    return rows


def headings_of(markdown: str) -> list[str]:
    parsed = MarkdownIt("commonmark").parse(markdown)
    return [parsed[i + 1].content for i, t in enumerate(parsed) if t.type == "heading_open"]


# --------------------------------------------------------------------------------------- structure


def test_first_screen_of_an_incident_says_what_to_do() -> None:
    head = text_of(memo(run=run_of()).html).split("The walk")[0]
    for part in (
        "INCIDENT",
        "reward.verifier_outage",
        LEADING.claim,
        "first bad step 66",
        "last good 65",
        "you noticed 70",
        "confidence high",
        "conditional on nothing",
        "every step from 66 on carries the fault; last step seen 120",
        "make the verifier raise",
        "from checkpoint-60 , the last checkpoint before step 66",
        "only dilutes lower learning rate, larger batch",
        "also found collapse.all_wrong , mechanism of the leading finding, layer samples",
        "This would be refuted by judged accuracy after the onset near 0.",
        "samples.main (waiting for reward )",
    ):
        assert part in head


def test_first_page_keeps_its_order_everywhere() -> None:
    order = (
        LEADING.claim,
        "first bad step",
        "you noticed",
        "confidence",
        "conditional on",
        "what to do now",
        "only dilutes",
        "also found",
        "would refute it",
        "not checked",
        "Looks odd and is normal",
    )
    made = memo(run=run_of())
    for shown in (text_of(made.html), made.markdown.replace("**", "")):
        places = [shown.lower().find(part.lower()) for part in order]
        assert -1 not in places
        assert places == sorted(places)


def test_what_is_named_as_not_checked_was_not_read() -> None:
    """Checks are named one by one, so that a fact found in a closed layer is no contradiction."""
    page = first_page(incident(), case_evidence())
    assert page.unread == "`samples.main` (waiting for `reward`)"
    alone = incident(checks=CHECKS[:-1], findings=(LEADING,))
    assert first_page(alone, {}).unread == "`samples` (waiting for `reward`)"
    assert first_page(healthy(), {}).unread == "nothing that the playbook asks for was left out"
    unbuilt = NotChecked(layer="shaping", check="update_size", why="not built in this version")
    lacking = healthy().model_copy(update={"not_checked": (unbuilt,)})
    assert first_page(lacking, {}).unread == "`shaping` (not built in this version)"


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    said = "77 % of 1,304 rows -> 0 % at 0.05 nats"
    verdict = incident(headline=said, notes=(said,))
    made = memo(verdict, {**case_evidence(), "E2": evidence("E2", "check_rows", said)})
    for shown in (text_of(made.html.replace("\N{NO-BREAK SPACE}", "_")), made.markdown):
        shown = shown.replace("\N{NO-BREAK SPACE}", "_")
        assert "77_% of 1,304_rows → 0_% at 0.05_nats" in shown
        assert not re.search(r"\d %", shown)


def test_glossary_explains_the_words_that_are_used_and_no_others() -> None:
    assert "## Words" in memo().markdown
    assert words_used(["nothing of the kind"]) == ()
    (row,) = words_used(["KL reaches 0.7 nats"])
    assert row.label == "nats"


def test_sections_come_in_the_order_in_which_they_are_read() -> None:
    made = memo(run=run_of())
    wanted = [
        "The walk",
        "Evidence for `reward`",
        "Rollouts, before and after",
        "Ruled out",
        "Other findings",
        "Decision table",
        "Passed on weaker evidence",
        "Not checked",
        "Looks odd and is normal",
        "Evidence",
        "Files",
        "Words",
    ]
    assert headings_of(made.markdown) == wanted
    pages = [re.sub(r"<[^>]*>", "", h) for h in re.findall(r"<h2>(.*?)</h2>", made.html)]
    assert pages == [
        "What to do now",
        "Before you act",
        "The walk",
        "Evidence for reward",
        "Plots",
        "Rollouts, before and after",
        "Ruled out",
        "Other findings",
        "Decision table",
        "Passed on weaker evidence",
        "Not checked",
        "Looks odd and is normal",
        "Evidence",
        "Files",
        "Words",
    ]


def test_walk_shows_every_layer_with_both_operands_and_the_refusal() -> None:
    made = memo()
    for shown in (text_of(made.html), made.markdown):
        for name in NUMBERS:
            assert name in shown
        assert "judge.agreement_after" in shown
        assert "needs: reward" in shown or "needs `reward`" in shown or "needs reward" in shown
        assert "The way is closed at" in shown
        assert "independent fact" in shown
    assert "`judge.agreement_after` 0.23 (fails if < 0.95: **broken**)" in made.markdown
    assert "`judge.n_judged` 2,880 (needs >= 200)" in made.markdown


def test_evidence_list_says_how_to_recompute_each_number() -> None:
    made = memo()
    for shown in (made.html, made.markdown):
        assert (
            "firstbad tools run compare_judges trl:/runs/otter --set judge=exact --set from_step=66"
            in shown
        )
        assert "firstbad verify 20260101-000000-abcd" in shown
        assert "sha256:91f2c3d4e5f60718" in shown
    for id_ in case_evidence():
        assert f'<details class="evidence" id="{id_}">' in made.html


def test_what_had_no_data_is_named_in_a_line_and_told_once() -> None:
    """Nothing was observed there: the reason stands under what was not checked."""
    why = NotChecked(layer="records", check="main", why="no rollouts in this run")
    lacking = undetermined(not_checked=(why,))
    told = memo(lacking).markdown
    assert told.count("no rollouts in this run") == 2  # why of the layer, and not checked
    assert "- without data (more under “Not checked”): `records.main`\n" in told
    assert "Tools that found no data:\n\n- E12 `check_masks`: no captures in this run\n" in told
    assert "firstbad tools run check_masks" not in told
    (lacks, decided) = lacking.checks[1], lacking.checks[0]
    observed = lacks.model_copy(
        update={"clauses": (clause("rows.n_rows", ">=", 100.0, 60, role="needs"),)}
    )
    some = memo(lacking.model_copy(update={"checks": (decided, observed)})).markdown
    assert "`rows.n_rows` 60 (needs >= 100: not met)" in some
    assert "without data" not in some


def test_every_file_is_named_with_its_digest_and_long_lists_are_one_line() -> None:
    dumps = Source(
        kind="capture", ref="dumps/1.npz", last="dumps/99.npz", files=1234, digest="sha256:bbbb"
    )
    other = Source(kind="config", ref="args.json", digest="sha256:aaaa")
    gone = Source(kind="log", ref="train.log")
    found = {
        **case_evidence(),
        "E2": evidence("E2", "check_rows", "48 rows", sources=(other, dumps)),
        "E3": evidence("E3", "check_ratios", "ratio 1", sources=(dumps, gone)),
    }
    made = memo(found=found)
    for shown in (text_of(made.html), made.markdown.replace("`", "")):
        shown = " ".join(shown.replace("\N{NO-BREAK SPACE}", " ").split())
        assert shown.count("sha256:aaaa") == shown.count("sha256:bbbb") == 1
        assert re.search(r"[Rr]ead: 1,234 files, dumps/1.npz to dumps/99.npz ?; args.json", shown)
        assert re.search(r"train.log \(?log\)? not read again", shown)


def test_other_findings_say_what_they_are_to_the_leading_one() -> None:
    shown = text_of(memo().html)
    assert "collapse.all_wrong mechanism of the leading finding, layer samples" in shown
    assert "This would be refuted by a mixed group." in shown


def test_only_the_decision_rows_of_the_cause_are_shown() -> None:
    made = memo()
    assert "scores were not judged" in made.html
    assert "OTHER CAUSE" not in made.html + made.markdown


def test_waiver_and_condition_stand_on_the_first_screen() -> None:
    verdict = incident(
        waivers=(Waiver(layer="probability", reason="engine logs are gone"),),
        conditional_on=("probability (waived)",),
    )
    head = text_of(memo(verdict).html).split("The walk")[0]
    assert "conditional on probability (waived)" in head
    assert "engine logs are gone" in head


def test_the_same_need_of_two_layers_is_asked_once_with_both() -> None:
    asked = tuple(
        Request(
            layer=layer, need="args.json", command=f"firstbad tools run {layer} R", decides=what
        )
        for layer, what in (("records", "are the rows whole"), ("probability", "is the ratio 1"))
    )
    verdict = undetermined().model_copy(update={"requests": asked})
    (request,) = first_page(verdict, case_evidence()).requests
    assert request.layers == ("records", "probability")
    assert len(request.commands) == 2
    for shown in (text_of(memo(verdict).html), memo(verdict).markdown.replace("`", "")):
        assert shown.count("args.json") == 1
        told = shown.replace("( ", "(").replace(" )", ")")
        assert "are the rows whole (records); is the ratio 1 (probability)" in told
        assert "firstbad tools run probability R" in shown


def test_a_reward_that_is_lower_speaks_against_going_on() -> None:
    """Whatever the band of the whole run says: the complaint is answered with it just above."""
    window = evidence(
        "E1", "find_first_bad", "s", metrics={"is_onset": True, "outcome_fell": False}
    )
    around = evidence("E9", "compare_around", "s", metrics={"outcome_z": -11.0, "reward_z": None})
    told = first_page(undetermined(), {"E1": window, "E9": around}).actions[0].text
    assert "The reward is lower" in told
    assert "asks for a stop" not in told


def test_what_left_the_outcome_open_is_shown_with_its_rows() -> None:
    passed = tuple(layer(name, "pass", "all bounds held") for name in NUMBERS)
    asked = Request(
        layer="reward",
        need="ten of these prompts read",
        command="firstbad tools run compare_judges trl:/runs/otter",
        decides="whether they are right",
    )
    open_ = undetermined().model_copy(
        update={"layers": passed, "requests": (asked,), "left_open_by": ("E11",)}
    )
    told = memo(open_).markdown
    shown = told.split("## What is open, and both sides")[1].split("\n## ")[0]
    assert "per step: groups by outcome" in shown
    assert "compare_judges" not in shown


@pytest.mark.parametrize(
    ("measured", "said", "not_said"),
    [
        (
            {"is_onset": True, "outcome_fell": True, "outcome_end_over_best": 0.02},
            "2 % of what it had gained is left by step 120",
            "did not fall",
        ),
        ({"is_onset": True, "outcome_fell": False}, "the outcome did not fall", "for going on"),
        ({"is_onset": False, "outcome_fell": False}, "No signal left its band", "outcome fell"),
    ],
)
def test_undetermined_says_what_is_known_for_stopping(
    measured: dict[str, Any], said: str, not_said: str
) -> None:
    found = {"E1": evidence("E1", "find_first_bad", "moved", metrics=measured)}
    onset = Onset(last_good=65, first_bad=66, signal="reward")
    verdict = undetermined().model_copy(
        update={"first_bad": onset, "symptoms": ("one part fell: suspect reward first",)}
    )
    page = first_page(verdict, found)
    assert [row.label for row in page.actions] == ["stop or go on", "suspects"]
    assert said in page.actions[0].text
    assert not_said not in page.actions[0].text
    assert page.actions[0].text.startswith("not decided here")
    assert "stop or go on" not in memo(incident(), run=run_of()).markdown


def test_what_was_noticed_while_reading_is_told_and_what_was_left_out_comes_first() -> None:
    told = (Remark("filled", "9 values are from TensorBoard"), Remark("file_cut", "`a` is cut off"))
    assert [row.text for row in first_page(incident(), {}, told).reading] == ["`a` is cut off"]
    made = build_memo(incident(), case_evidence(), run_of(), playbook(), told)
    for shown in (text_of(made.html), made.markdown):
        assert "Noticed while reading" in shown
        assert "9 values are from TensorBoard" in shown.replace("\N{NO-BREAK SPACE}", " ")
        assert shown.index("is cut off") < shown.index("The walk")
    assert "Noticed while reading" not in memo(run=run_of()).markdown


def test_the_wide_chart_is_drawn_for_a_phone_as_well() -> None:
    html = memo(run=run_of()).html
    wide, narrow = re.findall(r'<svg id="plot-1[^"]*" class="chart" viewBox="0 0 (\d+)', html)
    assert (int(wide), int(narrow)) == (1100, 540)
    assert html.count('class="broad"') == html.count('class="narrow"') == 1


def test_sampled_onset_is_told_as_a_bracket() -> None:
    onset = Onset(last_good=60, first_bad=70, signal="dumps", sampled=True)
    verdict = incident(first_bad=onset, findings=(LEADING.model_copy(update={"first_bad": onset}),))
    made = memo(verdict, run=run_of())
    assert "first bad step after 60, by 70" in text_of(made.html)
    assert '<rect class="bracket"' in made.html
    open_end = onset.model_copy(update={"last_good": None})
    found = verdict.model_copy(update={"first_bad": open_end})
    assert ("first bad step", "by 70") in {(r.label, r.text) for r in first_page(found, {}).facts}


def test_an_edited_playbook_is_named_on_the_first_page() -> None:
    own = PlaybookRef(name="crash", digest="sha256:00ff", shipped=False)
    shown = memo(incident(playbooks=(own,))).markdown.split("The walk")[0]
    assert "`crash`, sha256:00ff: not the one that ships with firstbad" in shown.replace("\\", "")
    assert "ships with firstbad" not in memo(incident()).markdown


def test_an_onset_that_no_signal_shows_is_said_to_come_from_the_finding() -> None:
    calm = evidence("E99", "find_first_bad", "calm", metrics={"is_steady": True, "is_onset": False})
    said = "no logged signal leaves its band; the onset is that of the leading finding"
    assert said in memo(incident(), {**case_evidence(), "E99": calm}).markdown
    assert said not in memo(incident()).markdown


def test_what_to_do_follows_from_the_certain_fault_that_began_first() -> None:
    onset = Onset(last_good=39, first_bad=40, signal="agreement")
    earlier = SECOND.model_copy(
        update={"first_bad": onset, "confidence": "high", "mechanism_of": None}
    )
    verdict = incident(findings=(LEADING, earlier), resume_from="checkpoint-30")
    shown = memo(verdict).markdown
    assert "every step from 40 on carries the fault" in shown
    assert f"`{earlier.cause}`, also found, began first" in shown
    assert "from `checkpoint-30`, the last checkpoint before step 40" in shown
    assert "also found, began first" not in memo(incident()).markdown


def test_what_the_weights_are_worth_is_said_with_what_to_record_next_time() -> None:
    told = {"rollback": "no rollback: training did not use it", "log_next": "the parts per sample"}
    sound = LEADING.model_copy(update={"weights": "sound", **told})
    shown = memo(incident(findings=(sound,), resume_from="checkpoint-90")).markdown
    assert "| roll back | no rollback: training did not use it |" in shown
    assert "| log next time | the parts per sample |" in shown
    assert (
        "| from `checkpoint-90`, the newest checkpoint: this fault leaves the weights sound |"
        in shown
    )
    assert "| stop | not for this fault's sake: it spoils no weights |" in shown
    assert "use no checkpoint" not in shown
    assert "carries the fault" not in shown
    spoils = SECOND.model_copy(update={"weights": "spoiled"})
    shown = memo(incident(findings=(sound, spoils), resume_from="checkpoint-60")).markdown
    assert f"`{spoils.cause}`, also found, spoils the weights" in shown
    assert "| roll back |" not in shown
    unclear = SECOND.model_copy(update={"weights": "unclear"})
    shown = memo(incident(findings=(sound, unclear), resume_from="checkpoint-60")).markdown
    assert f"`{unclear.cause}`, also found, may spoil the weights" in shown
    assert "log next time" not in memo(incident()).markdown


def test_fault_from_the_start_offers_no_step_to_resume_from() -> None:
    onset = Onset(last_good=3, first_bad=4, signal="dumps", from_start=True)
    verdict = incident(first_bad=onset, window="bad_from_start", resume_from=None)
    html = memo(verdict, run=run_of()).html
    shown = text_of(html)
    assert "last good none" in shown
    assert '<rect class="good"' not in html
    assert "first bad step from the start" in shown
    assert "start again: there is no good step to go back to" in shown
    assert "first bad 4" not in html
    assert "Vertical line" not in shown


def test_rollouts_are_those_on_both_sides_of_the_leading_onset() -> None:
    def batch(step: int) -> RolloutBatch:
        return RolloutBatch(
            step=step,
            prompts=["p", "p"],
            completions=[f"text of step {step}"] * 2,
            group=np.array([0, 0]),
            rewards={},
        )

    def rollouts(of: Sequence[int]) -> Iterator[RolloutBatch]:
        return (batch(step) for step in of)

    run = replace(run_of(), rollouts=Rollouts((10, 50, 64, 70, 80), rollouts))
    shown = memo(incident(), run=run).markdown.split("## Rollouts, before and after")[1]
    assert "Rollouts at step 64 and step 70." in shown
    assert "text of step 64" in shown
    assert "text of step 70" in shown
    assert "text of step 10" not in shown


def test_sampled_onset_says_what_may_carry_the_fault_and_where_to_resume() -> None:
    onset = Onset(last_good=60, first_bad=70, signal="dumps", sampled=True)
    found = (LEADING.model_copy(update={"first_bad": onset}),)
    shown = memo(incident(first_bad=onset, findings=found)).markdown
    assert "every step from 70 on carries the fault, those after 60 may" in shown
    assert "the last checkpoint up to step 60" in shown


@pytest.mark.parametrize(
    ("commands", "then"),
    [
        (("firstbad tools run check_loss_identity NEW_RUN",), "firstbad investigate NEW_RUN"),
        (
            ("firstbad tools run rejudge NEW_RUN", "firstbad tools run check_rows a/otter"),
            "firstbad investigate a/otter",  # what was not copied may still be
        ),
    ],
)
def test_all_forms_say_which_run_to_investigate_then(commands: tuple[str, ...], then: str) -> None:
    asked = tuple(
        Request(layer="records", need=f"need {c}", command=c, decides="it") for c in commands
    )
    verdict = undetermined(run="a/otter").model_copy(update={"requests": asked})
    assert first_page(verdict, {}).then == then
    beside = Remark("beside", "a lone file")
    assert first_page(verdict, {}, (beside,)).then == ""
    made = memo(verdict)
    assert f"Then: `{then}`" in made.markdown
    assert f"Then: {then}" in text_of(made.html)


@pytest.mark.parametrize(
    ("onset", "least", "told"),
    [
        (
            Onset(last_good=32, first_bad=33, signal="rows", last_bad=59),
            LeastBad(checkpoint="checkpoint-60", updates=27),
            "no checkpoint before step 33 was found. If that costs too much, `checkpoint-60` holds "
            "the fewest bad updates, 27 (of steps 33 to 59)",
        ),
        (
            Onset(last_good=30, first_bad=40, signal="dumps", sampled=True),
            LeastBad(checkpoint="checkpoint-60", updates=21, updates_most=30),
            "no checkpoint up to step 30 was found. If that costs too much, "
            "`checkpoint-60` holds the fewest bad updates, 21 to 30",
        ),
    ],
)
def test_where_all_checkpoints_are_bad_one_advice_is_given(
    onset: Onset, least: LeastBad, told: str
) -> None:
    found = (LEADING.model_copy(update={"first_bad": onset}),)
    verdict = incident(first_bad=onset, findings=found, resume_from=None, least_bad=least)
    ended = {"E1": evidence("E1", "take_stock", "ended", metrics={"ended": True})}
    actions = {row.label: row.text for row in first_page(verdict, ended).actions}
    assert actions["resume"] == f"start again: {told}"
    assert actions["stop"].endswith(": every checkpoint there is was saved after the fault began")


@pytest.mark.parametrize(("moved", "told"), [(26, True), (40, False), (None, False)])
def test_a_signal_that_moved_before_the_finding_began_is_told(
    moved: int | None, told: bool
) -> None:
    metrics = {"is_onset": moved is not None, "first_bad_step": moved}
    found = {"E1": evidence("E1", "find_first_bad", "moved", metrics=metrics)}
    onset = Onset(last_good=39, first_bad=40, signal="judging")
    leading = LEADING.model_copy(update={"first_bad": onset})
    page = first_page(incident(first_bad=onset, findings=(leading,)), found)
    (dated,) = (row.text for row in page.caveats if row.label == "dated by")
    assert dated.startswith("judging")
    assert ("left its band at step 26 already" in dated) is told


def test_leading_fact_in_a_layer_that_was_not_reached_says_what_it_rests_on() -> None:
    fact = LEADING.model_copy(update={"layer": "samples", "check": "composition"})
    made = memo(incident(findings=(fact,)))
    for shown in (made.markdown, text_of(made.html)):
        assert "an independent fact: it needs no layer before it" in shown
        assert "read as an independent fact: " in shown
    assert '<details class="layer not_reached" open>' in made.html


def test_finding_of_a_model_says_so() -> None:
    guess = LEADING.model_copy(update={"origin": "model"})
    assert "proposed by model, not by a gate" in memo(incident(findings=(guess,))).markdown


def test_remedy_that_dilutes_is_never_called_a_fix() -> None:
    weak = LEADING.model_copy(update={"remedy": "halve the rate", "remedy_kind": "dilutes"})
    made = memo(incident(findings=(weak,)))
    assert "| only dilutes | halve the rate |" in made.markdown
    assert "| fix |" not in made.markdown


def test_tool_that_broke_is_named_in_walk_and_list() -> None:
    broken = check(
        "reward",
        "inconclusive",
        "`compare_judges` broke: KeyError",
        strength=None,
        reason="tool_error",
        evidence=("E7",),
    )
    found = case_evidence()
    found["E7"] = evidence(
        "E7",
        "compare_judges",
        "`compare_judges` broke: KeyError",
        status="error",
        metrics=None,
        error="KeyError: 'gold' (judge, line 12)",
    )
    made = memo(undetermined().model_copy(update={"checks": (broken,)}), found)
    assert "the tool broke: " in made.markdown
    page = first_page(undetermined().model_copy(update={"checks": (broken,)}), found)
    assert f"`{broken.layer}.{broken.check}` (the tool broke)" in page.unread
    assert "KeyError: 'gold'" in text_of(made.html)


# ------------------------------------------------------------------------- healthy and undetermined


def test_healthy_memo_says_why_it_is_normal_and_what_was_weak() -> None:
    made = memo(healthy(), run=run_of())
    assert headings_of(made.markdown)[:4] == [
        "What is open",
        "Why it looks odd and is normal",
        "Passed on weaker evidence",
        "The walk",
    ]
    for shown in (made.markdown, text_of(made.html)):
        assert "HEALTHY" in shown
        assert "probability (declared)" in shown
        assert "a sampler that differs from the trainer" in shown
        assert "to do now" not in shown.lower()


def test_undetermined_memo_asks_first() -> None:
    made = memo(undetermined(), run=run_of())
    assert headings_of(made.markdown)[0] == "What would decide it"
    head = text_of(made.html).split("The walk")[0]
    for part in (
        "UNDETERMINED",
        "the rollouts of steps 60 to 70",
        "firstbad investigate trl:/runs/otter --resume 20260101-000000-abcd",
        "whether the rows still form groups",
    ):
        assert part in head
        assert part in made.markdown
    assert "not observed" in head + text_of(made.html)


# ------------------------------------------------------------------------------ numbers, same bytes


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text))


def test_every_number_of_the_memo_is_in_verdict_or_evidence() -> None:
    """A number is traced when it is one of the inputs, rounded to the digits that are shown."""
    verdict, found = incident(), case_evidence()
    source = verdict.model_dump_json() + "".join(e.model_dump_json() for e in found.values())
    source += str(ASKS) + str(NUMBERS)
    given = [float(t) for t in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", source)]
    given += [float(t.replace(",", "")) for t in numbers_in(source) if t.strip(",")]
    counts = {str(len(t.rows)) for e in found.values() for t in e.tables} | {"10", "12"}
    made = memo(verdict, found)
    for shown in (made.markdown, text_of(made.html)):
        for token in numbers_in(shown):
            text = token.strip(",").replace(",", "")
            digits = len(text.split("e")[0].partition(".")[2])
            exponent = int(text.split("e")[1]) if "e" in text else 0
            near = 0.5000001 * 10.0 ** (exponent - digits)
            assert text in counts or any(abs(float(text) - v) <= near for v in given), token


def test_same_inputs_give_the_same_bytes() -> None:
    first, second = memo(run=run_of()), memo(run=run_of())
    assert first == second


def test_round_trip_through_json_gives_the_same_bytes() -> None:
    verdict = Verdict.model_validate_json(incident().model_dump_json())
    found = {
        k: Evidence.model_validate_json(e.model_dump_json()) for k, e in case_evidence().items()
    }
    assert memo(verdict, found, run_of()) == memo(run=run_of())


# ---------------------------------------------------------------------------------------- run, size


def test_memo_without_its_run_says_that_plots_are_left_out() -> None:
    made = memo(run=None)
    for shown in (made.markdown, text_of(made.html)):
        assert "plots of its signals are left out" in shown
    assert len(charts_of(made.html)) == 2  # those of the evidence remain


def test_run_of_50000_steps_stays_small() -> None:
    onset = Onset(last_good=39_999, first_bad=40_000, signal="reward")
    verdict = incident(first_bad=onset, findings=(LEADING.model_copy(update={"first_bad": onset}),))
    made = memo(verdict, run=run_of(50_000, 40_000))
    assert len(made.html) < 400_000
    assert "first bad 40000" in made.html


def charts_of(html: str) -> list[str]:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    return [re.sub(r"<span.*?</span>", "", caption) for caption in captions]


def test_charts_show_what_the_finding_cites_first() -> None:
    assert charts_of(memo(run=run_of()).html) == [
        "Judged and logged accuracy",
        "Groups by outcome",
        "Reward and its parts",
        "Step time",
        "Completion length",
        "KL divergence",
        "Entropy",
        "Gradient norm",
    ]


@pytest.mark.parametrize("cause", ["opt.data_reuse", "opt.kl_constraint"])
def test_first_charts_are_the_findings_own_signals_and_the_reward(cause: str) -> None:
    bold = LEADING.model_copy(
        update={
            "cause": cause,
            "layer": "optimizer",
            "supports": ("E4",),
            "first_bad": Onset(last_good=16, first_bad=17, signal="KL, norm and entropy together"),
        }
    )
    verdict = incident(findings=(bold,), first_bad=bold.first_bad)
    run = run_of()
    clip = Signal("clip_frac_total", run.signals.known["kl_ref"].steps, np.zeros(STEPS), "clip")
    known = {**run.signals.known, clip.name: clip}
    html = memo(verdict, run=replace(run, signals=Signals(known=known))).html
    first = html.split("The walk")[0]
    assert charts_of(first) == ["KL divergence", "Share of clipped tokens", "Reward and its parts"]
    assert first.count("first bad 17") == 4  # the wide one is drawn for phones as well


def test_charts_of_a_healthy_run_begin_with_what_was_said() -> None:
    verdict = healthy().model_copy(update={"complaint": "is entropy falling too fast"})
    assert charts_of(memo(verdict, run=run_of()).html)[0] == "Entropy"


def test_loss_identity_is_drawn_as_points_around_the_diagonal() -> None:
    rows = tuple((step, wave(step), wave(step) * 1.002) for step in range(1, STEPS + 1))
    table = Table(
        title="per step: logged and recomputed loss",
        columns=("step", "logged", "recomputed"),
        rows=rows,
    )
    found = {**case_evidence(), "E7": evidence("E7", "check_loss", "slope 1.002", tables=(table,))}
    html = memo(found=found).html
    assert charts_of(html)[0] == "Logged and recomputed loss"
    assert 'class="diagonal"' in html
    assert "before step 66" in html
    assert "from step 66 on" in html


def test_page_is_self_contained() -> None:
    html = memo(run=run_of()).html
    assert "<script" not in html
    assert re.search(r"""(?:src|href)=["'](?!#)""", html) is None
    assert "default-src 'none'" in html
    assert "url(" not in html
    assert "@import" not in html


def test_style_is_allowed_by_its_digest_alone() -> None:
    import base64
    import hashlib

    html = memo().html
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert len(style) == 1
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in html
    assert re.search(r"""\sstyle=["']""", html) is None


# ------------------------------------------------------------------------------------- hostile text

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></details></style><b>out</b>",
    "![pixel](http://evil.example/p.png)",
    "[click](javascript:alert(1)) https://evil.example/a www.evil.example me@evil.example",
    "```\n# heading\n```\n<b>bold</b>",
    "~~~\n`````text\nopen",
    "\x1b[31mred\x1b[0m \x9b2J \u202eevil\u202c \u200bhidden \ufeff",
    "| a | b |\n|---|---|\n| `x` \\| y |",
    "{{ 7 * 191 }} {% raw %} ${7*191}",
    "\r\n---\r\n===\n> quote\n1. list\n- item\n\tindented",
    "`a` ``b` <b>x</b> `` https://evil.example `c",
    "&lt;script&gt; &#60;b&#62; <!-- comment --> <a href='http://evil.example'>",
    "x" * 20_000,
    "\ud800 lone surrogate",
    "",
)


@pytest.fixture(params=range(len(HOSTILE)), ids=lambda i: f"text{i}")
def hostile(request: pytest.FixtureRequest) -> str:
    return HOSTILE[request.param]


def memo_with(text: str) -> Memo:
    """The text of others, wherever it can come from."""
    table = Table(
        title=text,
        columns=("row", f"before {text}", "after"),
        rows=((0, text, f"{text}\n{text}"), (1, "plain", text)),
    )
    words = Table(title=text, columns=("file", text), rows=((text, 1.5), ("b", 2.5)))
    found = {
        "E1": evidence(
            "E1",
            "read_rollouts",
            text,
            tables=(table,),
            args={"pattern": text},
            sources=(Source(kind="rollouts", ref=text),),
        ),
        "E7": evidence(
            "E7", "compare_judges", f"file `{text}`: {text}", tables=(words,), signal=text
        ),
        "E9": evidence("E9", "x", text, status="error", metrics=None, error=text or "broke"),
    }
    finding = LEADING.model_copy(
        update={"claim": text, "remedy": text, "ruled_out": (text,), "contradicts": ("E9",)}
    )
    verdict = incident(
        run=f"trl:/runs/{text}",
        complaint=text,
        headline=text,
        findings=(finding, SECOND.model_copy(update={"claim": text, "remedy": text})),
        notes=(text,),
        resume_from=text or None,
        waivers=(Waiver(layer="records", reason=text),),
        checks=(check("reward", "fail", text, evidence=("E1", "E7"), excludes_not=text),),
        layers=(layer("reward", "fail", text),),
        not_checked=(NotChecked(layer="samples", check="x", why=text),),
        requests=(Request(layer="records", need=text, command=text, decides=text),),
        versions={"trl": text},
    )
    run = run_of()
    odd = Signal(
        name=f"reward_part/{text}",
        steps=np.array([1, 2, 3], np.int64),
        values=np.array([0.0, 1.0, 0.5]),
        source_key=text,
    )
    known = {**run.signals.known, odd.name: odd}
    run = Run(ref="r", root=Path("/r"), framework=text, signals=Signals(known=known))
    return build_memo(verdict, found, run, playbook())


HARMLESS_TAGS = frozenset(
    re.findall(
        r"\w+",
        """html head meta title style body header main section footer div span p h1 h2 h3 h4
        ul li dl dt dd table thead tbody tr th td details summary pre code b br a figure figcaption
        svg desc path rect text""",
    )
)


def test_hostile_text_stays_text_in_html(hostile: str) -> None:
    from html.parser import HTMLParser

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag in HARMLESS_TAGS
            for name, value in attrs:
                assert not name.startswith("on")
                assert name != "src"
                if name == "href":
                    assert re.fullmatch(r"#E\d+", value or "")

        def handle_comment(self, data: str) -> None:
            raise AssertionError(data)

    made = memo_with(hostile)
    Reader().feed(made.html)
    assert made.html.count("<details") == made.html.count("</details>")


def test_hostile_text_stays_text_in_markdown(hostile: str) -> None:
    made = memo_with(hostile)
    kinds = tokens_of(made.markdown)
    assert not kinds & {
        "html_block",
        "html_inline",
        "link_open",
        "image",
        "hr_open",
        "blockquote_open",
    }
    plain_headings = headings_of(memo_with("plain").markdown)
    if hostile:
        assert headings_of(made.markdown) == plain_headings
        assert rows_of(made.markdown) == rows_of(memo_with("plain").markdown)
    for words in prose_of(made.markdown):
        assert not re.search(r"://|www\.|@", words)  # nothing for a program that links bare text


def test_hostile_text_leaves_no_control_characters(hostile: str) -> None:
    made = memo_with(hostile)
    for shown in (made.html, made.markdown):
        shown.encode("utf-8")
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]", shown
        )


def test_long_rollouts_are_cut_and_say_so() -> None:
    made = memo_with("x" * 20_000)
    assert "18,800 more characters" in made.html
    rollouts = made.markdown.split("## Rollouts, before and after")[1].split("\n## ")[0]
    assert max(len(line) for line in rollouts.splitlines()) < 2_100


def test_template_syntax_in_text_is_not_run() -> None:
    made = memo_with("{{ 7 * 191 }}")
    assert "1337" not in made.html + made.markdown


# --------------------------------------------------------------------------------- strict templates


def test_unknown_names_in_templates_are_errors() -> None:
    from firstbad.agent.memo.build import environments

    def render(environment: Environment) -> str:
        return environment.from_string("{{ v.nothing }}").render(v=object())

    for environment in environments():
        with pytest.raises(UndefinedError):
            render(environment)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("name", [n for n, c in causes().items() if c.weights == "sound"])
def test_no_cause_that_leaves_the_weights_sound_takes_checkpoints_away(
    name: str, ended: bool
) -> None:
    sound = LEADING.model_copy(update={"cause": name, "weights": causes()[name].weights})
    seen = {"E1": evidence("E1", "take_stock", "it", metrics={"ended": ended})}
    verdict = incident(findings=(sound,), resume_from="checkpoint-90")
    actions = {row.label: row.text for row in first_page(verdict, seen).actions}
    assert actions["stop"] == "not for this fault's sake: it spoils no weights"
    assert "newest checkpoint" in actions["resume"]


ROWS = Table(
    title="rows on which judge and reward disagree",
    columns=("step", "prompt", "weight", "judged"),
    rows=((60, "early", 1.0, "right"), (66, "2 + 3 =", 1.0, "right"), (67, "late", 1.0, "right")),
)


def example_of(table: Table, onset: Onset = LEADING.first_bad) -> list[str]:
    """The row `for example` where the finding rests on evidence with this table."""
    verdict = incident(findings=(LEADING.model_copy(update={"first_bad": onset}),))
    found = {"E7": evidence("E7", "rejudge", "judged", tables=(table,))}
    return [row.text for row in first_page(verdict, found).caveats if row.label == "for example"]


def test_one_row_of_what_the_finding_rests_on_is_shown() -> None:
    assert example_of(ROWS) == ["step 66: prompt `2 + 3 =`; judged `right` (E7)"]


def test_ticks_of_a_row_do_not_end_its_place() -> None:
    ticks = Table(title="t", columns=("step", "said"), rows=((66, "a `b` c"),))
    assert example_of(ticks) == ["step 66: said `a 'b' c` (E7)"]


def test_of_a_fault_from_the_start_the_first_row_is_shown() -> None:
    start = Onset(last_good=None, first_bad=66, signal="x", from_start=True)
    assert example_of(ROWS, start) == ["step 60: prompt `early`; judged `right` (E7)"]


def test_a_table_of_numbers_gives_no_example() -> None:
    assert example_of(Table(title="t", columns=("step", "n"), rows=((66, 3),))) == []
    assert example_of(Table(title="t", columns=("group", "text"), rows=((66, "x"),))) == []


def test_what_is_bad_from_the_start_has_no_bracket_and_no_good_step() -> None:
    onset = Onset(
        last_good=None, first_bad=30, signal="rates", sampled=True, quiet=10, from_start=True
    )
    assert (onset.bracket_start, onset.is_bracket) == (None, False)
    leading = LEADING.model_copy(update={"first_bad": onset})
    verdict = incident(first_bad=onset, window="bad_from_start", findings=(leading,))
    shown = memo(verdict).markdown
    assert "first bad step **from the start**; last good **none**" in shown
    assert "Yellow:" not in shown
    assert "Shaded:" not in shown
    rows = {row.label: row.text for row in first_page(verdict, {}).facts}
    assert (rows["first bad step"], rows["last good"]) == ("from the start", "none")
