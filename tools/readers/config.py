"""Settings of a run, flat, from the files in which frameworks leave them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.jsonish import flatten, parse_object
from firstbad.tools.readers.yamlish import parse_yaml
from firstbad.tools.run import TRAINER_KEYS, Config

_ARGS = (
    "args.json",
    "training_args.json",
    "train_args.json",
    "grpo_config.json",
    "config.yaml",
    "config.yml",
    ".hydra/config.yaml",
    "files/config.yaml",
)
_MODEL = ("model_config.json", "config.json", "tokenizer/config.json", "model/config.json")
_OF_A_MODEL = {"model_type", "architectures", "vocab_size"}
_MAX_BYTES = 16 * 2**20
_SECRET = re.compile(r"(hub|hf|access|auth)_token|api_?key|password|secret|credential", re.I)


def read_config(root: Root, saved: Sequence[tuple[File, Mapping[str, object]]] = ()) -> Config:
    """Settings by name; those of the model under `model.`, of generation under `generation.`.

    What the trainer saved by itself, the newest first, serves where no file states the settings of
    a trainer.
    """
    values: dict[str, object] = {}
    sources: list[Source] = []

    def take(file: File, found: Mapping[str, object], prefix: str = "") -> None:
        for name, value in visible(found).items():
            values.setdefault(prefix + name, value)
        sources.append(root.source(file, "config"))

    for file in filter(None, (root.first(name) for name in _ARGS)):
        if found := _object(root, file):
            take(file, found)
    if saved and values.keys().isdisjoint(TRAINER_KEYS):
        take(*saved[0])
    newest_first = [f"{folder}/" for folder in reversed(checkpoint_folders(root))]
    for file in filter(None, (root.first(n) for n in (*_MODEL, *_in(newest_first, "config.json")))):
        found = _object(root, file)
        if found and not _OF_A_MODEL.isdisjoint(found):
            take(file, found, "model.")
            break
    for name, prefix in (
        ("generation_config.json", "generation."),
        ("adapter_config.json", "adapter."),
    ):
        other = root.first(*_in(["", *newest_first], name))
        if other and (found := _object(root, other)):
            take(other, found, prefix)
    return Config(values, tuple(sources))


def visible(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings without nesting, and without what their names call a secret."""
    return {
        name: "<hidden>" if isinstance(value, str) and value and _SECRET.search(name) else value
        for name, value in flatten(dict(settings), ".").items()
    }


def _in(folders: Iterable[str], name: str) -> list[str]:
    return [folder + name for folder in folders]


def checkpoint_folders(root: Root) -> list[str]:
    """`checkpoint-<step>` folders directly below the root, in order of their steps."""
    found = {
        int(match[1]): match[0]
        for file in root.files
        if (match := re.match(r"checkpoint-(\d{1,15})(?=/)", file.name))
    }
    return [found[step] for step in sorted(found)]


def _object(root: Root, file: File) -> dict[str, object] | None:
    data = root.try_read(file, _MAX_BYTES)
    if data is None:
        return None
    try:
        if file.suffix == ".json":
            return parse_object(data, file.name)
        return _yaml(data, file.name)
    except UserError as error:
        root.note("file_skipped", str(error))
        return None


def _yaml(data: bytes, name: str) -> dict[str, object]:
    value = parse_yaml(data, name)
    if not isinstance(value, dict):
        raise UserError(f"`{name}` holds no settings")
    # W&B wraps each setting: {"lr": {"value": 1e-6}}.
    return {
        str(key): item["value"]
        if isinstance(item, dict) and set(item) <= {"value", "desc"} and "value" in item
        else item
        for key, item in value.items()
    }
