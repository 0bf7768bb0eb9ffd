"""Evaluations whose set changes, and ones that move by themselves."""

from __future__ import annotations

from firstbad_recorder import Recorder
from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.trainer import Trainer

EVERY = 5


class Exam(Trainer):
    """The first five tasks, asked forty times each; harder ones name no digit at all."""

    hard, heat = 0, 1.0

    def draw_prompts(self) -> list[list[int]]:
        easy = [[policy.COPY, digit, policy.COLON] for digit in policy.DIGITS[:5]]
        return easy + [[policy.COPY, policy.WORDS[i], policy.COLON] for i in range(self.hard)]

    def sampler_logits(self, values: Array) -> Array:
        return values / self.heat

    def share_right(self, table: Array) -> float:
        """Of the answers of the policy with these weights."""
        self.engine = table
        return float(self.score(self.generate(0))["correct"].mean())


class Evaluated(Trainer):
    """An evaluation every few steps."""

    def exam(self) -> Exam:
        """What is evaluated at this step."""
        return Exam(seed=self.step, group=40)

    def extra(self, recorder: Recorder) -> None:
        if self.step % EVERY == 0:
            exam = self.exam()
            figures = {"eval/reward_mean": exam.share_right(self.table)}
            asked = len(exam.draw_prompts()) * exam.s.group
            recorder.scalars(self.step, {**figures, "eval/n_samples": asked})


class LargerSet(Evaluated):
    """From the onset on the set holds harder tasks besides."""

    def exam(self) -> Exam:
        exam = super().exam()
        exam.hard = 4 if self.after else 0
        return exam


class HotterExam(Evaluated):
    """From the onset on the evaluation samples hotter, which nothing tells."""

    def exam(self) -> Exam:
        exam = super().exam()
        exam.heat = 2.5 if self.after else 1.0
        return exam


EVALS, MISLEADING = "records.evaluations", "metric.misleading"
SAID = "evaluation accuracy dropped at around step 35"

CASES = [
    Case("r30", LargerSet, "incident", MISLEADING, (31, 35), {EVALS: "fail"}, complaint=SAID),
    # Nobody asked: the figure alone is a note.
    Case("r31", LargerSet, "healthy", checks={EVALS: "pass"}, twin_of=MISLEADING),
    Case(
        "r32",
        HotterExam,
        "undetermined",
        checks={EVALS: "pass"},
        twin_of=MISLEADING,
        complaint=SAID,
    ),
    Case("r33", Evaluated, "healthy", checks={EVALS: "pass"}, twin_of=MISLEADING),
]
