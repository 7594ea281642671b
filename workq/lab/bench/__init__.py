"""Bench: how fast this queue is on the servers that an application really uses, in a namespace of its own.

    trial.py    one run from start to end: a namespace, workers, tasks, and the figures for a person and for a program
    tasks.py    the application that is measured: its handlers append each start and end to a file of their own
    steps.py    where a task's time goes: the stores, with a clock around each call

The figures are of this machine, these servers and this moment: two runs differ by some per cent. What else runs beside
it is measured, too.
"""
