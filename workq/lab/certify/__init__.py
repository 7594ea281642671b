"""Certify: the fault suite, run against the servers that an application really uses, in a namespace of its own.

    trial.py     one run from start to end: stores, workers, driver, faults, the wait for the last task, the verdict
    stage.py     its scratch namespace, damaged on purpose, and the TCP proxies before the servers; nothing else is
    touched witness.py   the application: its handlers append each start and end to a file of their own, never to the
    stores driver.py    enqueues at a given rate: one, many, with keys, delayed, failing, doomed, cancelled; its journal
    has each
                 call before it is made, completed with its outcome
    nemesis.py   the faults, as values that strike and heal; drawn from a seed
    verdict.py   the auditor: joins journal, witness and ledger, and explains every second start or reports it
    report.py    what was asked for, and the figures for a person and for a program

Who decides: the witness and the journal, which no store of the queue can change. What happens on each failure: a
finding is printed with the whole timeline of its task and the command that repeats the run; whatever ends a run,
Ctrl-C included, the processes and the namespace are gone afterwards. Only a SIGKILL of this process leaves them.
"""
