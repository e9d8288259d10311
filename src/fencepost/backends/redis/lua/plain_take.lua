-- Take a lock like a client that only knows SET NX PX, and mint a token in the same step.
-- KEYS: lock, counter
-- ARGV: value of the lock's key; ttl in ms ('': it never expires)
-- Answers: the token, or 0 if another client holds the lock.
-- needs: clock, mint
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
-- Mint first: if this user may not mint, or Redis is out of memory, the script fails and nothing is taken.
local token = mint(KEYS[2], clock())
if ARGV[2] == '' then
    redis.call('SET', KEYS[1], ARGV[1])
else
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return token
