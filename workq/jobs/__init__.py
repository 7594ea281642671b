"""Jobs: work that is split into subtasks, with one outcome.

define.py    a job as the user writes it
options.py   its options, checked
sources.py   where its items come from
split.py     a run is recorded, its source is read page by page, and each page becomes a subtask
work.py      one attempt of a subtask, with the items that its handler adds to the job
partition.py one attempt of a subtask that is a partition
verdict.py   which items of a chunk are done, and how a bad one is found

The values are in values.py; how far a job is, in progress.py; who counts and decides is ledger/, in the database.
"""
