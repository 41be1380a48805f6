"""What a run tells those who watch it through its directory: events.jsonl and live.json."""
