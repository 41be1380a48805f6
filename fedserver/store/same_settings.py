"""Whether a run that goes on has the settings that it began with."""

from __future__ import annotations

from dataclasses import fields

from common.records.run import RunRecord
from fedserver.config import RunConfig
from fedserver.settings import about


def differences(previous: RunRecord, config: RunConfig) -> list[str]:
    """Which settings are others now, in words.

    One that did not exist yet when the run began has the value that it has if nobody gives it.
    """
    words = {each.name: about(each).word_for_none for each in fields(RunConfig)}
    before = {
        name: words.get(name) or None if value is None else value for name, value in previous.settings.items()
    }
    then, now = RunConfig().as_dict() | before, config.as_dict()
    return [
        f"--{name.replace('_', '-')} was {value!r}"
        + (f" and is {now[name]!r}" if name in now else ", which this release does not know")
        for name, value in then.items()
        # An earlier release has written null where this one has a word for it.
        if name not in now or value not in (now[name], getattr(config, name))
    ]
