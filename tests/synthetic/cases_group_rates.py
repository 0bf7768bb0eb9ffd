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


RATES = "optimizer.group_rates"
CASES = [
    Case("o60", OwnRate, "incident", "opt.step_too_large", (1, 20), {RATES: "fail"}),
    Case("o61", TenTimes, "healthy", checks={RATES: "pass"}, twin_of="opt.step_too_large"),
]
