"""The server's step, pure: used by the server and by whoever replays a capture.

rules.py       what a round's header says: Rules <-> RoundHeader
updates.py     an upload becomes y_i and c_i+, decoded and checked
cores.py       blocks of numbers, shared out to the cores
moves.py       y_i - x and c_i+ - c_i, block by block
robust.py      which updates count, and the center of the numbers of all clients
aggregate.py   sums over updates, and the next x and c from them
center.py      the same with a center in the place of the mean
adaptive.py    which modules are in S_svr next, with --svr auto
entry.py       what a change of S_svr does to c and to every c_i
step.py        the step of a round: add updates, close
"""
