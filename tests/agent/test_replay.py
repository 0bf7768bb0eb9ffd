"""`firstbad replay` and `firstbad preflight`: what a person can fix is told in one line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from firstbad.agent.cli import main
from firstbad.agent.replay import nothing_fits, report, rows_of
from firstbad.tools.run import Capture
from firstbad_recorder import Recorder

NO_TORCH = importlib.util.find_spec("transformers") is None


def capture() -> Capture:
    nan = np.nan
    return Capture(
        3,
        {
            "prompt_token_id": np.array([[0, 5, 6], [7, 8, 9]]),
            "prompt_mask": np.array([[0, 1, 1], [1, 1, 1]]),
            "token_id": np.array([[11, 12, 1], [13, 1, 0]]),
            "source": np.array([[3, 3, 3], [3, 3, 0]]),
            "completion_mask": np.array([[1, 1, 1], [1, 1, 0]]),
            "logp_new": np.array([[-0.1, -0.2, -0.3], [-0.4, nan, nan]]),
        },
        {},
    )


def test_rows_are_read_without_padding() -> None:
    found = rows_of(capture(), 8)
    assert found.ids == [[5, 6, 11, 12, 1], [7, 8, 9, 13, 1]]
    assert found.n_prompt == [2, 3]
    assert found.recorded["logp_new"][0] == [-0.1, -0.2, -0.3]
    assert len(rows_of(capture(), 1).ids) == 1


@pytest.mark.parametrize(
    ("fits", "off", "says"),
    [
        (["logp_new", "logp_old"], False, "These weights give what was recorded of the pass"),
        ([], True, "They do not give what was recorded of the pass"),
        (["logp_old"], False, "They do not give what was recorded of the pass that was diff"),
    ],
)
def test_the_report_says_whose_log_probs_the_weights_give(
    fits: list[str], off: bool, says: str
) -> None:
    figures = {"n": 5, "mean": 0.1, "p99": 0.2, "max": 0.3}
    found = {
        "step": 3, "weights_of_step": 2, "captured_steps": [3], "n_rows": 2, "temperature": 1.0,
        "model": "m", "fits": fits, "finite": True,
        "passes": {"recheck": figures, "logp_new": figures, "logp_old": figures},
        "fit": {"nll_first": 3.0, "nll_last": 2.0, "n_updates": 20}, "first_nonfinite": None,
    }  # fmt: skip
    assert nothing_fits(found) is off
    assert says in "\n".join(report(found))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            "runs/checkpoint-3",
            "`checkpoint-3` has the weights after the update of step 3: give checkpoint 2; "
            "it belongs to step 4, which was not captured.",
        ),
        (
            "runs/checkpoint-7/",
            "the update of step 7: give checkpoint 2, or this one with --step 8.",
        ),
        ("runs/checkpoint-2", None),
        ("runs/final", None),
    ],
)
def test_weights_that_do_not_fit_are_told_which_checkpoint_does(
    model: str, says: str | None
) -> None:
    figures = {"n": 5, "mean": 0.1, "p99": 0.2, "max": 0.3}
    found = {
        "step": 3, "weights_of_step": 2, "captured_steps": [3, 8], "n_rows": 2, "temperature": 1.0,
        "model": model, "fits": [], "finite": True,
        "passes": {"recheck": figures, "logp_new": figures}, "first_nonfinite": None,
        "fit": {"nll_first": 3.0, "nll_last": 2.0, "n_updates": 20},
    }  # fmt: skip
    said = " ".join(report(found))
    assert "A capture of step 3 has the weights of step 2, before its own update." in said
    assert ("give checkpoint" in said) == (says is not None)
    assert says is None or says in said
    fitting = " ".join(report({**found, "fits": ["logp_new"]}))
    assert "has the weights of step 2" not in fitting


def test_the_replay_is_wrapped_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"n": 5, "mean": 0.00469, "p99": 0.03921, "max": 0.03921}
    found = {
        "step": 3, "weights_of_step": 2, "captured_steps": [3], "n_rows": 2, "temperature": 1.0,
        "model": "runs/checkpoint-3", "fits": [], "finite": True,
        "passes": {"layout": figures, "logp_new": figures, "logp_old": figures},
        "first_nonfinite": None, "fit": {"nll_first": 3.0, "nll_last": 2.0, "n_updates": 20},
    }  # fmt: skip
    words = set(" ".join(report(found)).split())
    monkeypatch.setenv("COLUMNS", "60")
    narrow = [*report(found)]
    assert max(map(len, narrow)) <= 60
    assert set(" ".join(narrow).split()) == words


def test_passes_without_a_finite_number_are_said() -> None:
    nothing = {"n": 0}
    found = {
        "step": 3, "weights_of_step": 2, "captured_steps": [3], "n_rows": 2, "temperature": 1.0,
        "model": "m", "fits": [], "finite": False,
        "passes": {"recheck": nothing, "layout": nothing, "logp_new": nothing},
        "fit": {"nll_first": None, "nll_last": None, "n_updates": 20},
        "first_nonfinite": {"operation": "mm", "phase": "forward", "module": "lm_head"},
    }  # fmt: skip
    told = "\n".join(report(found))
    assert told.count("not finite on any token") == 3
    assert "Not finite: first `mm` in the forward pass (lm_head)." in told


def test_weights_that_are_not_finite_are_gone_through(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    model.save_pretrained(tmp_path / "model")
    asked = ["replay", f"rec:{record}", "--model", str(tmp_path / "model")]
    assert main(asked) == 4
    assert "Not finite: first `embedding` in the forward pass" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 4
    said = json.loads(capsys.readouterr().out)
    assert not said["finite"]
    assert said["first_nonfinite"]["operation"] == "embedding"
    assert said["fit"]["nll_first"] is None
    assert said["passes"]["layout"] == {"n": 0}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record with one captured step."""
    tokens = {"token_id": [[5, 6, 7, 1]], "source": [[2, 2, 3, 3]]}
    with Recorder(tmp_path / "record") as recorder:
        recorder.scalars(3, loss=0.5)
        recorder.capture(3, tokens={**tokens, "logp_new": [[None, None, -0.5, -0.5]]})
    return tmp_path / "record"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--step", "4"], "no capture of step 4; there are: 3"),
        ([], "no folder of a model"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], told: str
) -> None:
    pytest.importorskip("torch")
    assert main(["replay", f"rec:{record}", "--model", str(tmp_path), *more]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.skipif(not NO_TORCH, reason="transformers is installed")
def test_without_torch_it_says_what_to_install(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    folder = f"{record}/steps/00000003"
    assert main(["replay", folder, "--model", str(tmp_path)]) == 2
    assert "pip install 'firstbad[torch]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("loss", "expected MODULE:FUNCTION"),
        ("no_such_module:loss", "can't be imported from here"),
        ("broken:loss", "breaks when it is imported"),
        ("ends:loss", "ends the program when it is imported: SystemExit(3)"),
        ("sound:nothing", "has no function `nothing`"),
    ],
)
def test_a_loss_that_is_not_there_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    told: str,
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no data here')\n")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "sound.py").write_text("def loss(given):\n    return given.logp_new.sum()\n")
    monkeypatch.chdir(tmp_path)
    assert main(["preflight", name]) == 2
    assert told in capsys.readouterr().err


