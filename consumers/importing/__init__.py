"""Events in and out of files: our own as JSON lines, and histories that other programs wrote.

inputs        files that are read twice, plain or gzip
contents      what a format makes of a file: a survey, then entries to store
known         which events are stored already
loading       the import itself, the same for every format: it records its beginning and end, and goes on after a kill
rollouts      contents of formats that describe whole rollouts
rendering     messages as token ids; `tokenizer` with the vocabulary of a model (extra `tokenizer`)
messages, swe_agent, otlp*    others' formats; pure parsers
event_json, jsonl, exported   our events as JSON lines, both ways

Not here  the commands: consumers.cli.importing, consumers.cli.export
"""
