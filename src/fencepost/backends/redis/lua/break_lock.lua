-- Take the lock from its holder, also from a client of another library, or from all its sharers, and hand it over.
-- KEYS: lock, queue, counter
-- Answers: as status.lua does, for the lock before this.
-- needs: clock, mint, alive, cover, hand_over, seen
local found = seen(KEYS[1], KEYS[2])
if found then
    if found[4] then redis.call('DEL', KEYS[1] .. '\31shares') end
    hand_over(KEYS[1], KEYS[2], KEYS[3])
end
return found
