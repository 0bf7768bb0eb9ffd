"""Make the recorded runs: real small GRPO trainings with TRL, with and without a real fault.

    python -m firstbad.evals.trl_runs --out DIR [--only NAME ...] [--seed N]

Each fault is a real change in a real code path (sampling, scoring, masks, loss, optimizer, data):
the training acts on it, and nothing is edited into the files afterwards. Making runs needs the
extra `lab`; the list of runs in `catalog` does not.
"""
