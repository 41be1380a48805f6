"""What a client holds in a run: c_i, residuals and personal tensors of one round, and frozen tensors."""

from __future__ import annotations

from dataclasses import replace

from common.errors import WireError
from common.events import Emit
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Flat, Layout
from fedclient.events import PersonalLost, ResidualsLost, StateDamaged, VariateReturned
from fedclient.rpc.round_stream import ReceivedRound
from fedclient.run import phases
from fedclient.run.phases import StateSource
from fedclient.run.prepare import Equipment


class HeldState:
    """Brings the state on disk in line with what the server counts."""

    def __init__(self, equipment: Equipment, emit: Emit) -> None:
        self._state = equipment.state
        self._own = equipment.trainer.own
        self._frozen_digest = equipment.seat.frozen_digest
        self._emit = emit

    def frozen_wanted(self) -> Layout:
        """The frozen tensors, if they are not here: the server sends them along then."""
        wanted = self._own.wanted
        if wanted.specs:
            found = self._state.frozen(wanted, self._frozen_digest)
            if found is not None:
                self._own.take_frozen(found)
        return self._own.wanted

    def completed(self, received: ReceivedRound) -> ReceivedRound:
        """A round with what the client itself has to add to it; keeps frozen tensors that came along."""
        if received.frozen is not None:
            tensors = FrozenTensors(self._own.frozen, received.frozen)
            if tensors.digest != self._frozen_digest:
                raise WireError.broken_contract("the frozen tensors are not those that the server has named")
            self._own.take_frozen(self._state.keep_frozen(tensors))
        return replace(received, task=replace(received.task, personal=self._own.personal), frozen=None)

    def drop_damage(self) -> bool:
        """Whether there was a damaged c_i; there is none any more."""
        reasons = self._state.drop_damaged()
        for reason in reasons:
            self._emit(StateDamaged(reason=reason))
        return bool(reasons)

    def personal(self, received: ReceivedRound) -> Flat:
        """Personal tensors as of the round that counts, for a model that is only evaluated."""
        personal, counted = received.task.personal, received.counted_round
        if personal.specs and counted in self._state.held_rounds():
            return self._state.read_last(counted, personal)
        return self._own.fresh(personal)

    def settled(self, received: ReceivedRound) -> Flat:
        """c_i and the rest as of the round that the server says counts; drops those of all others."""
        task, counted = received.task, received.counted_round
        layout, residuals, rest = task.state_layout, task.encoding.residuals, task.kept_besides_variates
        if not layout.specs:
            return layout.allocate()
        source = phases.state_source(
            counted,
            self._state.held_rounds(),
            came_along=received.lost_variate is not None,
            has_variate=bool(task.variates.specs),
        )
        if source is not StateSource.HELD:
            here = counted in self._state.held_rounds()
            # Residuals that are not here start again at zero, and personal tensors where the seed has them.
            state = self._own.fresh(layout)
            if here and rest.specs:
                state[layout.num_bytes - rest.num_bytes :] = self._state.read_last(counted, rest)
            if source is StateSource.SERVER and received.lost_variate is not None:
                state[: len(received.lost_variate)] = received.lost_variate
                if not counted:  # What the run starts with comes along until an update counts.
                    self._state.settle(counted)
                    return state
                changing = task.rules.svr_budget > 0
                self._emit(VariateReturned(round=counted, clipped=here and not changing, changing=changing))
            elif residuals.specs:
                self._emit(ResidualsLost(round=counted))
            if task.personal.specs and not here:
                self._emit(PersonalLost(round=counted))
            self._state.write(counted, layout, state)
        self._state.settle(counted)
        if not counted:
            return self._own.fresh(layout)
        # What is here may have a variate too, of an S_svr that was not empty yet.
        read = self._state.read if task.variates.specs else self._state.read_last
        return read(counted, layout)
