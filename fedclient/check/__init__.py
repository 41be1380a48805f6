"""`fedclient check`: is this site ready for a run? A table of findings, one after the other.

`examination` has their order; the other modules have a group of checks each, most of them functions from
facts to a `Finding`. `findings.CHECKS` is the table of all checks, also for the document about them. Nothing
here joins a run or leaves a file behind, and a client of the same name may be running meanwhile.
"""
