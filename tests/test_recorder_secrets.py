"""What may be a secret does not reach the disk, however deep it lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firstbad_recorder import Recorder, surroundings
from firstbad_recorder.certificate import digest, write_certificate
from firstbad_recorder.secrets import is_secret, without_secrets

HF = "hf_" + "aB3" * 11


@pytest.mark.parametrize(
    "name",
    [
        "hub_token", "HF_TOKEN", "token", "access_tokens", "api_key", "apikey", "wandb-api-key",
        "AWS_ACCESS_KEY_ID", "ssh_private_key", "password", "passwd", "PASSPHRASE", "db_pwd",
        "client_secret", "credentials", "auth", "Authorization", "bearer", "cookie", "http_proxy",
        "github_pat", "key", "eos_token_password", "prompt_key_secret", "use_auth_token",
    ],
)  # fmt: skip
def test_a_name_that_speaks_of_a_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer_path", "TOKENIZERS_PARALLELISM", "tokenization_sanity_check_mode", "eos_token",
        "pad_token_id", "prompt_key", "reward_fn_key", "gdpo_reward_keys", "teacher_key", "author",
        "enable_thinking_key", "bypass_mode", "keyword", "path", "loss_type", "compat",
    ],
)  # fmt: skip
def test_a_name_that_does_not(name: str) -> None:
    assert not is_secret(name)


def test_secrets_go_at_every_depth_and_numbers_and_flags_stay() -> None:
    settings: dict[Any, Any] = {
        "model_init_kwargs": {"token": "s1", "dtype": "x", "deep": [{"api_key": "s2", "n": 1}]},
        "tokens": {"user": "s3", "n": 7},
        "auth": ["s4", ("s5", 3), {"x": "s6"}],
        "password": 12345,
        "max_tokens": 5,
        "push_token": True,
        "hub_token": None,
        "eos_token": "<|im_end|>",
        "url": "https://me:s7@host/a?b=c",
        "note": f"started with {HF}, or sk-{'x1' * 12}",
        "headers": ["Bearer abcdefgh123"],
        3: "three",
    }  # fmt: skip
    assert without_secrets(settings) == {
        "model_init_kwargs": {"dtype": "x", "deep": [{"n": 1}]},
        "tokens": {"n": 7},
        "auth": [[3], {}],
        "max_tokens": 5,
        "push_token": True,
        "hub_token": None,
        "eos_token": "<|im_end|>",
        "url": "https://<hidden>@host/a?b=c",
        "note": "started with <hidden>, or <hidden>",
        "headers": ["Bearer <hidden>"],
        "3": "three",
    }
    assert without_secrets(without_secrets(settings)) == without_secrets(settings)


def test_no_setting_of_a_record_holds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_CLIENT_KEY", "s1")
    monkeypatch.setenv("VLLM_AUTH", "s1")
    nested = {"kwargs": {"token": "s1", "revision": "main"}, "repr": f"Config({HF})"}
    about: dict[str, Any] = {**surroundings(), "config": nested, "requested": {"a": [nested]}}
    recorder = Recorder(tmp_path, **about)
    recorder.close()
    recorder.reopen({**nested, "b": 1})
    text = (tmp_path / "run.json").read_text()
    assert "s1" not in text
    assert HF not in text
    said = json.loads(text)
    assert said["config"] == {"kwargs": {"revision": "main"}, "repr": "Config(<hidden>)"}
    assert said["restarts"][0]["config"] == {**said["config"], "b": 1}


def test_a_certificate_fits_the_settings_that_are_left(tmp_path: Path) -> None:
    config = {"lr": 1e-6, "kwargs": {"token": HF}, "path": Path("x")}
    Recorder(tmp_path, config=config, versions={"trl": "1"}).close()
    write_certificate(tmp_path, [], config=config, versions={"trl": "1"}, preflight_key={})
    said = json.loads((tmp_path / "run.json").read_text())
    key = json.loads((tmp_path / "certificate.json").read_text())["key"]
    assert key == {"config": digest(said["config"]), "versions": digest(said["versions"])}
