"""Loading: whatever does not fit is refused, with its place and what there is instead."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import (
    builtin,
    call_parts,
    json_schema,
    lint,
    load,
    parse,
    shipped,
)
from firstbad.playbooks.model import Playbook
from firstbad.tools.errors import UserError
from firstbad.tools.registry import tools

SOUND: dict[str, Any] = {
    "name": "mine",
    "title": "Mine",
    "window": [{"kind": "onset", "when": {"onset.is_onset": "== 1"}}],
    "outcome_holds": {"onset.outcome_end_over_best": ">= 0.75"},
    "layers": [
        {
            "id": "window",
            "number": "0",
            "asks": "Which step was first?",
            "checks": [
                {
                    "id": "first",
                    "asks": "Which signal?",
                    "evidence": {
                        "onset": "find_first_bad",
                        "text": {"read_rollouts": {"before": "$onset.last_good_step", "rows": 4}},
                    },
                    "gate": [{"strength": "proxy", "needs": {"onset.n_signals": ">= 1"}}],
                }
            ],
        },
        {
            "id": "records",
            "number": "0.5",
            "asks": "Are the records what they claim?",
            "checks": [
                {
                    "id": "groups",
                    "asks": "Do rows form groups?",
                    "depends_on": ["window", "window.first"],
                    "evidence": {"rows": "check_rows"},
                    "gate": [
                        {
                            "strength": "direct",
                            "needs": {"rows.n_steps": ">= 1"},
                            "fail_if": {"rows.share_steps_broken": "> 0.02"},
                            "doubt_if": {"rows.steps_short_scores": "> 0"},
                        }
                    ],
                    "points_to": [
                        {
                            "cause": "id.rows",
                            "when": {"rows.steps_uneven": "> 0"},
                            "claim": "{rows.steps_uneven} uneven, {rows.share_steps_broken:%} all",
                            "onset": "rows",
                            "contradicted_if": {"rows.n_rows": "< 9"},
                            "ruled_out": {"shuffled": {"rows.steps_interleaved": "== 0"}},
                        }
                    ],
                    "notes": [{"when": {"rows.steps_repeated": "> 0"}, "say": "repeated"}],
                }
            ],
        },
    ],
    "leads_to": [{"cause": "opt.lr_jump", "to": ["records"]}],
    "symptoms": [{"seen": "s", "when": {"onset.reward_fell": "== 1"}, "suspects": ["records"]}],
    "inapplicable": [
        {"checks": ["records.groups"], "when": {"rows.n_steps": "== 1"}, "because": "b"}
    ],
    "decisions": [
        {
            "result": "r",
            "causes": ["id.rows"],
            "found_by": ["records.groups"],
            "conclusion": "c",
            "do": "d",
        }
    ],
}
GROUPS = ("layers", 1, "checks", 0)


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The sound playbook with one place replaced (or, for `...`, taken away)."""
    book = copy.deepcopy(SOUND)
    place: Any = book
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return book


def problems(book: dict[str, Any]) -> list[str]:
    return list(lint(Playbook.model_validate(book)))


