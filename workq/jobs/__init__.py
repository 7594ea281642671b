"""Jobs: work that is split into subtasks, with one outcome.

define.py    a job as the user writes it
sources.py   where its items come from
chunks.py    items become the payloads of subtasks
split.py     its source is read page by page, and each page becomes a subtask
work.py      one attempt of a subtask
partition.py one attempt of a subtask that is a partition
verdict.py   which items of a chunk are done, and how a bad one is found

The values are in values.py; how far a job is, in progress.py; who counts is the ledger (ledger/job_counts.py).
"""
