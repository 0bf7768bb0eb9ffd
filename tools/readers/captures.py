"""Per-token dumps: a folder of npz, safetensors or Parquet files with a step in their names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.step_names import NUMBER, without_ranks
from firstbad.tools.readers.tensors import SUFFIXES, Array, field_names, joined, read_arrays
from firstbad.tools.readers.yamlish import parse_yaml
from firstbad.tools.run import Capture, Captures

# Canonical name -> what dumps call it; of several in one file the first counts.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "token_id": ("token_id", "completion_ids", "token_ids", "response_ids", "responses"),
    "completion_mask": ("completion_mask", "response_mask"),
    "loss_mask": ("loss_mask", "token_loss_mask", "action_mask"),
    "prompt_loss_mask": ("prompt_loss_mask",),
    "tool_mask": ("tool_mask",),
    "logp_new": (
        "logp_new", "logps", "logprobs", "per_token_logps", "new_per_token_logps", "log_probs",
        "trainer_logprobs", "current_logprobs",
    ),
    "logp_old": (
        "logp_old", "old_per_token_logps", "old_logps", "old_log_probs", "old_logprobs",
        "prev_logprobs",
    ),
    "logp_ref": (
        "logp_ref", "ref_per_token_logps", "ref_logps", "ref_log_prob", "ref_log_probs",
        "ref_logprobs", "reference_policy_logprobs", "base_action_log_probs",
    ),
    "logp_engine": (
        "logp_engine", "sampling_per_token_logps", "engine_logps", "engine_logprobs",
        "rollout_log_probs", "rollout_logprobs", "generation_logprobs", "inference_logprobs",
        "vllm_logps",
    ),
    "logp_recheck": ("logp_recheck",),
    "logp_layout": ("logp_layout",),
    "expert_trainer": ("expert_trainer",),
    "expert_engine": ("expert_engine",),
    "entropy": ("entropy", "entropies", "per_token_entropy", "per_token_entropies"),
    "varentropy": ("varentropy", "varentropies"),
    "prompt_token_id": ("prompt_token_id", "prompt_ids"),
    "prompt_mask": ("prompt_mask", "prompt_attention_mask"),
    "advantage": ("advantage", "advantages"),
}  # fmt: skip
_OF_PROMPT = ("prompt_token_id", "prompt_mask", "prompt_loss_mask")
_NAMES = {spelling: name for name, spellings in FIELDS.items() for spelling in spellings}
_ELSEWHERE = re.compile(
    r"(^|/)(completions|checkpoint-\d+|data|datasets?|tokenizer|tb|runs|wandb|rollouts)(/|$)"
)
_STEP = (
    re.compile(rf"step[^0-9]{{0,3}}{NUMBER}", re.I),
    re.compile(rf"(?<!\d){NUMBER}(?!.*\d)"),
)


def capture_folders(root: Root) -> dict[str, list[File]]:
    """Files of each folder that holds dumps: a step in the name, and a field that is known."""
    candidates: dict[str, list[File]] = defaultdict(list)
    for file in root.files:
        inside = file.folder and not _ELSEWHERE.search(file.folder)
        if inside and file.suffix in SUFFIXES and file.size and _step(file) >= 0:
            candidates[file.folder].append(file)
    fields = _user_fields(root)
    found: dict[str, list[File]] = defaultdict(list)
    for folder, files in candidates.items():
        unknown: set[str] = set()
        for file in files:
            try:
                names = field_names(file)
            except UserError as error:
                root.note("file_skipped", str(error))
                continue
            if sum(_canonical(name, fields) is not None for name in names) >= 2:
                found[folder].append(file)
            elif file.suffix == ".npz":
                unknown |= set(names)
        if unknown and folder not in found:
            listed = ", ".join(sorted(unknown)[:10])
            text = f"`{folder}`: fields {listed} are not known; `capture_fields` in firstbad.yaml"
            root.note("fields_unknown", f"{text} can name them")
    return found


def read_captures(root: Root, folders: Mapping[str, Sequence[File]]) -> Captures:
    """The dumps of these folders by step; files of one step are put under one another."""
    fields = _user_fields(root)
    by_step: dict[int, list[File]] = defaultdict(list)
    for files in folders.values():
        for file in files:
            by_step[_step(file)].append(file)
    return Captures(
        list(by_step),
        lambda step: _load(step, by_step[step], fields),
        sources=lambda step: [root.source(file, "capture") for file in by_step[step]],
    )


def _step(file: File) -> int:
    """The step in a file's name (`step_00070`, else the last number that names no rank), or -1."""
    name = without_ranks(file.stem)
    match = next((m for pattern in _STEP if (m := pattern.search(name))), None)
    return int(match[1]) if match else -1


def _canonical(name: str, fields: Mapping[str, str]) -> str | None:
    return fields.get(name) or _NAMES.get(name.rpartition("/")[2].lower())


