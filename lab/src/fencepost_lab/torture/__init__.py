"""Torture: processes that write under locks while a nemesis breaks their store, and a checker that decides.

plan       what is run: a store, a guard, a seed, the faults; one slice of it is one history
site       the servers of a slice, each behind a proxy, or a store of the user's own
registers  what the workers write to: a guarded value with a journal, one class for each kind of guard
worker     one client process: acquires, enters, reads, writes, releases, and stops or dies where it is told to
nursery    the process that forks the workers, so that a new one costs milliseconds
crew       the workers of a slice, as the run sees them: orders, pauses, deaths, counts
faults     the catalogue: what each fault does, to which stores, and why not to others
nemesis    draws faults from the seed, one after the other, and records when each began and ended
slices     one slice from start to verdict; the controls; what it left behind
campaign   many slices, kept in a folder, and resumed after a stop
page       docs/torture.md, written from the summaries
"""
