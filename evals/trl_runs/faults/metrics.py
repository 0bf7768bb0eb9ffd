"""Faults of what is logged: real changes in how TRL averages, while training itself is right."""

from __future__ import annotations

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class UnclearedMetrics(LoggedGRPOTrainer):
    """Metrics are not cleared after they are logged: each mean runs over all steps since."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Average and write."""
        # The counter has moved on: the values of the step before the onset are the first to stay.
        kept = {key: list(values) for key, values in self._metrics["train"].items()}
        super().log(logs, start_time)
        if self.acting:
            self._metrics["train"].update(kept)
