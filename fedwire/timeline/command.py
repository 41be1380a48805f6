"""What `fedwire timeline` does."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from common.errors import printable
from common.records.form import plain
from fedwire.inputs import Source, require_found
from fedwire.timeline.page import MAX_FINDINGS, timeline_page
from fedwire.timeline.timeline import timeline


def show(source: Source, client: str | None, r: int | None, out: Path | None) -> None:
    """Writes the page and says what stands out; without a page, all of it as JSON."""
    with source.open() as capture:
        found = timeline(capture, client, r)
        known = sorted({message.round for message in capture.messages} - {0})
    require_found(source.path, found.transfers, {"client": client, "round": r}, known, "transfer")
    found = replace(found, problems=tuple(source.problems))
    if out is None:
        sys.stdout.write(json.dumps(plain(found), indent=2) + "\n")
        return
    timeline_page(found, source.path.name).write(out)
    for finding in found.findings[:MAX_FINDINGS]:
        print(printable(f"{finding.start:10.3f} s  {finding.kind}: {finding.text}"))
    if len(found.findings) > MAX_FINDINGS:
        print(f"and {len(found.findings) - MAX_FINDINGS} more; --json has all")
    print(f"timeline: {out}")