def _user_fields(root: Root) -> dict[str, str]:
    """`capture_fields:` of `firstbad.yaml`: field of the dump -> canonical name."""
    file = root.first("firstbad.yaml")
    data = None if file is None else root.try_read(file, 2**20)
    if data is None:
        return {}
    value = parse_yaml(data, "firstbad.yaml")
    fields = value.get("capture_fields") if isinstance(value, dict) else None
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise UserError("`capture_fields` in `firstbad.yaml` must map field names to names")
    for field, name in fields.items():
        if name not in FIELDS:
            raise UserError(
                f"`firstbad.yaml` maps `{field}` to `{name}`; there are: {', '.join(FIELDS)}"
            )
    return {str(field): str(name) for field, name in fields.items()}


def _load(step: int, files: Sequence[File], fields: Mapping[str, str]) -> Capture:
    """Read one step.

    Raises:
        UserError: a file cannot be read.
    """
    read = [read_arrays(file, lambda name: _canonical(name, fields) is not None) for file in files]
    arrays = _together([arrays for arrays, _ in read], fields)
    stored = {name: dtype for _, dtypes in reversed(read) for name, dtype in dtypes.items()}
    found = _found(arrays, fields)
    named = {canonical: arrays[name] for canonical, name in found.items()}
    if "advantage" in named and named["advantage"].shape[1:] == (1,):
        named["advantage"] = named["advantage"][:, 0]
    misshapen = _misshapen(named)
    kept = {canonical: a for canonical, a in named.items() if canonical not in misshapen}
    left = {n for file in files for n in field_names(file)} - set(found.values())
    left |= {f"{found[c]} of shape {named[c].shape}" for c in misshapen}
    if any(array.shape[1:] == (0,) for array in kept.values()):
        raise UserError(f"`{files[0].name}` has no tokens")
    return Capture(
        step=step,
        arrays=kept,
        storage_dtypes={c: stored.get(found[c], str(a.dtype)) for c, a in kept.items()},
        unmapped=tuple(sorted(left)),
    )


def _found(arrays: Mapping[str, Array], fields: Mapping[str, str]) -> dict[str, str]:
    """Canonical name -> name of the array, the user's names and the better known ones first."""
    found: dict[str, str] = {}
    for name in sorted(arrays, key=lambda n: (n not in fields, _rank(n))):
        if canonical := _canonical(name, fields):
            found.setdefault(canonical, name)
    return found


def _together(parts: list[dict[str, Array]], fields: Mapping[str, str]) -> dict[str, Array]:
    """Files with the same fields hold other rows; files with other fields hold the same rows."""
    if len({frozenset(part) for part in parts}) > 1:
        merged = {name: array for part in reversed(parts) for name, array in part.items()}
        return _prompt_apart(merged, fields)
    # Before they are padded to one width: prompts of other lengths end at other places.
    apart = [_prompt_apart(part, fields) for part in parts]
    if len({frozenset(part) for part in apart}) == 1:
        parts = apart
    return parts[0] if len(parts) == 1 else joined(list(parts))


def _prompt_apart(arrays: dict[str, Array], fields: Mapping[str, str]) -> dict[str, Array]:
    """A loss mask over prompt and completion (R, P + T), as one of each: (R, P) and (R, T)."""
    found = _found(arrays, fields)
    prompt = found.get("prompt_token_id") or found.get("prompt_mask")
    if not prompt or not {"loss_mask", "token_id"} <= found.keys() or "prompt_loss_mask" in found:
        return arrays
    mask, ids, before = (arrays[n] for n in (found["loss_mask"], found["token_id"], prompt))
    if {mask.ndim, ids.ndim, before.ndim} != {2}:
        return arrays
    width = before.shape[1]
    if not width or mask.shape != (len(ids), width + ids.shape[1]):
        return arrays
    return {**arrays, found["loss_mask"]: mask[:, width:], "prompt_loss_mask": mask[:, :width]}


def _rank(name: str) -> int:
    plain = name.rpartition("/")[2].lower()
    return list(_NAMES).index(plain) if plain in _NAMES else len(_NAMES)


def _misshapen(named: Mapping[str, Array]) -> list[str]:
    """Arrays that do not have the rows and tokens that most of the others have."""
    shapes = Counter(a.shape for n, a in named.items() if n not in _OF_PROMPT and a.ndim == 2)
    if not shapes:
        return list(named)
    ids = named.get("token_id")
    usual = ids.shape if ids is not None and ids.ndim == 2 else shapes.most_common(1)[0][0]
    wrong = []
    for name, array in named.items():
        if name == "advantage" and array.shape == usual[:1]:
            continue
        fits = array.shape[:1] == usual[:1] and array.ndim == 2
        if not (fits if name in _OF_PROMPT else array.shape == usual):
            wrong.append(name)
    return wrong