def test_a_sound_playbook_has_no_problem(tmp_path: Path) -> None:
    assert problems(SOUND) == []
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(SOUND))
    loaded = load(str(path))
    assert loaded.playbook == Playbook.model_validate(SOUND)
    assert (loaded.ref.name, loaded.path) == ("mine", str(path))
    assert loaded.ref.digest.startswith("sha256:")
    assert len(loaded.ref.digest) == len("sha256:") + 16


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ((*GROUPS, "evidence"), {"rows": "check_row"}, ["no tool `check_row`", "check_rows"]),
        (
            (*GROUPS, "evidence"),
            {"rows": {"check_rows": {"step": 3}}},
            ["`check_rows` has no setting `step`"],
        ),
        (
            (*GROUPS, "evidence", "judge"),
            {"rejudge": {"parts": "correct"}},
            ["`rejudge` has no setting `parts`", "nearest: part"],
        ),
        (
            (*GROUPS, "evidence", "text"),
            {"read_rollouts": {"rows": "many"}},
            ["`read_rollouts`", "integer"],
        ),
        (
            (*GROUPS, "evidence", "text"),
            {"read_rollouts": {"before": "$onset.last_good"}},
            ["does not measure `last_good`", "last_good_step"],
        ),
        (
            (*GROUPS, "evidence", "text"),
            {"read_rollouts": {"before": "$window.last_good_step"}},
            ["no evidence `window` so far"],
        ),
        (
            (*GROUPS, "evidence", "onset"),
            "check_rows",
            ["alias `onset` already names `find_first_bad`"],
        ),
        (
            (*GROUPS, "gate", 0, "needs"),
            {"row.n_steps": ">= 1"},
            ["no evidence `row` so far", "rows"],
        ),
        (
            (*GROUPS, "gate", 0, "fail_if"),
            {"rows.share_broken": "> 0"},
            ["`check_rows` does not measure `share_broken`", "share_steps_broken"],
        ),
        ((*GROUPS, "gate", 0, "doubt_if"), {"rows.x": "> 0"}, ["does not measure `x`"]),
        ((*GROUPS, "points_to", 0, "cause"), "id.row", ["no cause `id.row`", "id.rows"]),
        ((*GROUPS, "points_to", 0, "when"), {"rows.x": "> 0"}, ["does not measure `x`"]),
        ((*GROUPS, "points_to", 0, "claim"), "{rows.x} rows", ["does not measure `x`"]),
        ((*GROUPS, "points_to", 0, "claim"), "{old.x:%}", ["no evidence `old`"]),
        ((*GROUPS, "points_to", 0, "onset"), "row", ["no evidence `row` so far", "rows"]),
        ((*GROUPS, "points_to", 0, "contradicted_if"), {"rows.x": "> 0"}, ["`rows.x`"]),
        ((*GROUPS, "points_to", 0, "ruled_out"), {"t": {"rows.x": "> 0"}}, ["`rows.x`"]),
        ((*GROUPS, "notes", 0, "when"), {"rows.x": "> 0"}, ["`rows.x`"]),
        (
            (*GROUPS, "depends_on"),
            ["reward"],
            ["depends on `reward`, which does not come before it"],
        ),
        ((*GROUPS, "depends_on"), ["records"], ["depends on `records`"]),
        ((*GROUPS, "voided_by"), ["window.last"], ["depends on `window.last`", "window.first"]),
        ((*GROUPS, "depends_on"), ["window.last"], ["depends on `window.last`", "window.first"]),
        ((*GROUPS, "points_to"), [], ["it can fail and points to no cause"]),
    ],
)
def test_a_problem_names_layer_and_check_and_offers_what_there_is(
    path: tuple[Any, ...], value: Any, says: list[str]
) -> None:
    (text,) = problems(changed(path, value))
    assert all(words in text for words in says)
    assert text.startswith("layer `records`, check `groups`: ")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("outcome_holds",), {"onset.end": "> 0"}, ["does not measure `end`", "nearest: "]),
        (("window", 0, "when"), {"on.is_onset": "== 1"}, ["no evidence `on`", "onset"]),
        (("symptoms", 0, "when"), {"onset.x": "== 1"}, ["does not measure `x`"]),
        (("leads_to", 0, "cause"), "opt.lr", ["leads_to: no cause `opt.lr`", "opt.lr_jump"]),
        (("leads_to", 0, "to"), ["recods"], ["leads_to: no layer `recods`"]),
        (("symptoms", 0, "suspects"), ["recods"], ["symptoms: no layer `recods`"]),
        (("decisions", 0, "causes"), ["id.row"], ["decisions: no cause `id.row`"]),
        (("decisions", 0, "found_by"), ["records.x"], ["decisions: no check `records.x`"]),
        (("inapplicable", 0, "checks"), ["records.x"], ["inapplicable: no check `records.x`"]),
        (("inapplicable", 0, "when"), {"rows.x": "== 1"}, ["does not measure `x`"]),
        (("inapplicable", 0, "because"), "{rows.x}", ["does not measure `x`"]),
    ],
)
def test_a_problem_outside_the_layers_is_named_by_its_place(
    path: tuple[Any, ...], value: Any, says: list[str]
) -> None:
    (text,) = problems(changed(path, value))
    assert text.startswith("top: ")
    for words in says:
        assert words in text


