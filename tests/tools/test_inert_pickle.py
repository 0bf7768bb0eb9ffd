"""Settings read off a pickle: plain values come out, and nothing in the file is carried out."""

from __future__ import annotations

import contextlib
import enum
import os
import pickle
import struct
import sys
import time
import tracemalloc
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.inert_pickle import MAX_BYTES, Refused, first_number, settings_in


class Scheduler(enum.Enum):
    """An enum as transformers has them."""

    COSINE = "cosine"


class Config:
    """A settings object, pickled as its class and its fields."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes lie in a module that only the writer can import."""
    module = types.ModuleType("trl_of_the_writer")
    for made in (Scheduler, Config):
        monkeypatch.setattr(made, "__module__", module.__name__)
        setattr(module, made.__name__, made)
    monkeypatch.setitem(sys.modules, module.__name__, module)


PLAIN = {
    "beta": 0.04,
    "num_generations": 8,
    "seed": -3,
    "big": 2**40,
    "bf16": True,
    "use_vllm": False,
    "epsilon_high": None,
    "loss_type": "dapo",
    "reward_weights": [1.0, 0.3],
    "betas": [0.9, 0.99],
    "kwargs": {"a": {"b": 1}},
}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_values_come_out_of_every_protocol(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Config(
        **{**PLAIN, "betas": (0.9, 0.99)},
        lr_scheduler_type=Scheduler.COSINE,
        inner=Config(split=False),
        data=b"raw",
        many={1, 2},
    )
    written = pickle.dumps(held, protocol=protocol)
    monkeypatch.delitem(sys.modules, "trl_of_the_writer")
    found = settings_in(written)
    assert found.pop("lr_scheduler_type") in ("cosine", "COSINE")
    assert found.pop("inner") == {"split": False}
    assert {name: found[name] for name in PLAIN} == PLAIN
    assert "data" not in found


def test_the_object_may_follow_others() -> None:
    pieces = [pickle.dumps(value) for value in (17, {"a": 1}, Config(beta=0.1))]
    assert first_number(b"".join(pieces)) == 17
    assert settings_in(b"".join(pieces), skip=2) == {"beta": 0.1}


class Call:
    """Pickled as a call."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts[0], self.parts[1:]


MARK = Path("/tmp") / f"firstbad-{os.getpid()}-was-here"


def with_fields(operations: bytes) -> bytes:
    """An object of some class with the field `a`, whose value the operations make."""
    return b"\x80\x04ctrl\nConfig\n)\x81}X\x01\x00\x00\x00a" + operations + b"sb."


def bomb(levels: int) -> bytes:
    """A list of two references to a list of two references to ...: 2 ** levels leaves."""
    made = b"]q\x00"
    for level in range(levels):
        put, get = bytes([level + 1]), bytes([level])
        made += b"]q" + put + b"(h" + get + b"h" + get + b"e"
    return with_fields(made)


def wide_map() -> bytes:
    """Many objects that are given the same large map, each a copy where maps are copied."""
    fields = b"".join(b"X\x04\x00\x00\x00" + b"%04d" % i + b"N" for i in range(5000))
    made = b"}q\x00(" + fields + b"u0" + b"ctrl\nConfig\n)\x81h\x00b0" * 30_000
    return b"\x80\x04" + made + b"ctrl\nConfig\n)\x81h\x00b."


def long_names() -> bytes:
    """Maps with one long key, nested and repeated: joined keys would take gigabytes."""
    key = b"X" + struct.pack("<I", 500_000) + b"k" * 500_000 + b"q\x00"
    made = b"}q\x01" + key + b"K\x01s"
    for level in range(1, 6):
        put, get = bytes([level + 1]), bytes([level])
        many = b"".join(b"X\x02\x00\x00\x00%02d" % i + b"h" + get for i in range(20))
        made += b"}q" + put + b"(" + many + b"h\x00h" + get + b"u"
    return with_fields(made)


HOSTILE = {
    "a call of os.system": with_fields(b"cposix\nsystem\nX\x02\x00\x00\x00id\x85R"),
    "a call by stack": with_fields(b"\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R"),
    "an old instance": with_fields(b"(X\x02\x00\x00\x00idisubprocess\nPopen\n"),
    "eval": with_fields(b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R"),
    "eval of old": with_fields(b"c__builtin__\neval\nX\x01\x00\x00\x001\x85R"),
    "a registered class": with_fields(b"\x82\x01"),
    "nothing": b"",
    "no pickle": b"PK or not",
    "cut off": with_fields(b"K\x01")[:-2],
    "an empty stack": b"\x80\x04R.",
    "no mark": b"\x80\x04(e.",
    "what was never kept": b"\x80\x04h\x09.",
    "no object": pickle.dumps({"beta": 1.0}),
    "no fields": pickle.dumps(3),
    "deep": with_fields(b"]" * 100_000 + b"a" * 99_999),
    "a list in itself": with_fields(b"]q\x00h\x00a"),
    "a million leaves": bomb(40),
    "a long list": with_fields(b"](" + b"K\x01" * 150_000 + b"e"),
    "too many operations": b"\x80\x04" + b"N0" * 150_000 + b"N.",
    "too large": with_fields(b"X" + struct.pack("<I", MAX_BYTES) + b"a" * MAX_BYTES),
    "long names": long_names(),
    "digits": with_fields(b"I" + b"9" * 900_000 + b"\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_without_harm(name: str) -> None:
    begun = time.process_time()
    tracemalloc.start()
    with pytest.raises(Refused) as refusal:
        settings_in(HOSTILE[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(refusal.value)
    assert peak < 200 * 2**20
    assert time.process_time() - begun < 20  # some seconds of them are the tracing


def test_one_map_for_many_objects_is_not_copied() -> None:
    begun = time.process_time()
    assert len(settings_in(wide_map())) == 5000
    assert time.process_time() - begun < 20  # copied it would take a minute


def test_nothing_is_called() -> None:
    calls = Config(a=Call(os.system, f"touch {MARK}"), b=Call(eval, f"open({str(MARK)!r}, 'w')"))
    for protocol in range(6):
        with pytest.raises(Refused, match="no settings need"):
            settings_in(pickle.dumps(calls, protocol=protocol))
    assert not MARK.exists()


def test_what_another_package_is_called_for_stays_inert() -> None:
    found = settings_in(with_fields(b"cnumpy.testing\nrunstring\nX\x02\x00\x00\x00id\x85R"))
    assert found == {"a": "id"}


def test_a_number_too_large_is_left_out() -> None:
    assert settings_in(pickle.dumps(Config(a=1 << 5000, b=2))) == {"b": 2}


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 60))
def test_any_bytes_give_settings_or_a_refusal(noise: bytes, at: int) -> None:
    good = pickle.dumps(Config(**PLAIN), protocol=2)
    for written in (noise, good[:at] + noise + good[at:], good[:at] + noise):
        with contextlib.suppress(Refused):
            assert settings_in(written)
