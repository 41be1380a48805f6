"""Processes that take the turns of a simulation's clients, as many at a time as there are processes.

    worker process                                  the simulation's own process
    Clients, HandedConnection                       Crew: a thread for each worker, beside the server's loop
                    <-- a turn: seat, what the client carries, a room
    SharedTransport -- pull, push: messages as on the wire, through a socket -->  HandedService
                    <-- x in memory that all processes share; y_i comes back in a room of the same
                    -- what the client carries to its next turn -->

They are forked before the simulation has threads, from a process that has loaded the data and built the
model. Nothing else differs: a client computes the same wherever it takes its turn.

memory.py       what all processes see: x, and rooms for updates
messages.py     what goes through the socket
transport.py    a client's calls, made of the other process
worker.py       the program of a worker
hands.py        who takes which client's turn next
crew.py         the other side: starts workers, gives out turns, answers their calls
"""