@pytest.mark.parametrize(
    ("path", "value", "offer"),
    [
        (("leads_to", 0, "to"), ["recods"], "records"),
        (("symptoms", 0, "suspects"), ["recods"], "records"),
        (("decisions", 0, "causes"), ["id.row"], "id.rows"),
    ],
)
def test_a_problem_outside_the_layers_offers_what_there_is(
    path: tuple[Any, ...], value: Any, offer: str
) -> None:
    (text,) = problems(changed(path, value))
    assert f"{offer}" in text.split(";", 1)[1]


def test_one_root_problem_is_one_line() -> None:
    book = changed((*GROUPS, "evidence"), {"rows": "check_row"})
    (text,) = problems(book)
    assert "no tool `check_row`" in text
    book = changed((*GROUPS, "evidence"), {"row": "check_rows"})
    (text,) = problems(book)
    assert text.startswith("layer `records`, check `groups`: no evidence `rows` so far; ")
    twice = changed((*GROUPS, "depends_on"), ["windows"])
    twice["layers"].append({**twice["layers"][1], "id": "more"})
    (text,) = problems(twice)
    assert text.startswith("layer `records`, check `groups`: depends on `windows`")
    assert text.endswith("(and 1 other place)")


def test_a_value_of_no_allowed_form_is_one_line() -> None:
    with pytest.raises(UserError) as error:
        parse(yaml.safe_dump(changed((*GROUPS, "evidence", "rows"), 3)).encode(), "mine.yaml")
    assert str(error.value) == (
        "mine.yaml: layers.1.checks.0.evidence.rows: fits none of the forms that are allowed there"
    )


def test_numbers_of_every_sentence_are_checked() -> None:
    book = changed((*GROUPS, "points_to", 0, "ruled_out"), {"{rows.x} rows": {}})
    assert "does not measure `x`" in problems(book)[0]
    book = changed((*GROUPS, "notes", 0, "say"), "{rows.x} rows")
    assert "does not measure `x`" in problems(book)[0]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    book = changed((*GROUPS, "evidence"), {"rows": "check_row"})
    book["leads_to"][0]["cause"] = "opt.lr"
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(book))
    with pytest.raises(UserError) as error:
        load(str(path))
    text = str(error.value)
    assert text.startswith(f"{path}: layer `records`")
    assert "no tool `check_row`" in text
    assert "no cause `opt.lr`" in text


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("titel",), "x", "titel"),
        ((*GROUPS, "gates"), [], "layers.1.checks.0.gates"),
        ((*GROUPS, "gate", 0, "fails_if"), {}, "layers.1.checks.0.gate.0.fails_if"),
        ((*GROUPS, "points_to", 0, "severity"), "high", "points_to.0.severity"),
        ((*GROUPS, "gate", 0, "strength"), "strong", "gate.0.strength"),
        ((*GROUPS, "gate", 0, "needs"), {"rows.n": "1 < x < 3"}, "gate.0.needs.rows.n"),
        ((*GROUPS, "gate", 0, "needs"), {"rows": "> 1"}, "gate.0.needs.rows"),
        ((*GROUPS, "id"), "Groups!", "layers.1.checks.0.id"),
        ((*GROUPS, "asks"), ..., "layers.1.checks.0.asks"),
        (("window", 0, "kind"), "later", "window.0.kind"),
        (("layers",), ..., "layers"),
    ],
)
def test_what_is_not_of_the_form_is_refused_with_its_place(
    path: tuple[Any, ...], value: Any, place: str
) -> None:
    with pytest.raises(UserError) as error:
        parse(yaml.safe_dump(changed(path, value)).encode(), "mine.yaml")
    assert str(error.value).startswith("mine.yaml: ")
    assert place in str(error.value)


