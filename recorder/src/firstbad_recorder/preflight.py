"""Checks before the first step of an own loop: a report, and `certificate.json`."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firstbad_recorder import preflight_checks as checks
from firstbad_recorder.certificate import digest, write_certificate
from firstbad_recorder.plain import as_plain
from firstbad_recorder.preflight_checks import CHECKS, Check
from firstbad_recorder.surroundings import surroundings

MISSING = {
    "loss_numerics": "pass `loss_function`",
    "loss_definition": "pass `loss_function`",
    "mask_construction": "pass `masks` (source and loss_mask of one batch)",
    "accumulation": "pass `accumulation` (backward, whole, parts)",
    "trainer_repeatability": "pass `model` and `consistency` (rows, n_prompt)",
    "fit": "pass `model` and `nll`",
}
"""What a check that was not run needs."""

NARROW = 28
"""Columns below which text is not put beside a name."""
MOST_SAID = 400
"""Characters of what was raised that are told."""
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Preflight:
    """All checks of one preflight."""

    checks: list[Check]
    preflight_key: dict[str, str]
    """Digests `loss_code` and `model_shape`, for `Recorder(preflight_key=...)`. Empty where there
    is nothing to take them of: the certificate then holds for no run."""
    seconds: float
    loss: dict[str, Any] | None = None
    """What `probes.loss_function.examine` found."""
    denominators: list[dict[str, Any]] = field(default_factory=list)
    """What `probes.denominators` lists."""

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [check.name for check in self.checks if check.outcome == "fail"]

    @property
    def broken(self) -> list[str]:
        """Names of the checks that could not be run, since something was raised in them."""
        return [check.name for check in self.checks if check.error]

    def certified(self) -> list[dict[str, Any]]:
        """Checks as `certificate.json` has them."""
        held = [check for check in self.checks if check.name in CHECKS]
        return [_parts(check, ("name", "outcome", "measured", "bound", "text")) for check in held]

    def described(self) -> list[dict[str, Any]]:
        """All checks as plain data; those of a certificate with the fix, and what was raised."""
        parts = ("name", "outcome", "text", "measured", "bound", "fix", "error")
        return [_parts(check, parts) for check in self.checks]

    def report(self, width: int | None = None) -> str:
        """One line for each check; of failed ones both operands and the fix.

        Args:
            width: Columns that lines are wrapped at; those of the terminal unless given, and none
                where the output is no terminal.
        """
        names = max(len(check.name) for check in self.checks)
        hang = len(f"PASS  {'':{names}}  ")
        shown = [(f"{_word(c)}  {c.name:{names}}  {c.text}", hang) for c in self.checks]
        for check in self.checks:
            if check.outcome == "fail":
                shown += [("", 0), (f"FAIL {check.name}", 2)]
                shown += [(f"  {name:9} {text}", 12) for name, text in _operands(check)]
        shown += [("", 0), *_audit(self.denominators)] if self.denominators else []
        shown += [("", 0), (self._counts(), 2)]
        room = _columns() if width is None else width
        lines = [part for line, indent in shown for part in _wrapped(line, indent, room)]
        return "\n".join(lines) + "\n"

    def _counts(self) -> str:
        outcomes = [check.outcome for check in self.checks]
        idle = outcomes.count("not_run") - len(self.broken)
        said = f"{outcomes.count('fail')} failed, {outcomes.count('pass')} passed, {idle} not run"
        if self.broken:
            said += f", {len(self.broken)} could not be run"
        return f"{said} in {self.seconds:.1f} s"


def _parts(check: Check, names: Sequence[str]) -> dict[str, Any]:
    return {name: as_plain(getattr(check, name)) for name in names}


WORDS = {"pass": "PASS", "fail": "FAIL", "not_run": "----"}


def _word(check: Check) -> str:
    return "ERR " if check.error else WORDS[check.outcome]


def _audit(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Lines of the denominators, each with what it is indented by where it goes on."""
    lines = [("Normalisations in use, and what each makes count more", 2)]
    for entry in entries:
        off = "  (not as the settings say)" if entry.get("disagrees") else ""
        lines.append((f"  {entry['what']}: {entry['is']} [{entry['source']}]{off}", 4))
        lines.append((f"    {entry['counts_more']}", 4))
    return lines


def _columns() -> int:
    """Of the terminal; 0 where the output is none."""
    with suppress(Exception):  # what stands in for stdout need not be able to say
        if sys.stdout.isatty():
            return shutil.get_terminal_size().columns
    return 0


def _wrapped(line: str, indent: int, width: int) -> list[str]:
    """A line in parts of at most `width` columns that begin `indent` columns to the right.

    No word is broken, and in JSON no name is parted from its value.
    """
    if not width or len(line) <= width:
        return [line]
    if width - indent < NARROW:
        indent = 4
    text = line.replace('": ', '":\N{NO-BREAK SPACE}')
    kept = len(text) - len(text.lstrip())
    parts = textwrap.wrap(
        text.lstrip(),
        max(width, NARROW),
        initial_indent=" " * kept,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in parts]


def _operands(check: Check) -> list[tuple[str, str]]:
    measured, bound = check.measured, check.bound
    shown = [key for key in bound if key in measured and measured[key] != bound[key]]
    return [
        ("measured", json.dumps(as_plain({key: measured[key] for key in shown} or measured))),
        ("bound", json.dumps(as_plain({key: bound[key] for key in shown} or bound))),
        ("why", check.text),
        ("fix", check.fix),
    ]


