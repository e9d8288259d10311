-- Take the lock from its holder, also from a client that is not ours, or from all who share it, and hand it on.
-- KEYS: lock, queue, counter
-- Answers: what status.lua does, as it was.
-- needs: clock, mint, alive, cover, hand_over, seen
local found = seen(KEYS[1], KEYS[2])
if found then
    if found[4] then redis.call('DEL', KEYS[1] .. '\31shares') end
    hand_over(KEYS[1], KEYS[2], KEYS[3])
end
return found
