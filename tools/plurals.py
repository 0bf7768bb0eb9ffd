"""One of a thing is told as one: sentences are written for several."""

from __future__ import annotations

import re

_NOUNS = (
    "step|token|row|update|group|capture|run|gradient|delivery|deliveries|value|prompt|tensor|file|"
    "rank|number|micro-batch|micro-batches|log-prob|line|text|spread|setting|resume|completion|"
    "check|checkpoint|signal|second|sample|probe|part|pair|layer|key|fault|evaluation|error|byte|"
    "batch|batches|answer|warning|parameter|tool|call|dump|deviation|record|limit|objective|state|"
    "operation|phase|piece|character|norm|ratio|mean|incident|folder|failure|cell|word|nat|"
    "difference|score|event|launch|launches|process|processes|expert|clamp|hit|weight|one|factor|sum|"
    "statement|advantage|log-ratio|question|note"
)
_BEFORE = (
    "captured|recorded|logged|whole|distinct|sampled|saved|stored|further|other|more|new|judged|"
    "optimizer|accumulation|scoring|prompt|completion|token|gradient|trainable|trained|weight|"
    "rollout|standard|later|cut|finished|failed|model|plain|watched|measured|"
    "sound|outlier|output|tool|log|plain|single|odd|good|bad"
)
_ONE = re.compile(
    r"(?<![\w.,/%`:-])(?<!step )(?<!steps )(?<!layer )(?<!epoch )(?<!rank )(?<!places )(?<!to )"
    rf"1 ((?:(?:{_BEFORE}) )?)((?:{_NOUNS})s?)\b(?: (are|were|have)\b)?"
)
_VERBS = {"are": "is", "were": "was", "have": "has"}
_WHOLE = {"deliveries": "delivery", "batches": "batch", "micro-batches": "micro-batch"} | {
    "launches": "launch", "processes": "process",
}  # fmt: skip


def of_one(text: str) -> str:
    """A sentence in which "1 steps are" reads "1 step is"; a step or layer named 1 is no count."""
    return _ONE.sub(_singular, text)


def _singular(match: re.Match[str]) -> str:
    before, noun, verb = match[1], match[2], match[3]
    single = _WHOLE.get(noun, noun if noun == "process" else noun.removesuffix("s"))
    return f"1 {before}{single}" + (f" {_VERBS[verb]}" if verb else "")
