"""Token texts from a `tokenizer.json`, and the ids that end an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.config import checkpoint_folders
from firstbad.tools.readers.jsonish import parse_object
from firstbad.tools.run import Config, Vocabulary


def read_vocabulary(root: Root, config: Config) -> Vocabulary | None:
    """The vocabulary, or None when no file tells token texts or end ids."""
    folders = ["", "tokenizer/", *(f"{name}/" for name in reversed(checkpoint_folders(root)))]
    file = root.first(*(f"{folder}tokenizer.json" for folder in folders))
    settings_file = root.first(*(f"{folder}tokenizer_config.json" for folder in folders))
    data = None if file is None else root.try_read(file)
    texts = TokenTexts(data or b"", file.name if file else "")
    settings = _settings(root, settings_file)
    ids = {**texts.added, **_added_ids(settings)}
    stated = {
        "tokenizer": _ids_of(settings.get("eos_token"), ids, texts),
        "model": _whole_numbers(config.values.get("model.eos_token_id")),
        "generation": _whole_numbers(config.values.get("generation.eos_token_id")),
        "settings": _whole_numbers(config.values.get("eos_token_id")),
    }
    eos = set().union(*stated.values())
    pad = _ids_of(settings.get("pad_token"), ids, texts)
    pad = pad or _whole_numbers(config.values.get("model.pad_token_id"))
    if data is None and not eos:
        return None
    files = [found for found in (file, settings_file) if found is not None]
    sources = (*(root.source(found, "tokenizer") for found in files), *config.sources)
    template = _template(root, folders, settings)
    return Vocabulary(
        texts,
        frozenset(eos),
        min(pad, default=None),
        sources,
        template=template,
        eos_by_file={name: frozenset(found) for name, found in stated.items() if found},
    )


def _template(root: Root, folders: Sequence[str], settings: Mapping[str, object]) -> str:
    """The chat template, from a file of its own or the tokenizer's settings; else empty."""
    file = root.first(*(f"{folder}chat_template.jinja" for folder in folders))
    data = None if file is None else root.try_read(file, 2**20)
    if data is not None:
        return data.decode("utf-8", "replace")
    stated = settings.get("chat_template")
    if isinstance(stated, list):  # several, by name
        named = [one.get("template") for one in stated if isinstance(one, dict)]
        stated = next((text for text in named if isinstance(text, str)), "")
    return stated if isinstance(stated, str) else ""


class TokenTexts(Mapping[int, str]):
    """Token texts by id; the file is taken apart when the first text is wanted."""

    def __init__(self, data: bytes, name: str) -> None:
        """`data` is the content of a `tokenizer.json`, or nothing."""
        self._data = data
        self._name = name

    def __getitem__(self, token_id: int) -> str:
        """The text of a token; KeyError when there is none."""
        return self._texts[token_id]

    def __iter__(self) -> Iterator[int]:
        """Token ids."""
        return iter(self._texts)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._texts)

    @cached_property
    def added(self) -> dict[str, int]:
        """Ids of added tokens by text, without taking the whole file apart."""
        text = self._data[: 2**20].decode("utf-8", "replace")
        start = re.search(r'"added_tokens"\s*:\s*', text)
        if start is None:
            return {}
        try:
            entries, _ = json.JSONDecoder().raw_decode(text, start.end())
        except (ValueError, RecursionError):
            return {}
        return {entry["content"]: entry["id"] for entry in _entries(entries)}

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by raw token, as the vocabulary spells it."""
        vocabulary = self._model.get("vocab")
        if isinstance(vocabulary, dict):
            return {t: i for t, i in vocabulary.items() if isinstance(i, int)}
        if isinstance(vocabulary, list):  # Unigram: [[piece, score], ...]
            pairs = [(e, i) for i, e in enumerate(vocabulary) if isinstance(e, list) and e]
            return {str(entry[0]): i for entry, i in pairs}
        return {}

    @cached_property
    def _file(self) -> dict[str, object]:
        try:
            return parse_object(self._data, self._name) if self._data else {}
        except UserError:
            return {}

    @property
    def _model(self) -> dict[str, object]:
        model = self._file.get("model")
        return model if isinstance(model, dict) else {}

    @cached_property
    def _texts(self) -> dict[int, str]:
        spell = _spelling(self._model, json.dumps([self._file.get(k) for k in _DECODING]))
        texts = {token_id: spell(token) for token, token_id in self.ids.items()}
        for entry in _entries(self._file.get("added_tokens")):
            texts[entry["id"]] = entry["content"]
        return texts


_DECODING = ("pre_tokenizer", "decoder", "normalizer")


def _spelling(model: Mapping[str, object], decoding: str) -> Callable[[str], str]:
    """How the raw tokens of a vocabulary become text."""
    if '"ByteLevel"' in decoding:
        table = _byte_of_character()

        def byte_level(token: str) -> str:
            if any(character not in table for character in token):
                return token
            return bytes(table[character] for character in token).decode("utf-8", "replace")

        return byte_level
    if model.get("type") == "WordPiece":
        return lambda token: token.removeprefix("##") if token.startswith("##") else " " + token
    if '"WhitespaceSplit"' in decoding or model.get("type") == "WordLevel":
        return lambda token: token

    def metaspace(token: str) -> str:
        if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
            return bytes([int(byte[1], 16)]).decode("utf-8", "replace")
        return token.replace("\u2581", " ")

    return metaspace


def _byte_of_character() -> dict[str, int]:
    """The table of byte-level BPE: printable bytes stand for themselves, the rest are moved up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    moved = (byte for byte in range(256) if byte not in printable)
    table.update({chr(256 + i): byte for i, byte in enumerate(moved)})
    return table


def _entries(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [
        entry
        for entry in value
        if isinstance(entry, dict)
        and isinstance(entry.get("id"), int)
        and isinstance(entry.get("content"), str)
    ]


def _settings(root: Root, file: File | None) -> dict[str, object]:
    data = None if file is None else root.try_read(file)
    if file is None or data is None:
        return {}
    try:
        return parse_object(data, file.name)
    except UserError as error:
        root.note("file_skipped", str(error))
        return {}


def _added_ids(settings: Mapping[str, object]) -> dict[str, int]:
    """Ids that `tokenizer_config.json` states in `added_tokens_decoder`."""
    decoder = settings.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        return {}
    return {
        entry["content"]: int(key)
        for key, entry in decoder.items()
        if re.fullmatch(r"\d{1,15}", key)
        and isinstance(entry, dict)
        and isinstance(entry.get("content"), str)
    }


def _ids_of(token: object, ids: Mapping[str, int], texts: TokenTexts) -> set[int]:
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str):
        return set()
    found = ids.get(token, None)
    if found is None:
        found = texts.ids.get(token)
    return set() if found is None else {found}


def _whole_numbers(value: object) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {v for v in values if isinstance(v, int) and not isinstance(v, bool)}