@pytest.mark.parametrize("raw", [b"name: [unclosed", b"\xff\xfe\x00", b"a: b: c", b"@x"])
def test_what_is_not_yaml_is_refused(raw: bytes) -> None:
    with pytest.raises(UserError, match=r"^mine.yaml: not readable as YAML: ") as error:
        parse(raw, "mine.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("raw", [b"", b"- a\n- b\n", b"text", b"!!python/object:os.system {}"])
def test_yaml_that_is_no_playbook_is_refused(raw: bytes) -> None:
    with pytest.raises(UserError, match=r"^mine.yaml: "):
        parse(raw, "mine.yaml")


def test_two_tools_in_one_line_are_refused_with_their_place() -> None:
    two: dict[str, Any] = {"rows": {"check_rows": {}, "check_masks": {}}}
    book = changed((*GROUPS, "evidence"), two)
    try:
        found = problems(book)
    except UserError as error:
        found = [str(error)]
    assert any("records" in text for text in found)


@pytest.mark.parametrize(
    ("more", "key"),
    [("title: Another\n", "title"), ("x: {y: 1, 'y': 2}\n", "y"), ("x: {1: a, 1: b}\n", "1")],
)
def test_a_key_that_stands_twice_is_refused(more: str, key: str) -> None:
    text = yaml.safe_dump(SOUND) + more
    with pytest.raises(UserError, match=f"the key `{key}` stands twice"):
        parse(text.encode(), "mine.yaml")


def test_a_list_is_no_key() -> None:
    with pytest.raises(UserError, match="not readable as YAML"):
        parse(b"x: {[a]: 1, b: 2}\n", "mine.yaml")


def test_ids_are_given_once() -> None:
    assert problems({**SOUND, "layers": [*SOUND["layers"], SOUND["layers"][1]]})


def test_a_file_that_is_not_there_offers_the_shipped_ones() -> None:
    with pytest.raises(UserError, match=r"no playbook `crush`: expected a file, or one of .*crash"):
        load("crush")


@pytest.mark.parametrize("name", shipped())
def test_shipped_playbooks_are_sound_and_are_loaded_by_name(name: str) -> None:
    loaded = load(name)
    assert loaded.playbook.name == name
    assert list(lint(loaded.playbook)) == []
    assert loaded.path == builtin(name)


def test_calls() -> None:
    assert call_parts("check_rows") == ("check_rows", {})
    assert call_parts({"rejudge": {"part": "x"}}) == ("rejudge", {"part": "x"})


def test_the_schema_knows_tools_and_causes(repo: Path) -> None:
    schema = json.loads(json_schema())
    text = json.dumps(schema)
    assert schema["$defs"]["Pointer"]["properties"]["cause"]["enum"] == list(causes())
    for name in tools():
        assert f'"{name}"' in text
    kept = (repo / "playbooks" / "crash.schema.json").read_text(encoding="utf-8")
    assert kept == json_schema(), "run `firstbad playbook schema` and keep what it writes"


def test_a_playbook_is_shipped_only_byte_for_byte(tmp_path: Path) -> None:
    raw = Path(builtin("crash")).read_bytes()
    own, copy = tmp_path / "own.yaml", tmp_path / "copy.yaml"
    own.write_bytes(raw.replace(b"> 1.7", b"> 1e300", 1))
    copy.write_bytes(raw)
    assert load("crash").ref.shipped
    assert load(str(copy)).ref.shipped
    assert not load(str(own)).ref.shipped
