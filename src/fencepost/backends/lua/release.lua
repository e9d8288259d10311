-- Free the lock if it is still this holder's under this token, and hand it on.
-- KEYS: lock, queue, counter
-- ARGV: holder:token
-- Answers: 1, or 0 if it was not, and nothing changed.
-- needs: clock, mint, tell, hand_over
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
hand_over(KEYS[1], KEYS[2], KEYS[3])
return 1
