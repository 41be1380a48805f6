"""Between the server and the clients of a simulation: tensors change hands in memory, nothing is encoded.

    client                        here                                server
    Participant  -- pull -->      HandedConnection, HandedTransport   HandedService.hand_round
                 <-- header as on the wire; x, c and the rest as one flat buffer, the same for all clients
    Trainer                       trains in memory of Rooms
                 -- push -->      header as on the wire; that memory  HandedService.take_update, HandedUploads
                 <-- reply as on the wire

Everything else is as over gRPC: headers, requests and replies are encoded, checked and counted, tensors are
checked against their manifests and coded where the run says so, and the bytes that frames would take are
counted without making them. Chunks, checksums, spool files and syncs are what is left out.

loop.py         an event loop in a thread of its own
rooms.py        memory for the updates of a round, used again in the next
carried.py      what a client takes along from turn to turn
kept_state.py   what it remembers as tensors, in files that another process finds too
clients.py      the clients that live in one process
transport.py    the client's calls, made of the service itself
connection.py   the client's conversation, with tensors in hand
service.py      the server's part of it
"""
