-- Take the lock, or join its queue; also asked again by a waiter that wants to know how it stands.
-- KEYS: lock, queue, gone, counter
-- ARGV: holder, ttl in ms, the most that may wait (-1: do not join), entry in the queue, ms to keep the queue
-- Answers: the token, if granted now; {token, ms left}, if granted before; 0 busy, -1 full, -2 has left;
--          {ms left or -1, place in the queue, time in us, 1 if the holder is not one of ours}, if queued.
-- needs: clock, mint, tell, hand_over
local lock, queue, gone, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder = ARGV[1]
if redis.call('EXISTS', lock, queue, gone) > 0 then
    if redis.call('SISMEMBER', gone, holder) == 1 then return -2 end
    local value = redis.call('GET', lock)
    if not value and hand_over(lock, queue, counter) then value = redis.call('GET', lock) end
    if value then
        local owner, token = string.match(value, '^(.*):(%d+)$')
        if owner == holder then return {token, redis.call('PTTL', lock)} end
        local most, entry = tonumber(ARGV[3]), ARGV[4]
        if most < 0 then return 0 end
        local place = redis.call('ZRANK', queue, entry)
        if not place then
            place = redis.call('ZCARD', queue)
            if place >= most then return -1 end
            local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
            redis.call('ZADD', queue, (last or 0) + 1, entry)
        end
        -- Should all who wait die together with the holder, nothing stays behind.
        redis.call('PEXPIRE', queue, ARGV[5])
        return {redis.call('PTTL', lock), place, clock(), owner and 0 or 1}
    end
end
local token = mint(counter, clock())
redis.call('SET', lock, holder .. ':' .. token, 'PX', ARGV[2])
return token
