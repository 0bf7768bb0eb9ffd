"""Waivers: a person's decision to go past a layer that has not passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.results import LayerResult, Waiver
from firstbad.tools.errors import UserError


def read_waivers(texts: Iterable[str]) -> list[Waiver]:
    """Read `LAYER=REASON` texts.

    Raises:
        UserError: no `=`, or no reason.
    """
    waivers = []
    for text in texts:
        layer, equals, reason = text.partition("=")
        if not equals or not reason.strip():
            raise UserError(f"`--waive {text}`: expected LAYER=REASON, and the reason is missing")
        waivers.append(Waiver(layer=layer.strip(), reason=reason.strip()))
    return waivers


def check_waivers(
    waivers: Sequence[Waiver], loaded: Loaded, known: Mapping[str, LayerResult] | None = None
) -> None:
    """Refuse waivers that can't be meant.

    Args:
        waivers: what is to be waived.
        loaded: the playbook.
        known: outcomes of a finished walk, where there is one.

    Raises:
        UserError: no such layer, named twice, no reason, or the layer passed without one.
    """
    order = [layer.id for layer in loaded.playbook.layers]
    for waiver in waivers:
        if waiver.layer not in order:
            raise UserError(f"no layer `{waiver.layer}` to waive; there are: {', '.join(order)}")
        if not waiver.reason.strip():
            raise UserError(f"a waiver of `{waiver.layer}` needs a reason: LAYER=REASON")
        if sum(w.layer == waiver.layer for w in waivers) > 1:
            raise UserError(f"`{waiver.layer}` is waived twice; give one reason")
        if known and (found := known.get(waiver.layer)) and found.outcome == "pass":
            raise UserError(
                f"layer `{waiver.layer}` passed; only a failed or inconclusive layer can be waived"
            )


def merged(old: Iterable[Waiver], new: Iterable[Waiver]) -> list[Waiver]:
    """Both, a later reason for a layer replacing an earlier one."""
    return list({w.layer: w for w in (*old, *new)}.values())
