"""The client daemon of one training run: owns a shard, trains locally, pushes updates.

Rooms
    run/       a client's life: daemon (connect, retry), prepare (data, model), turn (pull, train, push)
    rpc/       calls: what a turn wants to say and hear, as gRPC messages
    transport/ how messages reach the server: gRPC, paced, captured
    evaluation/ x on data that are not trained on: counts, what is held out, what a task names
    training/  K local steps                              store/     the state directory, or memory
    midround/  where a long round is, saved while it goes on
    measures/  drift, noise and the like of a round       worth/     what the federation brings this site
    replicas/  many clients from one command: identities, the process that forks, threads
    policy/    what may leave, by site.toml               outbox/    what has left, on disk before it leaves
    keys/      the site's own key                         check/     is this site ready? takes no part
    api/       what Python programs use: join
What the machine gives is `site`; `run.demands` holds what the server asks for against it, before it is done.
Where there is a site.toml, `policy.guarded` is the connection: all that leaves passes its gate.

A round, in order; x, c, y_i and c_i are named where they are
    run.daemon         joins, and lets run.turn take turns until the run ends; a lost connection ends a turn
    run.phases         says what a client does next: Waiting -> Training -> Handing -> Waiting ... Ended
    run.turn           pulls: rpc.connection asks for a round, and names the rounds whose c_i is on disk
    rpc.download       chunks of x and c, and of a c_i that was lost, into one flat buffer in memory, which
                       outlives a connection that breaks; decoded it is `Task.broadcast`
    run.turn           c, where it did not come, from x and the x before (`LastBroadcast`, in memory);
                       c_i from variate-R.safetensors, R the round that the server counts; others are deleted
    training.train     copies x into a buffer that the model's parameters are views of, and trains it to y_i;
                       personal tensors are views of the state, beside c_i; frozen ones stay as they came
                       encodes y_i, and c_i+ follows from what is encoded: `Update.payload`, `Update.state`
    midround.saving    meanwhile, of a round that takes longer, y_i and momentum to midround.safetensors
    run.turn           c_i+ to variate-R.safetensors beside c_i, the payload to update.parcel
    rpc.connection     pushes y_i and c_i+ in chunks of the payload, from where an upload broke off
    run.turn           drops update.parcel if the update was late or rejected; else file and payload in memory
                       stay until the next round, because a restarted server may ask for the update
Files are in --state-dir, in run-ID/. After a kill the next process hands update.parcel in, if it is there and
whole, and pulls; the server then says whether c_i or c_i+ counts. A round that
was saved goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedclient.api.joining import Client as Client
    from fedclient.api.joining import join as join
else:

    def __getattr__(name: str) -> object:
        """What programs use, imported when it is asked for: the package itself imports nothing."""
        from common import public

        return public(__name__, name, _PUBLIC)

    def __dir__() -> list[str]:
        return sorted(_PUBLIC)


_PUBLIC = {
    "join": "fedclient.api.joining",
    "Client": "fedclient.api.joining",
}
