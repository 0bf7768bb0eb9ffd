"""NaN replay: what a plain pass, a watched pass and torch's anomaly mode cost, in one run.

    python benchmarks/nan_replay.py [--width 384] [--layers 4] [--rows 8] [--length 64] [--json]

Needs torch. A transformer of 10 M parameters runs forward and backward. The passes take turns;
each figure is the median of all rounds in seconds of processor time, on one thread (several wait
for each other in a loop that counts as work), so that what else the machine does stays out of it.
The ratio is to forward and backward alone, round by round. Anomaly mode is timed on a pass that is
finite (it is on before anybody knows), and so is the watched pass, which in use runs only after the
plain one failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from typing import Any

from firstbad_recorder.probes.trail import replay


def model_of(width: int, layers: int) -> Any:
    """A causal transformer with a vocabulary of 4096."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(4096, width),
            "body": torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
            "head": torch.nn.Linear(width, 4096, bias=False),
        }
    )


def main() -> None:
    """Print the figures."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = model_of(args.width, args.layers)
    ids = torch.randint(0, 4096, (args.rows, args.length))
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(args.length - 1)

    def loss(spoil: bool = False) -> Any:
        logits = model["head"](model["body"](model["embed"](ids[:, :-1]), mask=hidden))
        logp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return (logp + 200.0).exp().mean() if spoil else -logp.mean()

    def alone() -> None:
        loss().backward()
        for p in model.parameters():  # as the replay does
            p.grad = None

    def anomaly() -> None:
        with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
            alone()

    passes = {
        "forward_and_backward": alone,
        "plain": lambda: replay(model, loss, hooks=False),
        "watched": lambda: replay(model, loss, hooks=True),
        "anomaly_mode": anomaly,
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    warnings.simplefilter("ignore")
    for at in range(args.rounds + 1):
        turn = at % len(passes)  # another one begins each round
        for name, run in [*passes.items(), *passes.items()][turn : turn + len(passes)]:
            begin = time.process_time()
            run()
            if at:  # the first round warms up
                seconds[name].append(time.process_time() - begin)
    # `watched` runs a plain pass before: its own cost is the rest.
    pairs = zip(seconds["watched"], seconds["plain"], strict=True)
    seconds["watched"] = [both - plain for both, plain in pairs]
    base = seconds["forward_and_backward"]
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = {
        name: statistics.median(v / b for v, b in zip(values, base, strict=True))
        for name, values in seconds.items()
    }
    first = replay(model, lambda: loss(spoil=True))["first"]
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": args.rows * args.length,
        "threads": torch.get_num_threads(),
        "milliseconds": {k: round(1e3 * v, 2) for k, v in middle.items()},
        "ratio": {k: round(v, 3) for k, v in ratio.items()},
        "names": {key: first[key] for key in ("operation", "module", "phase")},
    }
    if args.json:
        print(json.dumps(found))
        return
    print(f"{found['parameters'] / 1e6:.1f} M parameters, {found['tokens']} tokens")
    for name, value in found["milliseconds"].items():
        print(f"  {name:22}{value:10.2f} ms   x {found['ratio'][name]:.3f}")
    print(f"  names: {found['names']}")


if __name__ == "__main__":
    main()
