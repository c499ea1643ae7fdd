"""Training with a step: what a user's loop does, with state that stays where it is.

It answers what a loss becomes, step after step. It takes a file whose contract
(:mod:`memplan.ir.contract`) says what is state, and batches; it gives losses, checkpoints and the
trained graph. ``trainer``, ``alternating`` and ``accumulate`` are what users see: one step, a group
of steps, and such a group of two; ``state`` is what they do alike. ``step_file`` reads the file,
``initial`` and ``trained_weights`` find first values, ``batches`` cuts data, ``placing`` decides
what is written over what, ``guard`` keeps a loss that is not a number from the state,
``checkpoint`` and ``forward_file`` write.
"""
