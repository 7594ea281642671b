"""What messages keep in the ledger.

known_destinations.py  destinations, and when one rests    recorded.py       messages, as they are recorded
letters.py             what is asked about messages        decisions.py      what people decide
intakes.py             ways in, and how far they are       taken_records.py  what came in that way
pruning.py             bodies go with their tasks, messages later
"""
