"""Jobs: work that is split into subtasks, with one outcome.

define.py    a job as the user writes it
options.py   its options, checked
begin.py     a run is recorded
sources.py   where its items come from
chunks.py    items become the payloads of subtasks
split.py     its source is read page by page, and each page becomes a subtask
work.py      one attempt of a subtask
partition.py one attempt of a subtask that is a partition
additions.py items that a handler adds to its own job
verdict.py   which items of a chunk are done, and how a bad one is found

The values are in values.py; how far a job is, in progress.py; who counts and decides is ledger/, in the database.
"""
