-- KEYS: lock, queue
-- Answers: {value, ms left or -1, queue entries}, and holder:token of each, if several share it; nil if nobody holds it.
-- needs: clock, seen
return seen(KEYS[1], KEYS[2])
