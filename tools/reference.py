"""Is the reference the policy that training began with?"""

from __future__ import annotations

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

OFF = 0.05
"""KL at step 1, in nats per token, that is dated."""


class Reference(Dated):
    """KL before any update."""

    kl_first: float
    """KL to the reference at step 1, nats per token."""


@tool
def check_reference(run: Run) -> Measured[Reference]:
    """KL to the reference at step 1, before any update: 0 where the reference is the first policy.

    Cannot tell: whether other weights or another way of computing them make the difference.
    """
    kl = run.signals.get("kl_ref")
    first = None if kl is None else kl.at(1)
    if first is None:
        raise NoData("no logged KL to the reference at step 1")
    off = first > OFF
    return Measured(
        Reference(kl_first=first, first_bad_step=1 if off else None, from_start=off),
        f"KL to the reference is {first:.3g} nats per token before any update",
        sources=run.sources,
        window=(1, 1),
        signal="KL before any update",
    )
