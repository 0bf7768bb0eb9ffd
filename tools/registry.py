"""The tool table: a typed function goes in, an Evidence record comes out."""

from __future__ import annotations

import inspect
import time
import traceback
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from firstbad import __version__
from firstbad.tools.errors import NoData, ToolInputError
from firstbad.tools.evidence import Evidence, Metrics, Origin, Scalar, Source, StepWindow, Table
from firstbad.tools.plurals import of_one
from firstbad.tools.run import Run
from firstbad.tools.used import Watched

M = TypeVar("M", bound=Metrics)
F = TypeVar("F", bound=Callable[..., "Measured[Any]"])


@dataclass(frozen=True)
class Measured(Generic[M]):
    """What a tool returns: metrics for gates, one sentence of fact, tables for people."""

    metrics: M
    summary: str
    tables: tuple[Table, ...] = ()
    sources: tuple[Source, ...] = ()
    """Files beside those of the run's parts that the tool asked for, which are noted for it."""
    window: tuple[int, int] | None = None
    signal: str = ""
    """What a dated measure was seen in."""
    origin: Origin = "tool"
    quote: str = ""
    """A sentence that quotes the run's own files."""


@dataclass(frozen=True)
class Tool:
    """A registered tool with the two facts that are read from its signature."""

    name: str
    function: Callable[..., Measured[Any]]
    metrics: type[Metrics]
    settings: type[BaseModel]

    @property
    def summary(self) -> str:
        """First line of the docstring: what is measured."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @property
    def description(self) -> str:
        """Whole docstring: unit, formula, and what the tool cannot tell."""
        return inspect.getdoc(self.function) or ""


_TABLE: dict[str, Tool] = {}

# One line per file of measurements, under the layer whose folder it lies in. A new file of tools is
# added here and nowhere else.
_MODULES = {
    "window": (
        "around",
        "first_bad",
        "process_signs",
        "reproduction",
        "rollout_text",
        "scores",
        "sharp",
        "states",
        "stock",
        "sudden",
    ),
    "records": (
        "certificate",
        "chat_template",
        "data_position",
        "duplicates",
        "ending",
        "evaluations",
        "events",
        "generation_config",
        "gold",
        "gold_facts",
        "judge",
        "known_faults",
        "logged_figures",
        "logged_means",
        "misplaced",
        "phases",
        "prompts",
        "requested",
        "resumed_seeds",
        "resumes",
        "rollout_stall",
        "rows",
        "seeds",
        "stages",
        "stop_ids",
        "stop_rule",
        "truncation",
        "variety",
    ),
    "probability": (
        "completion_ids",
        "declared",
        "deliveries",
        "delivery_gaps",
        "engine_tokens",
        "first_pass",
        "first_tokens",
        "fitting_weights",
        "floors",
        "logprob_gap",
        "origin",
        "policy_lag",
        "positions",
        "processed_logprobs",
        "prompt_ids",
        "ratios",
        "routing",
        "sampling_settings",
        "surprise",
        "surprise_change",
    ),
    "accumulation": (
        "accumulation_probe",
        "arrival",
        "captured_loss",
        "fit_probe",
        "ledger_reach",
        "ledger_rows",
        "ledger_weights",
        "loss_identity",
        "loss_scatter",
        "norms",
        "objective_probe",
        "parameter_groups",
        "still_parameters",
        "update_sign",
    ),
    "masks": (
        "attention",
        "cut_answers",
        "cut_switches",
        "dirty_samples",
        "loss_masks",
        "objective_masks",
        "stop_tokens",
        "untrained_rows",
    ),
    "numerics": (
        "absorbed",
        "added_eps",
        "clamps",
        "finite",
        "loss_code",
        "loss_scale",
        "moved",
        "precision",
        "ratio_grid",
        "ratio_limit",
        "trail",
        "trail_precision",
    ),
    "optimizer": (
        "clipping",
        "critic",
        "group_rates",
        "kl_budget",
        "loss_terms",
        "moments",
        "optimizer_state",
        "passes",
        "reference",
        "schedule",
        "step_size",
        "update_at_resume",
        "heavy_update",
        "update_size",
        "weight_moves",
    ),
    "reward": (
        "advantages",
        "cut_scores",
        "form_part",
        "form_pay",
        "grading_access",
        "judging",
        "length_pay",
        "paid_answers",
        "paid_words",
        "part_units",
        "part_weights",
        "reward_parts",
        "scoring_errors",
        "scoring_time",
        "silent_part",
        "spikes",
        "two_judges",
        "unscored",
    ),
    "samples": ("groups",),
}


def tool(function: F) -> F:
    """File a function in the tool table and return it unchanged.

    The function takes a Run and keyword settings with defaults, and is annotated to return
    `Measured[SomeMetrics]`.
    """
    hints = typing.get_type_hints(function)
    (metrics,) = typing.get_args(hints["return"])
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "run"]
    fields: dict[str, Any] = {p.name: (hints[p.name], p.default) for p in parameters}
    settings = _model(function.__name__, fields) if fields else _no_settings()
    _TABLE[function.__name__] = Tool(function.__name__, function, metrics, settings)
    return function


def _model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    config: ConfigDict = {"extra": "forbid", "frozen": True}
    return create_model(f"{name}_settings", __config__=config, **fields)


@cache
def _no_settings() -> type[BaseModel]:
    """One model for all tools that take none: to build one takes its time."""
    return _model("no", {})


def tools() -> Mapping[str, Tool]:
    """All tools by name."""
    _import_all()
    return dict(sorted(_TABLE.items()))


@cache
def _import_all() -> None:
    for layer, modules in _MODULES.items():
        for module in modules:
            import_module(f"firstbad.tools.{layer}.{module}")


def find_tool(name: str) -> Tool:
    """The tool called `name`.

    Raises:
        ToolInputError: no tool has that name; the text lists those that exist.
    """
    _import_all()
    if name not in _TABLE:
        raise ToolInputError(f"no tool `{name}`; there are: {', '.join(tools())}")
    return _TABLE[name]


def run_tool(name: str, run: Run, args: Mapping[str, Scalar], *, evidence_id: str) -> Evidence:
    """Run one tool and record the result; a tool that breaks becomes evidence of status error.

    Raises:
        ToolInputError: unknown tool, or arguments that do not fit its signature.
    """
    found = find_tool(name)
    try:
        settings = found.settings(**args).model_dump()
    except ValidationError as error:
        problems = "; ".join(
            f"no setting `{e['loc'][0]}`"
            if e["type"] == "extra_forbidden"
            else f"`{e['loc'][0]}`: {e['msg'][:1].lower()}{e['msg'][1:]}"
            for e in error.errors()
        )
        raise ToolInputError(
            f"`{name}` was given {dict(args)}: {problems}; "
            f"it takes {', '.join(found.settings.model_fields) or 'no settings'}"
        ) from error
    watched = Watched(run)
    started = time.perf_counter()
    common: dict[str, Any] = {
        "id": evidence_id,
        "tool": name,
        "tool_version": __version__,
        "args": dict(settings),
    }
    try:
        measured = found.function(watched, **settings)
    except NoData as missing:
        return Evidence(
            **common,
            status="no_data",
            sources=watched.files(),
            summary=of_one(str(missing)),
            seconds=time.perf_counter() - started,
        )
    except ToolInputError:
        raise
    except Exception as bug:  # a broken tool must not lose what the others found
        place = traceback.extract_tb(bug.__traceback__)[-1]
        return Evidence(
            **common,
            status="error",
            sources=watched.files(),
            error=f"{type(bug).__name__}: {bug} ({place.name}, line {place.lineno})",
            summary=f"`{name}` broke: {type(bug).__name__}",
            seconds=time.perf_counter() - started,
        )
    window = measured.window
    return Evidence(
        **common,
        status="measured",
        metrics=_in_samples(measured.metrics.model_dump(), watched.rollouts.asked),
        tables=measured.tables,
        sources=watched.files(measured.sources),
        window=StepWindow(first=window[0], last=window[1]) if window else None,
        summary=of_one(measured.summary),
        signal=measured.signal,
        origin=measured.origin,
        quote=of_one(measured.quote),
        seconds=time.perf_counter() - started,
    )


def _in_samples(metrics: dict[str, Any], asked: Collection[int]) -> dict[str, Any]:
    """The metrics, whose onset is a bracket where no rollouts lie between the two steps it names.

    `asked`: steps whose rollouts the tool read.
    """
    good, bad = metrics.get("last_good_step"), metrics.get("first_bad_step")
    if good is None or bad is None or not {good, bad} <= set(asked):
        return metrics
    between = any(good < step < bad for step in asked)
    return metrics if between or bad - good < 2 else metrics | {"sampled": True}