def preflight(
    folder: str | os.PathLike[str] | None = None,
    *,
    loss_function: Callable[[Any], Any] | None = None,
    stated: Any = None,
    example: Any = None,
    dtype: Any = None,
    masks: Mapping[str, Any] | None = None,
    model: Any = None,
    accumulation: Mapping[str, Any] | None = None,
    consistency: Mapping[str, Any] | None = None,
    nll: Callable[[], Any] | None = None,
    config: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    loss_code: str | os.PathLike[str] | None = None,
) -> Preflight:
    """Run the probes of probability, accumulation, masks and loss that there is input for.

    Nothing is raised: a check that cannot be run says why. Model and optimizer are left as they
    were.

    Args:
        folder: Of the record: `certificate.json` is written there.
        loss_function: From a `probes.loss_input.LossInput` to the scalar that `backward()` is
            called on.
        stated: The objective that is meant, a `probes.loss_function.Stated`.
        example: A `LossInput` of a real batch: gives `dtype` and `device`, and what stands at
            masked places.
        dtype: Of the log-probs, where there is no example.
        masks: Arguments of `probes.masks.masks` for one batch.
        model: Needed by the three that follow.
        accumulation: Further arguments of `probes.accumulation.accumulation`.
        consistency: Further arguments of `probes.consistency.consistency`; dropout and the like
            stay as they are unless `keep_mode` is False.
        nll: Likelihood of 4 to 8 fixed completions, as `probes.fit.fit` takes it.
        config: Settings in force, as they are given to `Recorder`.
        versions: Library versions, as they are given to `Recorder`; those of `surroundings()`
            unless given.
        loss_code: File whose text is the loss; else the source of `loss_function`.
    """
    begin = time.perf_counter()
    done: list[Check] = []
    loss, audit = _loss_checks(done, loss_function, stated, example, dtype, config)
    given = {"model": model}
    as_is = {**given, "keep_mode": True}
    inputs: list[tuple[str, Callable[[Any], Check], Any]] = [
        ("mask_construction", checks.mask_construction, masks),
        ("accumulation", checks.accumulation, _with(given, accumulation)),
        ("trainer_repeatability", checks.trainer_repeatability, _with(as_is, consistency)),
        ("fit", checks.fit, _with(given, None if nll is None else {"nll": nll})),
    ]  # fmt: skip
    for name, check, argument in inputs:
        done.append(_run(name, None if argument is None else lambda: check(argument)))  # noqa: B023
    key = preflight_key(model, loss_code, loss_function)
    made = Preflight(done, key, time.perf_counter() - begin, loss, audit)
    if folder is not None:
        settings = {} if config is None else config
        libraries = surroundings()["versions"] if versions is None else versions
        about: dict[str, Any] = {"config": settings, "versions": libraries, "preflight_key": key}
        with suppress(OSError):  # the file that is missing says it
            write_certificate(folder, made.certified(), **about)
    return made


def _with(given: Mapping[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if more is None or given["model"] is None else {**given, **more}


def _loss_checks(
    done: list[Check],
    loss_function: Callable[[Any], Any] | None,
    stated: Any,
    example: Any,
    dtype: Any,
    config: Mapping[str, Any] | None,
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    from firstbad_recorder.probes.denominators import denominators
    from firstbad_recorder.probes.loss_function import examine, objective

    if loss_function is None:
        done += [_run(name, None) for name in ("loss_numerics", "loss_definition")]
        return None, denominators(config)
    device: Any = "cpu"
    masked_finite: bool | None = None
    if example is not None:
        dtype, device = example.logp_new.dtype, example.logp_new.device
        off = example.loss_mask == 0
        tensors = (example.logp_new, example.logp_old, example.logp_ref, example.logp_engine)
        masked_finite = all(bool(t[off].isfinite().all()) for t in tensors if t is not None)
    try:
        found = examine(loss_function, dtype, device)
        probe = objective(loss_function, stated, found, dtype, device)
    except Exception as error:
        done += [_stopped(name, error) for name in ("loss_numerics", "loss_definition")]
        return None, denominators(config)
    done.append(checks.loss_numerics(found, masked_finite))
    done.append(checks.loss_definition(found, probe, getattr(stated, "form", None)))
    return found, denominators(config, found)


def _run(name: str, check: Callable[[], Check] | None) -> Check:
    if check is None:
        return Check(name, "not_run", f"not run: {MISSING[name]}")
    try:
        return check()
    except Exception as error:
        return _stopped(name, error)


def _stopped(name: str, error: Exception) -> Check:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    said = told[:MOST_SAID] + _raised_in(error)
    return Check(name, "not_run", f"could not be run: {said}", error=said)


def _raised_in(error: Exception) -> str:
    """The innermost line of the caller's own code that the error went through."""
    files = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    own = [(f, n) for f, n in files if not f.startswith((HERE, "<")) and "site-packages" not in f]
    return f" ({os.path.basename(own[-1][0])}:{own[-1][1]})" if own else ""


def preflight_key(
    model: Any,
    loss_code: str | os.PathLike[str] | None = None,
    loss_function: Callable[[Any], Any] | None = None,
) -> dict[str, str]:
    """For `Recorder(preflight_key=...)`: digests of the loss's source and the model's shape."""
    return {"loss_code": _code(loss_function, loss_code), "model_shape": _shape(model)}


def _code(function: Callable[[Any], Any] | None, file: str | os.PathLike[str] | None) -> str:
    """Digest of the source; empty where it cannot be had."""
    try:
        if file is not None:
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()
        if function is not None:
            return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        pass
    return ""


def _shape(model: Any) -> str:
    if model is None:
        return ""
    return digest({name: [list(p.shape), str(p.dtype)] for name, p in model.named_parameters()})
