"""NaN replay: what a plain pass, a watched pass and torch's anomaly mode cost, in one run.

    python benchmarks/nan_replay.py [--width 384] [--layers 4] [--rows 8] [--length 64] [--json]

Needs torch. A transformer of 10 M parameters runs forward and backward. The passes take turns;
each figure is the least of all rounds, in seconds of processor time over all threads, so that what
else the machine does stays out of it, and the ratio is to forward and backward alone. Anomaly mode
is timed on a pass that is finite (it is on before anybody knows), and so is the watched pass, which
in use runs only after the plain one failed.
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = model_of(args.width, args.layers)
    ids = torch.randint(0, 4096, (args.rows, args.length))
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(args.length - 1)

    def loss(spoil: bool = False) -> Any:
        logits = model["head"](model["body"](model["embed"](ids[:, :-1]), mask=hidden))
        logp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return (logp + 200.0).exp().mean() if spoil else -logp.mean()

    def alone() -> None:
        for p in model.parameters():
            p.grad = None
        loss().backward()

    def anomaly() -> None:
        for p in model.parameters():
            p.grad = None
        with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
            loss().backward()

    passes = {
        "forward_and_backward": alone,
        "plain": lambda: replay(model, loss, hooks=False),
        "watched": lambda: replay(model, loss, hooks=True),
        "anomaly_mode": anomaly,
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    warnings.simplefilter("ignore")
    for at in range(args.rounds + 1):
        for name, run in passes.items():
            begin = time.process_time()
            run()
            if at:  # the first round warms up
                seconds[name].append(time.process_time() - begin)
    least = {name: min(values) for name, values in seconds.items()}
    least["watched"] -= least["plain"]  # it runs a plain pass before
    base = least["forward_and_backward"]
    first = replay(model, lambda: loss(spoil=True))["first"]
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": args.rows * args.length,
        "threads": torch.get_num_threads(),
        "milliseconds": {k: round(1e3 * v, 2) for k, v in least.items()},
        "ratio": {k: round(v / base, 3) for k, v in least.items()},
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
