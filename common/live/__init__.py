"""Watching a run through its directory: no call, no credential, and nothing on the round's path.

view     RunView: everything that is known of a run, kept up to date by `refresh`
record   live.json and events.jsonl, which a run writes for those who watch
lines    a file of one JSON document a line, of which only what is new is read
sent     what traffic.jsonl adds up to, and what other methods would have sent
"""
