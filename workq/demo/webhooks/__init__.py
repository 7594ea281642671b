"""`workq demo webhooks`: events of an application's own transactions, sent to five receivers, none of them easy.

    application.py what the worker serves            shop.py      the application's own rows, and what it sends of them
    roles.py       the five, and how they answer     receivers.py a server that is all of them, and keeps a log
    play.py        the run, from start to end        proof.py     what has arrived, counted at the receivers
    tell.py        how it is told                    ../command.py options, and the exit status

Nothing here but roles.py is imported before the command runs. It needs the extra [webhooks].
"""
