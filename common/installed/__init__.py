"""What other installed packages add to this one: algorithms, codecs, metrics, data sets and models.

A package names them in entry points of the groups below. They are looked for when a name is asked for that is
not built in, in the packages that are installed and nowhere else; none is imported before it is used. A peer
can say a name, and nothing more: what a client loads is what its owner has installed and allowed.
"""
