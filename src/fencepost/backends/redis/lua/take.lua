-- Take the lock, or join its queue; a waiter also calls this again to learn whether it was granted.
-- KEYS: lock, queue, gone, counter
-- ARGV: holder, ttl in ms, the most waiters (-1: do not join), entry in the queue, ms to keep the queue
-- Answers: the token, if granted now; {token, ms left}, if granted before; 0 busy, -1 full, -2 has left;
--          if queued: {ms left or -1, waiters before it, 1 if the holder is a client of another library}.
--          For a shared lock, ms left is until the first of its sharers expires.
-- needs: clock, mint
local lock, queue, gone, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder = ARGV[1]
if redis.call('EXISTS', lock, queue, gone) > 0 then
    -- needs: alive, cover, hand_over, settle, join
    if redis.call('SISMEMBER', gone, holder) == 1 then return -2 end
    local value = redis.call('GET', lock)
    if not value or value == ':0' then value = settle(lock, queue, counter, value) end
    if value then
        local owner, token = string.match(value, '^(.*):(%d+)$')
        if owner == holder then return {token, redis.call('PTTL', lock)} end
        return join(lock, queue, owner, ARGV[3], ARGV[4], ARGV[5])
    end
    redis.call('ZREM', queue, ARGV[4]) -- hand_over could publish to no waiter, but this one gets the lock now
end
local token = mint(counter, clock())
redis.call('SET', lock, holder .. ':' .. token, 'PX', ARGV[2])
return token
