-- Make sure that the holder neither holds, nor shares, nor waits.
-- KEYS: lock, queue, gone, counter
-- ARGV: holder, entry in the queue, ms for which its late requests are refused (0: no request can arrive late),
--       a token under which it keeps the lock nevertheless ('': none)
-- Answers: the other client that holds the lock alone, or 1 if there is none.
-- needs: clock, mint, alive, cover, hand_over, settle
local holder = ARGV[1]
local waited = redis.call('ZREM', KEYS[2], ARGV[2]) == 1
local value = redis.call('GET', KEYS[1])
local other = 1
if value == ':0' then
    local shares = KEYS[1] .. '\31shares'
    for _, own in ipairs(waited and {} or redis.call('ZRANGE', shares, 0, -1)) do
        local owner, token = string.match(own, '^(.*):(%d+)$')
        if owner == holder and token ~= ARGV[4] then redis.call('ZREM', shares, own) end
    end
    -- A waiter that has left may have blocked others that may share.
    settle(KEYS[1], KEYS[2], KEYS[4], value)
elseif value then
    local owner, token = string.match(value, '^(.*):(%d+)$')
    if owner ~= holder then
        other = owner or value
    elseif not waited and token ~= ARGV[4] then
        hand_over(KEYS[1], KEYS[2], KEYS[4])
    end
end
-- Last, and with pcall: a Redis that is out of memory refuses to remember the holder, but must free the lock.
if ARGV[3] ~= '0' and type(redis.pcall('SADD', KEYS[3], holder)) == 'number' then
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
return other