def test_a_loss_is_probed_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own_loss.py").write_text(
        "def turned(x):\n"
        "    ratio = (x.logp_new - x.logp_old).exp()\n"
        "    terms = ratio * x.advantage[:, None] * x.loss_mask\n"
        "    return terms.sum() / x.loss_mask.sum().clamp(min=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["preflight", "own_loss:turned", "--json", "--out", str(tmp_path / "out")]) == 4
    said = json.loads(capsys.readouterr().out)
    assert "loss_definition" in said["failed"]
    assert (tmp_path / "out" / "certificate.json").exists()


LOSSES = """
import sys

print("imported")


def sound(x):
    print("called")
    ratio = (x.logp_new - x.logp_old).clamp(-20, 20).exp()
    terms = -ratio * x.advantage[:, None] * x.loss_mask
    return terms.sum() / x.loss_mask.sum().clamp(min=1)


def boom(x):
    raise ValueError("not for me")


def matrix(x):
    return x.logp_new * 2


def leaves(x):
    sys.exit(3)
"""


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with losses in it."""
    pytest.importorskip("torch")
    (tmp_path / "probed_losses.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("boom", "found ValueError: not for me (probed_losses.py:15)"),
        ("matrix", "TypeError: the loss function gave a tensor of shape (4, 2), not a scalar"),
        ("leaves", "ends the program when it is called: SystemExit(3)"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_loss_that_cannot_be_probed_is_one_line_and_no_pass(
    capsys: pytest.CaptureFixture[str], name: str, told: str, more: list[str]
) -> None:
    assert main(["preflight", f"probed_losses:{name}", *more]) == 2
    said = capsys.readouterr()
    assert told in said.err.splitlines()[-1]
    assert said.out == ""


@pytest.mark.usefixtures("probed")
def test_json_has_all_checks_and_nothing_that_the_loss_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["preflight", "probed_losses:sound", "--json"]) == 0
    said = capsys.readouterr()
    found = {check["name"]: check for check in json.loads(said.out)["checks"]}
    assert list(found) == [
        "loss_numerics", "loss_definition", "mask_construction", "accumulation",
        "trainer_repeatability", "fit",
    ]  # fmt: skip
    assert found["loss_definition"]["outcome"] == "pass"
    assert {"text", "measured", "bound", "fix", "error"} < set(found["fit"])
    assert "called" in said.err


@pytest.mark.usefixtures("probed")
def test_outcomes_are_in_colour_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["preflight", "probed_losses:sound"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("firstbad.agent.console.is_terminal", lambda stream: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["preflight", "probed_losses:sound"]) == 0
    assert "\x1b[32mPASS\x1b[0m  loss_numerics" in capsys.readouterr().out
