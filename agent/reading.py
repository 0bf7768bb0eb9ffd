"""Read back what an incident folder holds, as records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import ValidationError

from firstbad import __version__
from firstbad.agent.incident import Incident, IncidentRecord
from firstbad.agent.remarks import Remark
from firstbad.playbooks.results import Verdict, Waiver
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Evidence

if TYPE_CHECKING:
    from firstbad.playbooks.loader import Loaded


def verdict_of(incident: Incident) -> Verdict | None:
    """The verdict of an incident, or None while there is none.

    Raises:
        UserError: the file is not a verdict.
    """
    if not incident.verdict_file.is_file():
        return None
    try:
        return Verdict.model_validate_json(incident.verdict_file.read_bytes())
    except ValidationError as error:
        raise UserError(f"`{incident.verdict_file}` is no verdict") from error


def waivers_in(record: IncidentRecord) -> list[Waiver]:
    """The waivers of an incident.

    Raises:
        UserError: one is none.
    """
    try:
        return [Waiver.model_validate(w) for w in record.waivers]
    except ValidationError as error:
        wrong = f"incident.json of `{record.id}`: not of the expected form at `waivers`"
        raise UserError(wrong) from error


def remarks_in(record: IncidentRecord) -> tuple[Remark, ...]:
    """What was noticed while the run was opened.

    Raises:
        UserError: the record does not say it in that form.
    """
    try:
        return tuple(Remark(r["code"], r["text"]) for r in record.reading)
    except KeyError as error:
        wrong = f"incident.json of `{record.id}`: not of the expected form at `reading`"
        raise UserError(wrong) from error


def saved_evidence(incident: Incident) -> Iterable[Evidence]:
    """All evidence of an incident folder, in order of its ids.

    Raises:
        UserError: a file is not a record of evidence.
    """
    for evidence_id in incident.evidence_ids():
        try:
            yield Evidence.model_validate_json(incident.evidence_text(evidence_id))
        except (ValidationError, UnicodeDecodeError) as error:
            place = incident.evidence_folder / f"{evidence_id}.json"
            raise UserError(
                f"`{place}` is no record of evidence; remove it, then resume"
            ) from error


def playbook_of(record: IncidentRecord) -> Loaded:
    """The playbook that an incident is walked by.

    Raises:
        UserError: it is gone, or not the one that the incident began with.
    """
    from firstbad.playbooks.loader import load

    loaded = load(record.playbook["path"])
    if loaded.ref.digest != record.playbook["digest"]:
        began = record.versions.get("firstbad", "unknown")
        upgraded = f"; it began with firstbad {began}, this is {__version__}"
        raise UserError(
            f"playbook `{record.playbook['name']}` has changed since incident `{record.id}` began "
            f"({record.playbook['digest']}, now {loaded.ref.digest})"
            f"{upgraded if began != __version__ else ''}; begin anew: "
            f"firstbad investigate {record.run}"
        )
    return loaded
