"""`workq demo messages`: thousands of messages, each at its time, to a RabbitMQ, a Kafka, a URL and a function.

    application.py what the worker serves            mailboxes.py where messages arrive, one class for each kind
    plan.py        what is sent, when, and moved     taking.py    the function that messages are given to
    play.py        the run, from start to end        proof.py     what has arrived, counted at the destinations
    tell.py        how it is told                    ../command.py options, and the exit status

Nothing here but plan.py is imported before the command runs. What the machine lacks for a kind, that kind is left out
for, and the demo says so.
"""
