"""The server process of one training run.

Rooms
    rpc/      calls: gRPC messages to the run and back     run/      the open round, the rounds
    store/    the run on disk                              traffic/  the byte ledger
    members/  who takes part, and who is still there       events/   what happens
    access/   who may call                                 keys/     certificates and tokens
    worker/   the process beside it that has torch         console/  what people see of a running server
    results/  evaluations, records, the best x, the end    tensors/  classes of tensors, first values
    rehearsal/  --canary, before round 1                   live/     the run directory for those who watch
    metrics/  a run for Prometheus                         track/    a run for TensorBoard and MLflow
    dashboard/  runs in a browser, from a process of its own

A round, in order; x, c, y_i and c_i are named where they are
    run.prepare    the worker builds x^0; x and c are one flat buffer in memory, `Standing.flat`
    run.rounds     encodes it once into frames that all clients share, and opens a `Round` on the `Board`
    rpc.service    PullRound waits on the board, then streams header, x and c, and c_i to who has lost it
    (fedclient)    trains y_i and c_i
    rpc.uploads    PushUpdate: chunks of y_i and c_i are checked and written to spool/upload-N.part, or to
                   memory where they are small
    store.spool    an upload becomes spool/round-R/client-I.update once it is whole, decoded and found finite
    run.fold       in the order of client indices: c_i+ - c_i into sums in memory, c_i+ to ledger/ and, when
                   all are in, the next x and c from x, c and all y_i, block by block
    run.close      checkpoints/round-R.safetensors makes the round count, on disk together with the c_i+;
                   meanwhile run.rounds encodes the next broadcast
    run.rounds     opens the next round; meanwhile the worker evaluates x for results.trail, rounds.jsonl
                   gets its line, c_i goes to the archive, and model.safetensors and control.safetensors are
                   replaced
Where the server has no data, clients evaluate x as they begin a round: what they counted comes with their
updates, is in the checkpoint, and `results.sites` puts it into the record of the round before. After the last
round `results.final` sends x once more, for that alone.
After a kill the newest checkpoint says what counts; updates of the open round are asked for again.
"""
