-- KEYS: lock, queue
-- Answers: {value, ms left or -1, queue entries}, and for a shared lock the holder:token of each sharer; nil if free.
-- needs: clock, seen
return seen(KEYS[1], KEYS[2])
