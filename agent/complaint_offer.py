"""What a complaint can name, in words: told by `firstbad investigate --help`."""

OFFERED = (
    "a signal (reward, evaluations, KL, entropy, answer length, loss, gradient norm, clip "
    "fraction, ratio, learning rate, advantages, step time) and how it moves (falls, rises, flat, "
    "zero, negative, jumps, spikes, unsteady), or NaN, garbage text, truncation, wrong judging, "
    "reward hacking, wrong masks, engine mismatch, a resume, a hang, a crash or "
    "its exception, a run that blows up"
)
