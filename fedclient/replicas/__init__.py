"""Many clients on one machine, from one command: forked processes and, where they are many, threads."""
