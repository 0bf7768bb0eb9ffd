"""Parameters with a learning rate of their own."""

from __future__ import annotations

from typing import Any

from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.saving import Saving


class OwnRate(Saving):
    """The first task's weights train at `times` the rate of the others; one rate is logged."""

    times = 100.0
    resumed_at = None

    def parts(self) -> dict[str, slice]:
        return {"model.others": slice(1, None), "model.first": slice(0, 1)}

    def update(self, grad: Array) -> Array:
        change = super().update(grad)
        change[0] *= self.times
        return change

    def saved_state(self, counted: int) -> dict[str, Any]:
        state = super().saved_state(counted)
        (group,) = state["param_groups"]
        own = {**group, "params": [1], "lr": group["lr"] * self.times}
        return {**state, "param_groups": [{**group, "params": [0]}, own]}


class TenTimes(OwnRate):
    """As the second matrix of an adapter is given."""

    times = 10.0


class Backwards(OwnRate):
    """The first task's weights go up their loss: their rate is below 0."""

    times = -1.0


class NotFinite(OwnRate):
    """From step 21 on the rate of the first task's group is infinite, and no update reaches it."""

    times = 1.0

    def update(self, grad: Array) -> Array:
        change = super().update(grad)
        change[0] *= float(self.step <= 20)
        return change

    def saved_state(self, counted: int) -> dict[str, Any]:
        state = super().saved_state(counted)
        if self.step > 20:
            state["param_groups"][1]["lr"] = float("inf")
        return state


class FrozenGroup(OwnRate):
    """The first task's group is given a rate of 0 for the first steps, as a warm-up of its own."""

    times = 1.0
    late = 20

    def update(self, grad: Array) -> Array:
        change = super().update(grad)
        change[0] *= float(self.step > self.late)
        return change

    def saved_state(self, counted: int) -> dict[str, Any]:
        state = super().saved_state(counted)
        if self.step <= self.late:
            state["param_groups"][1]["lr"] = 0.0
        return state


RATES = "optimizer.group_rates"
CASES = [
    Case("o60", OwnRate, "incident", "opt.step_too_large", (1, 20), {RATES: "fail"}),
    Case("o61", TenTimes, "healthy", checks={RATES: "pass"}, twin_of="opt.step_too_large"),
    Case("o62", Backwards, "incident", "opt.lr_jump", (1, 20), {RATES: "fail"}),
    Case("o63", NotFinite, "incident", "opt.lr_jump", (21, 40), {RATES: "fail"}),
    Case("o64", FrozenGroup, "healthy", checks={RATES: "pass"}, twin_of="opt.lr_jump"),
]
